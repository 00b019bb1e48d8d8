"""What only convlog does, compared with itself: filters, verify, the mirror's lag, starting up."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.comparing import TAIL_EVENTS, Amounts, Stage
from benchmarks.contender import SESSION, Contender
from benchmarks.convlog import Convlog, Mirrored
from benchmarks.figures import Recorder, Series
from benchmarks.workload import RARE_TASK, RARE_THREAD
from convlog_sqlite import Filters, MirrorBusy

_FILTERS: Final[tuple[tuple[str, Filters], ...]] = (
    ("no filter", Filters()),
    ("agent, 1 in 8", Filters(agent="agent-3")),
    ("recipient, 1 in 8", Filters(to="agent-3")),
    ("thread, 1 in 40", Filters(thread_id=RARE_THREAD)),
    ("task, 1 in 500", Filters(task_id=RARE_TASK)),
)
_Kind = TypeVar("_Kind", bound=Contender)
_COMMAND: Final = "import sys; from convlog_sqlite.cli import main; sys.exit(main())"
_POLL_SECONDS: Final = 0.0002
_PATIENCE_SECONDS: Final = 30.0
_COMPARED_PER_SECOND: Final = 20_000


def measure_filters(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """The last 20 events that a filter lets through, as parsed events."""
    convlog = _only(stage, Convlog)
    series = [Series(label) for label, _ in _FILTERS]
    for number in range(amounts.rounds):
        recorder.say(f"filtered tail, round {number + 1} of {amounts.rounds}")
        for taken, (_, filters) in zip(series, _FILTERS, strict=True):
            taken.take([partial(convlog.filtered_tail, TAIL_EVENTS, filters)] * amounts.tails)
    recorder.add(f"filtered tail({TAIL_EVENTS}) at {stage.events:,} events", series, series[0])


def measure_verify(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """Everything that can be checked, of every event."""
    log = _only(stage, Convlog).log
    series = Series("convlog", per=log.anchor().pos)

    def verify() -> None:
        if findings := list(log.verify()):
            raise AssertionError(f"verify found {findings[0]}")

    for number in range(amounts.exports):
        recorder.say(f"verify, round {number + 1} of {amounts.exports}")
        series.take([verify])
    recorder.add("verify, an event", [series], rated=True)


def measure_lag(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """From the return of a durable append to the line in the file, written by another process.

    The file is looked at every 0.2 ms, so a figure is up to that much and a clock tick too high.
    """
    mirrored = _only(stage, Mirrored)
    path = mirrored.log.mirror.path(SESSION)
    pause, lag = random.Random(stage.workload.seed), Series("convlog")
    number = mirrored.session.head
    with _exporter(mirrored) as process:
        recorder.say(f"mirror lag, {amounts.lags} appends")
        samples = []
        for ready in range(number, number + amounts.lags):
            time.sleep(pause.uniform(0.002, 0.04))  # so that the exporter is found awake and asleep
            prepared = mirrored.prepare([stage.workload.message(ready)])
            size = path.stat().st_size
            mirrored.append(prepared)
            samples.append(_seconds_until_longer(path, size) * 1e6)
        lag.rounds.append(samples)
        recorder.say("mirror idle")
        share = _busy_share(process.pid, amounts.idle_seconds)
    recorder.add("commit to line in the mirror, exporter running", [lag])
    if share is not None:
        recorder.numbers["mirror exporter when idle, % of a core"] = 100 * share


@contextlib.contextmanager
def _exporter(mirrored: Mirrored) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that keeps the mirror, from when it does."""
    script = Path(__file__).with_name("exporter.py")
    command = [sys.executable, str(script), str(mirrored.log.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=_environment()) as process:
        try:
            _wait_for_exporter(mirrored, process)
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(_PATIENCE_SECONDS)


def _wait_for_exporter(mirrored: Mirrored, process: subprocess.Popen[bytes]) -> None:
    # It compares every line first, and so does who asks whether it is there.
    deadline = time.monotonic() + _PATIENCE_SECONDS + mirrored.session.head / _COMPARED_PER_SECOND
    while process.poll() is None and time.monotonic() < deadline:
        try:
            mirrored.log.mirror.update(SESSION)
        except MirrorBusy:
            return
        time.sleep(1.0)  # in which the exporter gets the lock
    raise AssertionError("the exporter did not start")


def _seconds_until_longer(path: Path, size: int) -> float:
    """A line is written whole, so a longer file is one with the line."""
    started = time.perf_counter()
    while path.stat().st_size <= size:
        if time.perf_counter() - started > _PATIENCE_SECONDS:
            raise AssertionError("the line did not come")
        time.sleep(_POLL_SECONDS)
    return time.perf_counter() - started


def _busy_share(process: int, seconds: float) -> float | None:
    """The share of a core that a process uses during `seconds`; None where the kernel does not tell."""
    schedule = Path(f"/proc/{process}/task")
    try:
        time.sleep(0.5)  # what it still had to do
        before, started = _nanoseconds(schedule), time.perf_counter_ns()
        time.sleep(seconds)
        return (_nanoseconds(schedule) - before) / (time.perf_counter_ns() - started)
    except OSError:
        return None


def _nanoseconds(tasks: Path) -> int:
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks.iterdir())


def measure_start(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """The command from start to end, on the store with a mirror, beside an interpreter that does nothing.

    With cached bytecode, as it is installed; the first, which makes it, does not count.
    """
    environment = _environment() | {"PYTHONPYCACHEPREFIX": str(stage.directory / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    store = str(_only(stage, Mirrored).log.path)
    append = ["append", SESSION, "--agent", "agent-0", "--body", "hello", "--store", store]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "convlog append": [sys.executable, "-c", _COMMAND, *append],
        "convlog tail": [sys.executable, "-c", _COMMAND, "tail", SESSION, "--store", store],
    }
    series = {label: Series(label) for label in commands}
    for label, command in commands.items():
        tried = subprocess.run(command, check=False, capture_output=True, env=environment)
        if tried.returncode:
            recorder.say(f"not measured: {label}: {tried.stderr.decode().strip().splitlines()[-1:]}")
            del series[label]
    for number in range(amounts.starts):
        recorder.say(f"start-up, round {number + 1} of {amounts.starts}")
        for label, taken in series.items():
            taken.take([partial(_run, commands[label], environment)])
    recorder.add("start to end", list(series.values()), series["python -c pass"])


def _run(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def _environment() -> dict[str, str]:
    """With the convlog that is measured here, wherever the other process starts."""
    checkout = str(Path(__file__).resolve().parents[2])
    return {key: item for key, item in os.environ.items() if not key.startswith("CONVLOG_")} | {
        "PYTHONPATH": checkout
    }


def _only(stage: Stage, kind: type[_Kind]) -> _Kind:
    return next(found for found in stage.large if type(found) is kind)
