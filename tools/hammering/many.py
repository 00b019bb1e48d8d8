"""Many sessions open in one process: file descriptors do not grow with them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from convlog_sqlite import ConversationLog
from hammering.findings import Findings, Run
from hammering.judging import judge_store

_MOST_DESCRIPTORS: Final = 32  # beyond those that were open before
_OPEN: Final = Path("/dev/fd")


def run(how: Run, findings: Findings) -> None:
    """Append to all in turn, the mirror first kept by each append, then by a thread."""
    sessions, rounds = (60, 2) if how.short else (500, 6)
    before = _descriptors()
    most = 0
    with ConversationLog.init(how.directory / "store") as log:
        opened = [log.session(f"session-{number}") for number in range(sessions)]
        for keeper in ("each append", "a thread"):
            if keeper == "a thread":
                log.mirror.start()
            began = time.perf_counter()
            for number in range(rounds):
                for session in opened:
                    session.message(f"{number}", agent="hammer")
                    most = max(most, _descriptors())
            rate = sessions * rounds / (time.perf_counter() - began)
            findings.figure(f"{sessions} sessions, mirror by {keeper}", f"{rate:,.0f} events/s")
            findings.say(f"mirror by {keeper}: through")
        log.mirror.stop()
        findings.figure("most descriptors", f"{most - before} beside the {before} before")
        findings.expect(most - before <= _MOST_DESCRIPTORS, f"{most - before} descriptors are open")
        judge_store(log, findings)
    findings.expect(_descriptors() <= before, f"{_descriptors() - before} descriptors are left open")


def _descriptors() -> int:
    return len(os.listdir(_OPEN))  # noqa: PTH208 a Path for each would cost more than the append
