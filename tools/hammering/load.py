"""Many processes on one store: nothing lost, doubled, gapped or reordered, and nobody waits long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from convlog_sqlite import ConversationLog
from hammering import steps
from hammering.findings import Findings, Run, megabytes, milliseconds
from hammering.judging import acknowledged, judge_events, judge_store
from hammering.processes import Watched, Worker, at_the_end_kill

APPENDERS: Final = 8
_LONGEST: Final = 1.0  # seconds that one append may take


def run(how: Run, findings: Findings) -> None:
    """One process alone, eight, and eight with everybody who reads beside them, each on a store of its own."""
    events = 150 if how.short else 1000
    rates = {}
    for name, appenders, readers in (
        ("one", 1, False),
        ("eight", APPENDERS, False),
        ("load", APPENDERS, True),
    ):
        directory = how.directory / name
        directory.mkdir()
        rates[name] = _appending(how, findings, directory, appenders, events, readers=readers)
    alone = rates["one"]
    findings.figure("1 process alone", f"{alone:,.0f} events/s")
    findings.figure(
        "8 processes alone", f"{rates['eight']:,.0f} events/s, {rates['eight'] / alone:.2f} of one"
    )
    findings.figure("8 beside 5 others", f"{rates['load']:,.0f} events/s, {rates['load'] / alone:.2f} of one")


def _appending(
    how: Run, findings: Findings, directory: Path, appenders: int, events: int, *, readers: bool
) -> float:
    """Let processes append `events` each; how many a second all of them together."""
    store = directory / "store"
    ConversationLog.init(store).close()
    files = [directory / f"acknowledged-{number}" for number in range(appenders)]
    with at_the_end_kill(_readers(findings, directory, store) if readers else []) as others:
        writing = [
            Worker(findings, directory, "append", store, f"a{number}", how.seed, 0, events, file)
            for number, file in enumerate(files)
        ]
        others.extend(writing)
        for worker in others:
            worker.ready()
        findings.say(f"{directory.name}: all ready")
        with Watched(store / "log.db-wal") as wal:
            began = time.perf_counter()
            for worker in writing:
                worker.go()
            results = [worker.result() for worker in writing]
            seconds = time.perf_counter() - began
        longest = max(float(result.get("longest", 0)) for result in results)
        findings.figure(f"{directory.name}: longest append", milliseconds(longest))
        findings.figure(f"{directory.name}: largest WAL", megabytes(wal.largest))
        findings.expect(longest < _LONGEST, f"an append took {longest:.2f} s")
        with ConversationLog.open(store) as log:
            if readers:
                steps.end(log)
                _end_reading(findings, directory, log, others[: -len(writing)])
            judge_events(log, acknowledged(files, findings), findings)
            judge_store(log, findings)
            findings.figure(f"{directory.name}: events", f"{log.status()['events']:,}")
    return appenders * events / seconds


def _readers(findings: Findings, directory: Path, store: Path) -> list[Worker]:
    return [
        Worker(findings, directory, "mirror", store),
        Worker(findings, directory, "tail", store),
        Worker(findings, directory, "tail", store),
        Worker(findings, directory, "follow", store, steps.session_name(0), directory / "followed-s0"),
        Worker(findings, directory, "follow_all", store, directory / "followed"),
    ]


def _end_reading(findings: Findings, directory: Path, log: ConversationLog, readers: list[Worker]) -> None:
    """Wait for the readers, and compare what they saw with what there is."""
    mirror, *tails, one, everything = readers
    one.result()
    everything.result()
    reading = [worker.stop() for worker in tails]
    kept = mirror.stop()
    findings.expect(kept.get("problem") is None, f"mirror: {kept.get('problem')}")
    longest = max((result.get("longest", 0) for result in reading), default=0)
    findings.figure("longest tail(20)", milliseconds(longest))
    findings.figure("tails read meanwhile", f"{sum(result.get('reads', 0) for result in reading):,}")
    first = steps.session_name(0)
    seen = (directory / "followed-s0").read_bytes()
    findings.expect(seen == b"".join(log.lines(first)), "a follower did not see all of s0 in order")
    lines = (directory / "followed").read_bytes().splitlines(keepends=True)
    for found in log.sessions():
        part = f'"session":"{found.id}"'.encode()
        mine = [line for line in lines if part in line]
        findings.expect(
            mine == list(log.lines(found.id)), f"a follower did not see all of {found.id} in order"
        )
