"""Several callers at once, beside one: threads of a process, tasks of a loop, processes.

Each kind has a store of its own. A sample is the time from the first append of a round to the last, by
however many callers, for the same number of events; divided by that number.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.comparing import Amounts, Stage
from benchmarks.contender import SESSION
from benchmarks.convlog import draft
from benchmarks.figures import Recorder, Series, ratio
from convlog_sqlite import AsyncConversationLog, ConversationLog, Draft
from convlog_sqlite.aio import AsyncSession
from convlog_sqlite.session import Session

CALLERS: Final = 8
_PATIENCE_SECONDS: Final = 30.0


class _Kind:
    """One kind of caller: its two series and the longest that one append took in each."""

    def __init__(self, stage: Stage, amounts: Amounts, name: str, several: str) -> None:
        self.several = several
        self._workload, self._amounts, self._appended = stage.workload, amounts, 0
        self.path = stage.directory / f"together-{name}"
        self.durability = stage.durability
        per = amounts.together
        self.series = {1: Series(f"1 {name}", per=per), CALLERS: Series(f"{CALLERS} {several}", per=per)}
        self.longest = dict.fromkeys(self.series, 0.0)
        ConversationLog.init(self.path, mirror=False).close()

    def shares(self, callers: int) -> list[tuple[int, int]]:
        """What each caller appends in one round: the number of its first message, and how many."""
        start, count = self._appended, self._amounts.together // callers
        self._appended += count * callers
        return [(start + caller * count, count) for caller in range(callers)]

    def drafts(self, callers: int) -> list[list[Draft]]:
        """The same, made ready."""
        return [
            [draft(message) for message in self._workload.batch(start, count)]
            for start, count in self.shares(callers)
        ]

    def waited(self, callers: int, longest: float) -> None:
        self.longest[callers] = max(self.longest[callers], longest)

    def report(self, recorder: Recorder) -> None:
        """The figures; AssertionError unless everything is there once and in one order."""
        with ConversationLog.open(self.path, create=False, read_only=True) as log:
            session, seen, messages = log.session(SESSION), 0, 0
            while page := session.read(after=seen):
                if [event.seq for event in page] != list(range(seen + 1, seen + 1 + len(page))):
                    raise AssertionError(f"{self.several}: the numbers have a gap")
                seen += len(page)
                messages += sum(event.type == "message" for event in page)
        if messages != self._appended:
            raise AssertionError(f"{self.several}: {self._appended} were appended, {messages} are there")
        alone, together = self.series[1], self.series[CALLERS]
        recorder.add(
            f"append by {self.several}, a commit each, an event", [alone, together], alone, rated=True
        )
        recorder.numbers[f"{together.label}, times the events a second of one"] = 1 / ratio(together, alone)
        for callers, series in self.series.items():
            recorder.numbers[f"{series.label}, longest append, ms"] = 1000 * self.longest[callers]


def measure_threads(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """Threads that share a handle and a session."""
    kind = _Kind(stage, amounts, "thread", "threads")
    with (
        ConversationLog.open(kind.path, durability=kind.durability) as log,
        ThreadPoolExecutor(CALLERS) as pool,
    ):
        append = partial(_append_all, log.session(SESSION))
        for number in range(amounts.together_rounds):
            recorder.say(f"threads, round {number + 1} of {amounts.together_rounds}")
            for callers, series in kind.series.items():
                found: list[float] = []
                series.take([partial(_in_threads, pool, append, kind.drafts(callers), found)])
                kind.waited(callers, max(found))
    kind.report(recorder)


def _in_threads(
    pool: ThreadPoolExecutor,
    append: Callable[[Sequence[Draft]], float],
    drafts: Sequence[Sequence[Draft]],
    found: list[float],
) -> None:
    found.extend(pool.map(append, drafts))


def _append_all(session: Session, drafts: Sequence[Draft]) -> float:
    """The longest that one of them took, in seconds."""
    longest = 0.0
    for one in drafts:
        started = time.perf_counter()
        session.append(one)
        longest = max(longest, time.perf_counter() - started)
    return longest


def measure_tasks(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """Tasks of one loop that share a handle and a session."""
    kind = _Kind(stage, amounts, "task", "tasks")
    with asyncio.Runner() as runner:
        log = AsyncConversationLog.open(kind.path, durability=kind.durability)
        session = runner.run(log.__aenter__()).session(SESSION)
        for number in range(amounts.together_rounds):
            recorder.say(f"tasks, round {number + 1} of {amounts.together_rounds}")
            for callers, series in kind.series.items():
                found: list[float] = []
                series.take([partial(_in_tasks, session, kind.drafts(callers), found)], runner)
                kind.waited(callers, max(found))
        runner.run(log.close())
    kind.report(recorder)


async def _in_tasks(session: AsyncSession, drafts: Sequence[Sequence[Draft]], found: list[float]) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_append_all_awaited(session, one)) for one in drafts]
    found.extend(task.result() for task in tasks)


async def _append_all_awaited(session: AsyncSession, drafts: Sequence[Draft]) -> float:
    longest = 0.0
    for one in drafts:
        started = time.perf_counter()
        await session.append(one)
        longest = max(longest, time.perf_counter() - started)
    return longest


def measure_processes(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """Processes with a handle each, on one session. They are started, and have opened it, before the clock runs."""
    kind = _Kind(stage, amounts, "process", "processes")
    seed, size = stage.workload.seed, stage.workload.payload_bytes
    with contextlib.ExitStack() as ending:
        workers = [
            ending.enter_context(_appender(kind.path, kind.durability, seed, size)) for _ in range(CALLERS)
        ]
        for number in range(amounts.together_rounds):
            recorder.say(f"processes, round {number + 1} of {amounts.together_rounds}")
            for callers, series in kind.series.items():
                for worker, (start, count) in zip(workers, kind.shares(callers), strict=False):
                    _ask(worker, f"{start} {count}")
                    _answer(worker)
                found: list[float] = []
                series.take([partial(_let_append, workers[:callers], found)])
                kind.waited(callers, max(found))
    kind.report(recorder)


_Process = subprocess.Popen[str]


@contextlib.contextmanager
def _appender(path: Path, durability: str, seed: int, size: int) -> Iterator[_Process]:
    tools = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "benchmarks.appender", str(path), durability, str(seed), str(size)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tools.parent), str(tools)))}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            _answer(process)
            yield process
        finally:
            process.communicate(timeout=_PATIENCE_SECONDS)


def _ask(process: _Process, what: str) -> None:
    assert process.stdin is not None
    process.stdin.write(what + "\n")
    process.stdin.flush()


def _answer(process: _Process) -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise AssertionError("a process that appends has ended")
    return line


def _let_append(workers: Sequence[_Process], found: list[float]) -> None:
    for worker in workers:
        _ask(worker, "go")
    found.extend(float(_answer(worker)) for worker in workers)
