"""Large events and a long session: tails cost the same, export and verify do not grow."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Final

from convlog_sqlite import ConversationLog, Draft, Session
from hammering.findings import Findings, Run, megabytes
from hammering.processes import Worker

_FEW: Final = 1000
_BATCH: Final = 1000
_LARGE: Final = 10 << 20
_MOST_MEMORY: Final = 400 << 20
_SLOWER: Final = 1.5  # the promise is 1.2, on a machine that does nothing else


def run(how: Run, findings: Findings) -> None:
    """A short and a long session, large events in both."""
    large = 2 if how.short else 5
    stores = {"short": how.directory / "short", "long": how.directory / "long"}
    for (name, store), events in zip(stores.items(), (_FEW, how.events), strict=True):
        began = time.perf_counter()
        with ConversationLog.init(store, mirror=False):
            pass
        with ConversationLog.open(store, durability="normal") as log:
            _fill(log.session("s"), events - 1)  # its opening is one
            _fill_large(log.session("large"), large, findings)
        findings.say(f"{name}: {events:,} events in {time.perf_counter() - began:.0f} s")
    _compare_tails(stores["short"], stores["long"], findings)
    for role in ("export", "verify"):
        _measure(role, how.directory, stores, findings)


def _fill(session: Session, count: int) -> None:
    for first in range(0, count, _BATCH):
        session.append_many(
            Draft(type="message", agent=f"a{number % 7}", body=f"{number:0100}")
            for number in range(first, min(count, first + _BATCH))
        )


def _fill_large(session: Session, count: int, findings: Findings) -> None:
    """Large events between small ones, each read back whole."""
    for number in range(count):
        text = os.urandom(_LARGE // 2).hex()
        event = session.message(text, agent="hammer")
        session.message(f"{number}", agent="hammer")
        findings.expect(session.content(event) == text, "a large event is not what was appended")
    page = session.tail(20)
    findings.expect(len(page) == 2 * count + 1, f"{len(page)} events where {2 * count + 1} are")


def _compare_tails(short: Path, long: Path, findings: Findings) -> None:
    """tail(20), by turns on both."""
    took: dict[str, list[float]] = {"short": [], "long": []}
    with (
        ConversationLog.open(short, read_only=True) as one,
        ConversationLog.open(long, read_only=True) as two,
    ):
        sessions = {"short": one.session("s"), "long": two.session("s")}
        for _ in range(500):
            for name, session in sessions.items():
                before = time.perf_counter()
                session.tail(20)
                took[name].append(time.perf_counter() - before)
        heads = {name: session.head for name, session in sessions.items()}
    medians = {name: statistics.median(times) for name, times in took.items()}
    for name, median in medians.items():
        findings.figure(f"tail(20) of {heads[name]:,} events, median", f"{median * 1e6:.0f} µs")
    ratio = medians["long"] / medians["short"]
    findings.figure("the long one is slower by", f"{ratio:.2f}")
    findings.expect(ratio < _SLOWER, f"tail(20) is {ratio:.2f} times slower in a long session")


def _measure(role: str, directory: Path, stores: dict[str, Path], findings: Findings) -> None:
    for name, store in stores.items():
        began = time.perf_counter()
        worker = Worker(findings, directory, role, store)
        worker.ready()
        found = worker.result()
        took = time.perf_counter() - began
        peak = found.get("peak", 0)
        findings.figure(f"{role} of the {name} store", f"{took:.1f} s, peak memory {megabytes(peak)}")
        findings.expect(peak < _MOST_MEMORY, f"{role} took {megabytes(peak)} of memory")
        for fault in found.get("found", ()):
            findings.expect(ok=False, otherwise=f"verify: {fault}")
