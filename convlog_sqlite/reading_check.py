"""What verify says of readings: they were made of events that are there, and events name the ones they rest on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.errors import PayloadUnreadable, Refused, SessionRemoved, UnknownProjection
from convlog_sqlite.instants import id_text
from convlog_sqlite.projections.projection import Projection
from convlog_sqlite.store import readings
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.readings import Reading
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.views import defining
from convlog_sqlite.views.slices import Slice, Through

SELECT_IDS: Final = """
SELECT v.id FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ?1 AND e.seq BETWEEN ?2 AND ?3 ORDER BY e.seq"""
WRONGLY_INFORMED: Final = """
SELECT s.name, e.seq FROM informed AS i LEFT JOIN reading AS r ON r.id = i.reading
LEFT JOIN envelope AS v ON v.pos = i.pos LEFT JOIN event AS e ON e.session = v.session AND e.seq = v.seq
LEFT JOIN session AS s ON s.id = v.session LEFT JOIN name AS w ON w.id = r.view
WHERE r.id IS NULL OR e.pos IS NOT i.pos OR e.session IS NOT r.session OR e.agent IS NOT r.reader
OR json_valid(CAST(v.bytes AS TEXT)) AND (json_extract(CAST(v.bytes AS TEXT), '$.seen.seq') IS NOT r.upto
    OR json_extract(CAST(v.bytes AS TEXT), '$.seen.view') IS NOT w.text || '@' || r.version)"""
UNINFORMED: Final = """
SELECT s.name, e.seq FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN session AS s ON s.id = e.session
WHERE instr(v.bytes, CAST('"seen":{"seq":' AS BLOB)) AND json_valid(CAST(v.bytes AS TEXT))
AND json_extract(CAST(v.bytes AS TEXT), '$.seen.seq') > 0
AND NOT EXISTS (SELECT 1 FROM reading AS r WHERE r.session = e.session AND r.reader = e.agent
    AND r.upto = json_extract(CAST(v.bytes AS TEXT), '$.seen.seq')
    AND EXISTS (SELECT 1 FROM informed AS i WHERE i.reading = r.id AND i.pos = e.pos))
AND NOT EXISTS (SELECT 1 FROM lapse AS l WHERE l.session = e.session AND l.reader = e.agent)"""

_WHOLE: Final = "everything@0"
_CHANGED: Final = "is not what its view shows now: a label or a role changed it"


class Fault(NamedTuple):
    """What is wrong, and where; a note where it may have come about rightly."""

    session: str | None
    seq: int | None
    detail: str
    severity: str = "fault"


def wrong_readings(reader: Reader) -> Iterator[Fault]:
    """What is wrong of readings, and of events that rest on one."""
    after = 0
    while True:
        with reader.database.read() as connection:
            rows = readings.every(connection, after)
            heads = {session: _head(reader, connection, session) for session, _ in rows}
        if not rows:
            break
        for session, reading in rows:
            yield from _faults(reader, session, heads[session], reading)
        after = rows[-1][1].number
    checks = (
        (WRONGLY_INFORMED, "it is said to rest on a reading that it does not name"),
        (UNINFORMED, "it says what its author had seen, and no reading does"),
    )
    for sql, detail in checks:
        with reader.database.read() as connection:
            found = fetch(connection, sql)
        yield from (Fault(session, seq, detail) for session, seq in found)


def _head(reader: Reader, connection: Connection, session: str | None) -> int | None:
    """The last seq of a session, None where it is not there, or is going."""
    row = None if session is None else reader.row(connection, session)
    try:
        return None if row is None else reader.head_of(connection, row)
    except SessionRemoved:
        return None


def _faults(reader: Reader, session: str | None, head: int | None, reading: Reading) -> Iterator[Fault]:
    if session is not None and head is None and reader.is_removed(session):
        return  # its removal is looked at by itself
    name = f"reading {reading.number} of {reading.reader}"
    if session is None or head is None or not reading.reader or not reading.view:
        yield Fault(session, None, f"{name} names a session, reader or view that is not there")
    elif reading.upto > head:
        yield Fault(session, None, f"{name} got to seq {reading.upto}, where nothing is")
    elif reading.label == _WHOLE:
        with reader.database.read() as connection:
            ids = _ids(connection, reader.row(connection, session), reading.first, reading.last)
        if len(ids) != reading.count or hashlib.sha256("".join(ids).encode()).hexdigest() != reading.digest:
            yield Fault(
                session, None, f"{name} was not made of the events from {reading.first} to {reading.last}"
            )
    elif reading.count > reading.last - reading.first + 1:
        yield Fault(
            session, None, f"{name} counts {reading.count} from seq {reading.first} to {reading.last}"
        )
    elif not _is_shown(reader, session, reading):
        yield Fault(session, None, f"{name} {_CHANGED}", "note")


def _ids(connection: Connection, row: SessionRow | None, first: int, last: int) -> list[str]:
    found = []
    for part in reversed(() if row is None else row.line):
        place = part.number, max(first, part.after + 1), min(last, part.upto)
        found += [id_text(event_id) for (event_id,) in fetch(connection, SELECT_IDS, place)]
    return found


def _is_shown(reader: Reader, session: str, reading: Reading) -> bool:
    """Whether the view shows what was read through it."""
    try:
        view = defining.read(reader).find(reading.label)
        purpose = view.purpose if reading.purpose is None else reading.purpose
        through = Through(view, reading.reader, reading.role, purpose, reading.upto)
        shown = Slice(reader, session, through, _no_projection)
    except (Refused, PayloadUnreadable):  # a view whose definition cannot be read
        return False
    events = shown.between(reading.first, reading.last) if reading.count else []
    return len(events) == reading.count and readings.digest_of(events) == reading.digest


def _no_projection(name: str) -> Projection:
    raise UnknownProjection(name, ())
