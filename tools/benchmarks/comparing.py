"""Rounds over all contenders in turn: A B C, then B C A, so that nobody always follows the same one.

First what only reads, so that it meets the number of events that the table names; then what appends.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks.contender import APPEND, APPEND_MANY, EXPORT, TAIL, Contender
from benchmarks.convlog import Convlog
from benchmarks.figures import Recorder, Series
from benchmarks.workload import Workload

SMALL: Final = 1000
BATCH: Final = 100
TAIL_EVENTS: Final = 20
_PAGE: Final = bytes(4096)
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much is measured. All that are not rounds are for each round, or for the one there is."""

    rounds: int
    appends: int
    batches: int
    tails: int
    exports: int  # rounds of export and of verify
    lags: int
    starts: int
    idle_seconds: float
    together_rounds: int
    together: int  # events that one caller, or eight, append


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that is open: each contender with few events, and with many."""

    workload: Workload
    directory: Path
    durability: str
    events: int
    small: Sequence[Contender]
    large: Sequence[Contender]


@contextlib.contextmanager
def staged(
    contenders: Sequence[type[Contender]],
    directory: Path,
    durability: str,
    workload: Workload,
    events: int,
    say: Callable[[str], None],
) -> Iterator[Stage]:
    """Every contender, made and filled; closed at the end."""
    with contextlib.ExitStack() as closing:

        def made(kind: type[Contender], count: int) -> Contender:
            say(f"filling {kind.name}: {count:,} events")
            contender = kind(directory / f"{kind.__name__}-{count}", durability, workload)
            closing.callback(contender.close)
            contender.fill(workload, count)
            return contender

        small = [made(kind, SMALL) for kind in contenders if TAIL in kind.takes_part]
        large = [made(kind, events) for kind in contenders]
        os.sync()  # what filling left to be written would be written while somebody is timed
        gc.collect()
        gc.freeze()  # what others have imported is not searched again and again while somebody is timed
        yield Stage(workload, directory, durability, events, small, large)


def _turns(number: int, measured: Sequence[_Item]) -> Sequence[_Item]:
    """The order of round `number`."""
    first = number % len(measured)
    return [*measured[first:], *measured[:first]]


def _add(
    recorder: Recorder,
    title: str,
    measured: Sequence[Contender],
    series: Sequence[Series],
    beside: Sequence[Series] = (),
    *,
    rated: bool = False,
) -> None:
    """One group for the floor and convlog; if there are peers, one more for convlog and them."""
    pairs = list(zip(measured, series, strict=True))
    own = [taken for contender, taken in pairs if not contender.peer]
    recorder.add(title, [*own, *beside], own[0], rated=rated)
    peers = [taken for contender, taken in pairs if contender.peer]
    if peers:
        convlog = next(taken for contender, taken in pairs if type(contender) is Convlog)
        recorder.add(f"{title}: others", [convlog, *peers], convlog, rated=rated)


def measure_tail(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """The last 20 events as parsed events; few events and many in the same rounds."""
    readers = [[found for found in group if TAIL in found.takes_part] for group in (stage.small, stage.large)]
    small, large = ([Series(found.name) for found in group] for group in readers)
    for number in range(amounts.rounds):
        recorder.say(f"tail({TAIL_EVENTS}), round {number + 1} of {amounts.rounds}")
        pairs = list(zip([*small, *large], [*readers[0], *readers[1]], strict=True))
        for series, contender in _turns(number, pairs):
            tail = _tail if contender.runner is None else _awaited_tail
            calls = [partial(tail, contender)] * max(1, amounts.tails // contender.fewer_tails)
            series.take(calls, contender.runner)
    _add(recorder, f"tail({TAIL_EVENTS}) at {SMALL:,} events", readers[0], small)
    _add(recorder, f"tail({TAIL_EVENTS}) at {stage.events:,} events", readers[1], large)
    for contender, few, many in zip(readers[0], small, large, strict=True):
        if contender.peer:
            continue
        at = [
            Series(f"at {count:,}", rounds=series.rounds)
            for count, series in ((SMALL, few), (stage.events, many))
        ]
        recorder.add(f"tail({TAIL_EVENTS}) of {few.label}", at, at[0])


def _tail(contender: Contender) -> None:
    _check(contender, contender.tail(TAIL_EVENTS))


async def _awaited_tail(contender: Any) -> None:
    _check(contender, await contender.tail(TAIL_EVENTS))


def _check(contender: Contender, found: int) -> None:
    if found != TAIL_EVENTS:
        raise AssertionError(f"{contender.name}: a tail is not whole")


def measure_export(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """Every event as a line, into a file in the same directory."""
    measured = [found for found in stage.large if EXPORT in found.takes_part]
    path = stage.directory / "export.jsonl"
    # Once without a clock: how many lines there are, and the file's blocks are allocated for everybody alike.
    series = [Series(found.name, per=_export(found, path)) for found in measured]
    for number in range(amounts.exports):
        recorder.say(f"export, round {number + 1} of {amounts.exports}")
        for taken, contender in zip(series, measured, strict=True):
            taken.take([partial(_export, contender, path)])
    path.unlink()
    recorder.add(f"export to a file, a line of {stage.events:,}", series, series[0], rated=True)


def _export(contender: Contender, path: Path) -> int:
    with path.open("wb", buffering=1 << 20) as file:
        return contender.export(file)


def measure_append(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """One event in a commit of its own, and beside it what the disk takes for the sync alone."""
    measured = [found for found in stage.large if APPEND in found.takes_part]
    series = [Series(found.name) for found in measured]
    disk = Series("disk: overwrite 4 KiB, sync")
    ready = stage.events
    with _scratch_file(stage.directory) as descriptor:
        for number in range(amounts.rounds):
            recorder.say(f"append, round {number + 1} of {amounts.rounds}")
            messages = stage.workload.batch(ready, amounts.appends)
            ready += amounts.appends
            for taken, contender in _turns(number, list(zip(series, measured, strict=True))):
                prepared = [contender.prepare([message]) for message in messages]
                taken.take([partial(contender.append, one) for one in prepared], contender.runner)
            disk.take([partial(_write_and_sync, descriptor)] * amounts.appends)
    _add(recorder, "append, a commit each", measured, series, [disk], rated=True)


@contextlib.contextmanager
def _scratch_file(directory: Path) -> Iterator[int]:
    path = directory / "sync"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


def _write_and_sync(descriptor: int) -> None:
    os.pwrite(descriptor, _PAGE, 0)
    getattr(os, "fdatasync", os.fsync)(descriptor)


def measure_append_many(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """100 events in a commit."""
    measured = [found for found in stage.large if APPEND_MANY in found.takes_part]
    series = [Series(found.name, per=BATCH) for found in measured]
    ready = stage.events + amounts.rounds * amounts.appends
    for number in range(amounts.rounds):
        recorder.say(f"append_many, round {number + 1} of {amounts.rounds}")
        starts = range(ready, ready + amounts.batches * BATCH, BATCH)
        ready = starts.stop
        for taken, contender in _turns(number, list(zip(series, measured, strict=True))):
            prepared: list[Any] = [contender.prepare(stage.workload.batch(start, BATCH)) for start in starts]
            taken.take([partial(contender.append_many, batch) for batch in prepared], contender.runner)
    _add(recorder, f"append_many, {BATCH} to a commit, an event", measured, series, rated=True)
