"""Reading across forks: a session is a line of segments, its own events and those it shares.

A session that was not forked from another has one segment, and costs what it always did. In a fork, a read
goes on in the next segment where one ends: forwards from the oldest, backwards from its own. A filtered
read looks at `scan` rows over all of them; where a segment may have used that up, the answer says to go on
at its border.
"""

from __future__ import annotations

from typing import NamedTuple

from convlog_sqlite.database import Connection, value
from convlog_sqlite.store import reading
from convlog_sqlite.store.reading import Filter, Row
from convlog_sqlite.store.sessions import SessionRow


class Found(NamedTuple):
    """Rows of one read, ascending, by the session that they belong to. `stopped_at` is as in `reading.Rows`."""

    parts: list[tuple[str, list[Row]]]
    stopped_at: int | None

    @property
    def rows(self) -> list[Row]:
        """All rows, ascending."""
        return self.parts[0][1] if len(self.parts) == 1 else [row for _, rows in self.parts for row in rows]


NOTHING = Found([], None)


def first(
    connection: Connection,
    session: SessionRow,
    after: int,
    before: int,
    limit: int,
    where: Filter | None,
    scan: int,
) -> Found:
    """The first `limit` matching rows between `after` and `before`."""
    parts: list[tuple[str, list[Row]]] = []
    for part in reversed(session.line):
        start, end = max(after, part.after), min(before, part.upto + 1)
        if end <= start + 1:
            continue
        if where is not None and scan < 1:
            return Found(parts, part.after)
        rows, stopped_at = reading.select(connection, part, start, end, limit, where, scan)
        parts.append((part.name, rows))
        limit -= len(rows)
        if stopped_at is not None or limit == 0:
            return Found(parts, stopped_at)
        scan = _left(scan, end - 1 - start, where)
    return Found(parts, None)


def last(
    connection: Connection,
    session: SessionRow,
    after: int,
    before: int,
    limit: int,
    where: Filter | None,
    scan: int,
) -> Found:
    """The last `limit` matching rows between `after` and `before`."""
    parts: list[tuple[str, list[Row]]] = []
    for part in session.line:
        start, end = max(after, part.after), min(before, part.upto + 1)
        if end <= start + 1:
            continue
        if where is not None and scan < 1:
            return Found(parts, end)
        rows, stopped_at = reading.select_last(connection, part, start, end, limit, where, scan)
        parts.insert(0, (part.name, rows))
        limit -= len(rows)
        if stopped_at is not None or limit == 0:
            return Found(parts, stopped_at)
        if where is not None and session.inherited:
            head = value(connection, reading.SELECT_HEAD, (part.number,)) or part.after
            scan = _left(scan, min(end - 1, head) - start, where)
    return Found(parts, None)


def _left(scan: int, span: int, where: Filter | None) -> int:
    """What is left of `scan` after a segment of `span` events, all of which may have been looked at."""
    return scan if where is None or where.is_posting_alone else scan - min(scan, max(span, 0))
