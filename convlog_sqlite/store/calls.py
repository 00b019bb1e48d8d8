"""Calls without a result: now, at an earlier moment, and in a fork, which shares the calls of its prefix.

A session's own calls that wait now stand in `open_call`. For an earlier moment and for what a fork shares,
calls are looked at in order, and each one's result is looked for: so many calls a read, and no more.
Within a line of forks a seq means one event, so that a result in a fork answers a call of its prefix for
this branch, and for no other.
"""

from __future__ import annotations

from typing import Final

from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.vocabulary import LAST_SEQ, TYPES

SELECT_OPEN: Final = "SELECT seq FROM open_call WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3"
SELECT_TYPES: Final = """
SELECT seq, type FROM event WHERE session = ?1 AND seq > ?2 AND seq <= ?3 ORDER BY seq LIMIT ?4"""
SELECT_RESULT: Final = "SELECT 1 FROM event WHERE session = ? AND answers = ? AND seq <= ? LIMIT 1"

_AT_ONCE: Final = 1000
_TOOL_CALL: Final = TYPES["tool_call"]


def is_answered(connection: Connection, session: SessionRow, call: int, upto: int = LAST_SEQ) -> bool:
    """Whether the call at seq `call` had a result in this session when its last event was `upto`."""
    return any(
        fetch(connection, SELECT_RESULT, (part.number, call, min(part.upto, upto)))
        for part in session.line
        if part.upto > call
    )


def waiting(
    connection: Connection, session: SessionRow, after: int, upto: int, limit: int, scan: int
) -> tuple[list[int], int | None]:
    """The seqs of the first `limit` calls behind `after` that had no result at `upto`, and where to go on."""
    found: list[int] = []
    looked_at = 0
    for part in reversed(session.line):
        after, last = max(after, part.after), min(part.upto, upto)
        if part.number == session.number and upto == LAST_SEQ:
            left = limit - len(found)
            found += [seq for (seq,) in fetch(connection, SELECT_OPEN, (part.number, after, left))]
            return found, found[-1] if len(found) == limit > 0 else None
        while after < last:
            if looked_at >= scan:
                return found, after
            rows = fetch(
                connection, SELECT_TYPES, (part.number, after, last, min(_AT_ONCE, scan - looked_at))
            )
            for seq, event_type in rows:
                after, looked_at = seq, looked_at + 1
                if event_type == _TOOL_CALL and not is_answered(connection, session, seq, upto):
                    found.append(seq)
                    if len(found) >= limit:
                        return found[:limit], seq if limit else None
            if not rows:
                break
    return found, None
