"""What verify says of readings: they were made of events that are there, and events name the ones they rest on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.sessions import SessionRow

SELECT_PAGE: Final = """
SELECT r.id, s.name, a.text, w.text, r.first, r.last, r.upto, r.count, r.digest FROM reading AS r
LEFT JOIN session AS s ON s.id = r.session LEFT JOIN name AS a ON a.id = r.reader LEFT JOIN name AS w ON w.id = r.view
WHERE r.id > ? ORDER BY r.id LIMIT 500"""
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

_WHOLE: Final = "everything"


def wrong_readings(reader: Reader) -> Iterator[tuple[str | None, int | None, str]]:
    """(session, seq, what is wrong) of readings, and of events that rest on one."""
    after = 0
    while True:
        with reader.database.read() as connection:
            rows = fetch(connection, SELECT_PAGE, (after,))
            for number, session, agent, view, *extent, digest in rows:
                detail = _fault(reader, connection, session, agent, view, tuple(extent), digest)
                if detail is not None:
                    yield session, None, f"reading {number} of {agent}: {detail}"
        if not rows:
            break
        after = rows[-1][0]
    checks = (
        (WRONGLY_INFORMED, "it is said to rest on a reading that it does not name"),
        (UNINFORMED, "it says what its author had seen, and no reading does"),
    )
    for sql, detail in checks:
        with reader.database.read() as connection:
            rows = fetch(connection, sql)
        yield from ((session, seq, detail) for session, seq in rows)


def _fault(
    reader: Reader,
    connection: Connection,
    session: str | None,
    agent: str | None,
    view: str | None,
    extent: tuple[int, ...],
    digest: bytes,
) -> str | None:
    row = None if session is None else reader.row(connection, session)
    if row is None or agent is None or view is None:
        return "it names a session, reader or view that is not there"
    first, last, upto, count = extent
    if upto > reader.head_of(connection, row):
        return f"it got to seq {upto}, where nothing is"
    if count > last - first + 1:
        return f"it counts {count} events between seq {first} and {last}"
    if view == _WHOLE:
        ids = _ids(connection, row, first, last)
        if len(ids) != count or hashlib.sha256("".join(ids).encode()).digest() != digest:
            return f"the events from seq {first} to {last} are not those that it was made of"
    return None


def _ids(connection: Connection, row: SessionRow, first: int, last: int) -> list[str]:
    found = []
    for part in reversed(row.line):
        place = part.number, max(first, part.after + 1), min(last, part.upto)
        found += [id_text(event_id) for (event_id,) in fetch(connection, SELECT_IDS, place)]
    return found
