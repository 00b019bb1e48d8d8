"""A reader that does not leave: appends go on, the WAL grows, `status` says who it is, and then it shrinks again."""

from __future__ import annotations

import statistics
import time
from typing import Final

from convlog_sqlite import ConversationLog
from hammering.findings import Findings, Run, megabytes, milliseconds
from hammering.processes import Watched, Worker, at_the_end_kill

_WRITERS: Final = 2
_LARGEST_AFTER: Final = 8 << 20
_SHRUNK_WITHIN: Final = 60.0
_LOOK: Final = 0.01
_LONGEST: Final = 1.0  # seconds that one append may take, until all the WAL is moved at once


def run(how: Run, findings: Findings) -> None:
    """Append beside a held read transaction, then without it."""
    store = how.directory / "store"
    with ConversationLog.init(store) as log:
        log.session("s").message("first", agent="hammer")
        holder = Worker(findings, how.directory, "hold", store)
        writers = [Worker(findings, how.directory, "write", store) for _ in range(_WRITERS)]
        with at_the_end_kill([holder, *writers]), Watched(store / "log.db-wal") as wal:
            for worker in (holder, *writers):
                worker.ready()
            began = time.monotonic()
            findings.say(f"held for {how.seconds:g} s")
            time.sleep(how.seconds / 2)
            _ask(log, holder.pid, findings)
            time.sleep(how.seconds / 2)
            findings.figure("WAL when it left", megabytes(wal.size))
            left = time.monotonic()
            holder.go()
            findings.expect(holder.result().get("unchanged"), "the reader's snapshot changed")
            _shrinks(wal, findings)
            took = [entry for worker in writers for entry in worker.stop().get("took", ())]
        _tell(took, began, left, findings)
        pinned = log.status()["wal"]["pinned_frames"]
        findings.expect(pinned == 0, f"status says that {pinned} frames are pinned, by nobody")
        for finding in log.verify():
            findings.expect(ok=False, otherwise=f"verify: {finding.to_dict()}")


def _ask(log: ConversationLog, holder: int, findings: Findings) -> None:
    found = log.status()["wal"]
    findings.figure("status half way", f"{found['pinned_frames']:,} pinned of {found['frames']:,} frames")
    findings.expect(holder in found["readers"], f"status names {found['readers']}, not {holder}")
    findings.expect(found["pinned_frames"] > 0, "status knows of no pinned frames")


def _shrinks(wal: Watched, findings: Findings) -> None:
    """Wait until the WAL is small again, while the writers go on."""
    began = time.monotonic()
    while wal.size >= _LARGEST_AFTER and time.monotonic() - began < _SHRUNK_WITHIN:
        time.sleep(_LOOK)
    findings.figure("WAL after it left", f"{megabytes(wal.size)}, {time.monotonic() - began:.2f} s later")
    findings.expect(wal.size < _LARGEST_AFTER, f"the WAL is still {megabytes(wal.size)}")


def _tell(took: list[tuple[float, float]], began: float, left: float, findings: Findings) -> None:
    """How the appends went: in the first tenth, in the last, and after the reader left."""
    tenth = (left - began) / 10
    early = [seconds for at, seconds in took if at < began + tenth]
    late = [seconds for at, seconds in took if left - tenth <= at < left]
    held = [seconds for at, seconds in took if at < left]
    after = [seconds for at, seconds in took if at >= left]
    findings.expect(early and late, "appends did not go on")
    findings.figure("appends while held", f"{len(held):,} by {_WRITERS} processes")
    for name, times in (("first tenth", early), ("last tenth", late)):
        findings.figure(f"median append, {name}", milliseconds(statistics.median(times or [0.0])))
    findings.figure("longest append while held", milliseconds(max(held, default=0.0)))
    findings.figure("longest append after that", milliseconds(max(after, default=0.0)))
    findings.expect(max(held, default=0.0) < _LONGEST, "an append beside a held transaction took too long")
