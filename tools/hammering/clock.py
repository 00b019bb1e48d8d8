"""A clock that lies: order, tails and followers do not care."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Final

from convlog_sqlite import ConversationLog, Filters
from hammering.findings import Findings, Run
from hammering.judging import judge_store

_DAY: Final = 86_400
_STEPS: Final = (0, -_DAY, 365 * _DAY, 0, -1, -40 * 365 * _DAY, 0)  # seconds off
_ROUND: Final = 100


class _Clock:
    """Some seconds off, and it stands still for whole microseconds."""

    def __init__(self) -> None:
        self.off = 0

    def __call__(self) -> int:
        return time.time_ns() // 5_000_000 * 5_000_000 + self.off * 1_000_000_000


def run(how: Run, findings: Findings) -> None:
    """Append under a clock that steps, beside a handle whose clock is right and somebody who follows."""
    store, clock = how.directory / "store", _Clock()
    rounds = 1 if how.short else 5
    with ConversationLog.init(store) as right, ConversationLog.open(store, clock=clock) as wrong:
        total = len(_STEPS) * rounds * _ROUND * 2
        followed: list[int] = []
        follower = threading.Thread(target=_follow, args=(store, total, followed))
        follower.start()
        for off in _STEPS * rounds:
            clock.off = off
            for _ in range(_ROUND):
                for log in (wrong, right):
                    before = log.session("s").head
                    event = log.session("s").message("x", agent="hammer", task_id="t")
                    findings.expect(event.seq == max(1, before) + 1, f"{event.seq} after {before}")
            _look(right, findings)
        follower.join()
        findings.expect(followed == list(range(2, total + 2)), "a follower missed or reordered events")
        events = list(right.session("s").follow(0, timeout=0))
        findings.expect(len({event.id for event in events}) == len(events), "two events have one id")
        stamps = [event.ts for event in events]
        back = sum(later < earlier for earlier, later in pairwise(stamps))
        findings.expect(back, "the clock did not step back")
        findings.figure("events", f"{len(events):,}")
        findings.figure("times stamped", f"{min(stamps)[:10]} to {max(stamps)[:10]}")
        findings.figure("steps back", f"{back:,}")
        judge_store(right, findings)


def _look(log: ConversationLog, findings: Findings) -> None:
    session = log.session("s")
    head = session.head
    for filters in (Filters(), Filters(task_id="t"), Filters(agent="hammer")):
        seqs = [event.seq for event in session.tail(20, **filters)]
        findings.expect(seqs == list(range(head - 19, head + 1)), f"tail {filters} gave {seqs} of {head}")
    seqs = [event.seq for event in session.read(after=head - 50)]
    findings.expect(seqs == list(range(head - 49, head + 1)), f"read gave {seqs} of {head}")


def _follow(store: object, total: int, seen: list[int]) -> None:
    with ConversationLog.open(str(store), read_only=True) as log:
        for event in log.session("s").follow(1, timeout=60):
            seen.append(event.seq)
            if len(seen) == total:
                return
