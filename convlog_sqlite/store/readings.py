"""Readings: which slice of a session an agent had in front of it, and which events it wrote on it.

A reading holds no content: the view, the seqs it began and ended at, how many events it showed, and a digest of
their ids. Shown again through the same version of the view, the slice is the same one as long as the digest is.

Owns the tables `reading`, `informed` and `lapse`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.events import Event
from convlog_sqlite.instants import from_microseconds, id_bytes
from convlog_sqlite.store.names import SELECT_NAME
from convlog_sqlite.vocabulary import LAST_SEQ

INSERT_READING: Final = """
INSERT INTO reading (session, reader, role, purpose, view, version, first, last, upto, count, pairs, digest, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id"""
INSERT_INFORMED: Final = "INSERT INTO informed VALUES (?, ?)"
# ?1 session  ?2 reader  ?3 the furthest upto  ?4 view or NULL
SELECT_FURTHEST: Final = """
SELECT r.id, a.text, o.text, p.text, w.text, r.version, r.first, r.last, r.upto, r.count, r.pairs, r.digest, r.at
FROM reading AS r CROSS JOIN name AS a ON a.id = r.reader CROSS JOIN name AS w ON w.id = r.view
LEFT JOIN name AS o ON o.id = r.role LEFT JOIN name AS p ON p.id = r.purpose
WHERE r.session = ?1 AND r.reader = ?2 AND r.upto <= ?3 AND (?4 IS NULL OR w.text = ?4)
ORDER BY r.upto DESC, r.id DESC LIMIT 1"""
# ?1 position of an event  ?2 upto
SELECT_INFORMING: Final = """
SELECT r.id, a.text, o.text, p.text, w.text, r.version, r.first, r.last, r.upto, r.count, r.pairs, r.digest, r.at
FROM envelope AS v CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq
CROSS JOIN reading AS r ON r.session = e.session AND r.reader = e.agent AND r.upto = ?2
CROSS JOIN name AS a ON a.id = r.reader CROSS JOIN name AS w ON w.id = r.view
LEFT JOIN name AS o ON o.id = r.role LEFT JOIN name AS p ON p.id = r.purpose
WHERE v.pos = ?1 AND EXISTS (SELECT 1 FROM informed AS i WHERE i.reading = r.id AND i.pos = ?1)"""
# ?1 behind this id: every reading, with the name of its session
SELECT_EVERY: Final = """
SELECT s.name, r.id, a.text, o.text, p.text, w.text, r.version, r.first, r.last, r.upto, r.count, r.pairs, r.digest, r.at
FROM reading AS r LEFT JOIN session AS s ON s.id = r.session LEFT JOIN name AS a ON a.id = r.reader
LEFT JOIN name AS w ON w.id = r.view LEFT JOIN name AS o ON o.id = r.role LEFT JOIN name AS p ON p.id = r.purpose
WHERE r.id > ?1 ORDER BY r.id LIMIT 500"""
# ?1 session  ?2 reader or NULL  ?3 behind this id  ?4 limit
SELECT_READINGS: Final = """
SELECT r.id, a.text, o.text, p.text, w.text, r.version, r.first, r.last, r.upto, r.count, r.pairs, r.digest, r.at
FROM reading AS r CROSS JOIN name AS a ON a.id = r.reader CROSS JOIN name AS w ON w.id = r.view
LEFT JOIN name AS o ON o.id = r.role LEFT JOIN name AS p ON p.id = r.purpose
WHERE r.session = ?1 AND r.reader = coalesce(?2, r.reader) AND r.id > ?3 ORDER BY r.id LIMIT ?4"""
SELECT_EVENT: Final = """
SELECT e.pos, v.bytes FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos WHERE e.session = ? AND e.seq = ?"""
SELECT_PLACE: Final = "SELECT session, seq FROM envelope WHERE id = ?"
KNOWS: Final = """
SELECT EXISTS (SELECT 1 FROM posting WHERE session = ?1 AND facet = 1 AND name = ?2)
OR EXISTS (SELECT 1 FROM reading WHERE session = ?1 AND reader = ?2)"""
SELECT_LAPSE: Final = "SELECT before FROM lapse WHERE session = ? AND reader = ?"

# An envelope begins with `{"v":1,"id":"`: its id is had without parsing it, which takes longer than reading it.
_ID: Final = slice(13, 49)


@dataclass(frozen=True, slots=True)
class Reading:
    """What an agent had in front of it once: the events that a view showed from seq `first` to `last`, both included.

    `count` is how many they were, 0 where there were none; then `first` and `last` are 0. The session had been
    read up to seq `upto`, whatever the view shows of it. `digest` is the SHA-256 over their ids, as text, one
    behind the other, in hex. With `pairs`, the calls whose results stand in the slice were added to it. `at` is
    RFC 3339. `number` counts the readings of a store; 0 while it is not recorded.
    """

    reader: str
    role: str | None
    purpose: str | None
    view: str
    version: int
    first: int
    last: int
    upto: int
    count: int
    pairs: bool
    digest: str
    at: str
    number: int = field(default=0, compare=False)

    @property
    def label(self) -> str:
        """The view and its version, as `seen` has them."""
        return f"{self.view}@{self.version}"

    def to_dict(self) -> dict[str, Any]:
        """The reading as JSON values, without what it does not say."""
        said: dict[str, Any] = {"reader": self.reader, "role": self.role, "purpose": self.purpose}
        said |= {"view": self.label, "first": self.first, "last": self.last, "upto": self.upto}
        said |= {"count": self.count, "pairs": self.pairs or None, "digest": self.digest, "at": self.at}
        return {key: item for key, item in said.items() if item is not None}


def digest_of(events: Iterable[Event]) -> str:
    """The digest of a slice: over the ids of its events, in their order."""
    return hashlib.sha256(b"".join([event.envelope_bytes[_ID] for event in events])).hexdigest()


@dataclass(slots=True, eq=False)
class Noted:
    """A reading on its way into the store, or there: `number` is 0 as long as no transaction wrote it.

    `microseconds` is when it was made. Several appends that wait together may bring the same one.
    """

    reading: Reading
    microseconds: int
    number: int = 0
    is_settled: bool = False

    def settle(self, *, committed: bool) -> None:
        """Take note of how the transaction ended that may have written it."""
        if committed and self.number:
            self.is_settled = True
        elif not self.is_settled:
            self.number = 0


def write(connection: Connection, session: int, noted: Noted, intern: Callable[[str], int]) -> int:
    """Write a reading, unless it is; its number."""
    if not noted.number:
        said = noted.reading
        role, purpose = (None if text is None else intern(text) for text in (said.role, said.purpose))
        extent = said.first, said.last, said.upto, said.count, said.pairs
        row = session, intern(said.reader), role, purpose, intern(said.view), said.version, *extent
        noted.number = value(
            connection, INSERT_READING, (*row, bytes.fromhex(said.digest), noted.microseconds)
        )
    return noted.number


def inform(connection: Connection, reading: int, positions: Iterable[int]) -> None:
    """Say that the events at these positions were written on a reading."""
    connection.executemany(INSERT_INFORMED, [(reading, pos) for pos in positions])


def furthest(
    connection: Connection, session: int, reader: int | None, upto: int = LAST_SEQ, view: str | None = None
) -> Reading | None:
    """The reading with which a reader got furthest, not beyond seq `upto`, the newest of several; through `view`, if given."""
    rows = [] if reader is None else fetch(connection, SELECT_FURTHEST, (session, reader, upto, view))
    return _reading(rows[0]) if rows else None


def heard_through(connection: Connection, session: int, reader: str, view: str) -> int:
    """The seq up to which a reader has heard a session through a view of this name, whatever its version."""
    number = value(connection, SELECT_NAME, (reader,))
    found = furthest(connection, session, number, view=view)
    return 0 if found is None else found.upto


def informing(connection: Connection, pos: int, upto: int) -> Reading | None:
    """The reading that the event at `pos` was written on, which had got to seq `upto`."""
    rows = fetch(connection, SELECT_INFORMING, (pos, upto))
    return _reading(rows[0]) if rows else None


def event_at(connection: Connection, session: int, seq: int) -> list[tuple[int, bytes]]:
    """The position and envelope of the event at a seq, if there is one."""
    return fetch(connection, SELECT_EVENT, (session, seq))


def place_of(connection: Connection, event_id: str) -> list[tuple[int, int]]:
    """(session number, seq) of an event by its id, none where it does not stand."""
    return fetch(connection, SELECT_PLACE, (id_bytes(event_id),))


def knows(connection: Connection, session: int, agent: int) -> bool:
    """Whether an agent wrote in a session, or is known to have read it."""
    return bool(value(connection, KNOWS, (session, agent)))


def has_lapsed(connection: Connection, session: int, reader: int) -> bool:
    """Whether readings of a reader in a session are gone."""
    return bool(fetch(connection, SELECT_LAPSE, (session, reader)))


def page(connection: Connection, session: int, reader: int | None, after: int, limit: int) -> list[Reading]:
    """Readings of a session (by one reader), in the order of their numbers, behind number `after`."""
    return [_reading(row) for row in fetch(connection, SELECT_READINGS, (session, reader, after, limit))]


def every(connection: Connection, after: int) -> list[tuple[str | None, Reading]]:
    """Some readings behind a number, each with its session. A changed row may lack it, a reader or a view."""
    return [(row[0], _reading(row[1:])) for row in fetch(connection, SELECT_EVERY, (after,))]


def _reading(row: Sequence[Any]) -> Reading:
    number, reader, role, purpose, view, version, first, last, upto, count, pairs, digest, at = row
    extent = first, last, upto, count, bool(pairs)
    return Reading(
        reader or "", role, purpose, view or "", version, *extent, digest.hex(), _instant(at), number
    )


def _instant(microseconds: int) -> str:
    """RFC 3339; a changed row may say anything, and is then the epoch."""
    try:
        return from_microseconds(microseconds)
    except OverflowError:
        return from_microseconds(0)
