"""Whether a store is whole, holds what was acknowledged, and its mirror says the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from convlog_sqlite import ConversationLog
from hammering import steps
from hammering.findings import Findings


class Acknowledged(NamedTuple):
    """What an appender was told of one event."""

    session: str
    seq: int
    id: str


def acknowledged(files: Iterable[Path], findings: Findings) -> dict[str, Acknowledged]:
    """What appenders wrote down, by mark. Told twice (a step was taken again) it must be the same."""
    found: dict[str, Acknowledged] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            session, seq, event_id, mark = line.split()
            said = Acknowledged(session, int(seq), event_id)
            findings.expect(found.setdefault(mark, said) == said, f"{mark} was acknowledged as two events")
    return found


def last_step(file: Path) -> int:
    """The step to go on from: the last that was acknowledged, even in part."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return max((steps.place_of(line.split()[3])[0] for line in lines), default=0)


def judge_events(log: ConversationLog, said: dict[str, Acknowledged], findings: Findings) -> None:
    """Every acknowledged event is there, once, where it was said to be, in its author's order; and no other."""
    left, last = dict(said), dict[tuple[str, str], tuple[int, int]]()
    seen: set[str] = set()
    for name in _sessions(log):
        for event in log.session(name).follow(0, timeout=0):
            mark = event.correlation_id
            if mark is None:
                continue
            findings.expect(mark not in seen, f"{mark} is there twice")
            seen.add(mark)
            expected = left.pop(mark, None)
            findings.expect(expected is not None, f"{mark} was never acknowledged")
            same = expected is None or expected == (event.session, event.seq, event.id)
            findings.expect(same, f"{mark} is {event.session}/{event.seq}, acknowledged as {expected}")
            place, author = steps.place_of(mark), (name, event.agent)
            findings.expect(place > last.get(author, (-1, 0)), f"{mark} stands behind a later one")
            last[author] = place
    findings.expect(not left, f"{len(left)} acknowledged events are lost: {list(left)[:3]}")


def judge_store(log: ConversationLog, findings: Findings, *, mirrored: bool = True) -> None:
    """No gaps, nothing that verify finds, and the mirror byte for byte the export."""
    for name in _sessions(log):
        seqs = (json.loads(line)["seq"] for line in log.lines(name))
        gap = next((at for at, seq in enumerate(seqs, 1) if at != seq), None)
        findings.expect(gap is None, f"{name} has a gap at {gap}")
        if mirrored:
            findings.expect(same_as_mirror(log, name), f"{name}: the mirror is not the export")
    for finding in log.verify():
        if finding.severity == "fault" or mirrored:
            findings.expect(ok=False, otherwise=f"verify: {finding.to_dict()}")


def same_as_mirror(log: ConversationLog, session: str) -> bool:
    """Whether the mirror's file is the export."""
    return all(mine == theirs for mine, theirs in _beside_mirror(log, session))


def mirror_is_a_beginning(log: ConversationLog, session: str) -> bool:
    """Whether the whole lines of the mirror's file are the first ones of the export."""
    return all(
        mine == theirs
        for mine, theirs in _beside_mirror(log, session)
        if theirs is not None and theirs.endswith(b"\n")
    )


def _beside_mirror(log: ConversationLog, session: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    path = log.mirror.path(session)
    if not path.exists():
        yield from ((line, None) for line in log.lines(session))
        return
    # The file first: what is appended in between makes the log longer, never the file.
    with path.open("rb") as file:
        yield from zip_longest(log.lines(session), file)


def _sessions(log: ConversationLog) -> list[str]:
    return [found.id for found in log.sessions()]
