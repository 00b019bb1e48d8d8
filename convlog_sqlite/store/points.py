"""Points in a session: an event, a seq or an instant, as the seq of the last event that counts.

An instant stands for the last event whose `ts` is not after it, which is the event with the largest seq:
so where a clock stepped ahead and back again, what was recorded meanwhile hides nothing that came later.
It is looked for from the end, some thousand narrow rows at a time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.errors import InvalidEvent, UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.reading import SELECT_HEAD
from convlog_sqlite.store.sessions import SessionRow

Point = Event | str | int | datetime
"""An event or its id, a seq, or an instant: an aware datetime or RFC 3339."""

SELECT_BY_PREFIX: Final = """
SELECT v.id, v.session, v.seq, s.name FROM envelope AS v CROSS JOIN session AS s ON s.id = v.session
WHERE v.id BETWEEN ?1 AND ?2 AND (?3 IS NULL OR s.tenant = (SELECT id FROM name WHERE text = ?3)) LIMIT 2"""
# ?1 session  ?2 after seq  ?3 before seq  ?4 how many rows to look at  ?5 microseconds
SELECT_NOT_AFTER: Final = """
SELECT max(CASE WHEN ts <= ?5 THEN seq END), min(seq) FROM
(SELECT seq, ts FROM event WHERE session = ?1 AND seq > ?2 AND seq < ?3 ORDER BY seq DESC LIMIT ?4)"""

_AT_ONCE: Final = 20_000
_ID_DIGITS: Final = re.compile(r"[0-9a-f]{8,32}", re.ASCII)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].*", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def instant(point: Point) -> int | None:
    """The microseconds that a point stands for, or None when it is no instant. Raises InvalidEvent."""
    if isinstance(point, str) and _DATE.fullmatch(point):
        try:
            point = datetime.fromisoformat(point)
        except ValueError:
            raise InvalidEvent("/at", "an instant is RFC 3339, as in 2026-01-31T12:00:00Z") from None
    if not isinstance(point, datetime):
        return None
    if point.tzinfo is None:
        raise InvalidEvent("/at", "an instant needs a time zone, as in 2026-01-31T12:00:00Z")
    return (point - _EPOCH) // timedelta(microseconds=1)


def place(
    connection: Connection, session: SessionRow, point: Point, tenant: str | None, *, earlier: bool = False
) -> int:
    """The seq that a point stands for in a session, 0 for an instant before its first event.

    Where a tenant is given, an event of another one is unknown.

    With `earlier`, an instant stands for the last event that was recorded before it, not at it.

    Raises UnknownReference for a seq or event that does not exist, InvalidEvent for an event of another
    session and for what is no point.
    """
    microseconds = instant(point)
    if microseconds is not None:
        return _not_after(connection, session, microseconds - earlier)
    if isinstance(point, Event):
        point = point.id
    if isinstance(point, str):
        return _of_event(connection, session, point, tenant)
    if isinstance(point, bool) or not isinstance(point, int):
        raise InvalidEvent("/at", "an event, an event's id, a seq, or an instant")
    head: int = value(connection, SELECT_HEAD, (session.number,)) or session.base
    if not 1 <= point <= head:
        raise UnknownReference("at", str(point))
    return point


def _of_event(connection: Connection, session: SessionRow, event_id: str, tenant: str | None) -> int:
    digits = event_id.replace("-", "").lower()
    if not _ID_DIGITS.fullmatch(digits):
        raise UnknownReference("at", event_id)
    first, last = (bytes.fromhex(digits.ljust(32, fill)) for fill in "0f")
    found = fetch(connection, SELECT_BY_PREFIX, (first, last, tenant))
    if not found:
        raise UnknownReference("at", event_id)
    if len(found) > 1:
        raise InvalidEvent("/at", f"several event ids begin with {event_id}; give more of it")
    ((whole, number, seq, name),) = found
    if not any(part.number == number and seq <= part.upto for part in session.line):
        raise InvalidEvent(
            "/at", f"{id_text(whole)} is an event of the session {name}, not of {session.name}"
        )
    return int(seq)


def _not_after(connection: Connection, session: SessionRow, microseconds: int) -> int:
    for part in session.line:
        before: int | None = part.upto + 1
        while before is not None:
            looked_at = (part.number, part.after, before, _AT_ONCE, microseconds)
            ((found, before),) = fetch(connection, SELECT_NOT_AFTER, looked_at)
            if found is not None:
                return int(found)
    return 0
