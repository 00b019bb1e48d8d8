"""Reading the log: by place, by id, by filter. Every read is bounded.

Rows are fetched whole inside a read block and opened after it: keys are read from the keystore when the
rows are here, so a key that was destroyed meanwhile gives `Erased`, never old content.

Filters by agent, task, thread and recipient run over `posting`, an index that ends in seq. All others
are tested on the narrow `event` rows, at most `scan` of them in one read; where that was not enough the
answer says where to go on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from convlog_sqlite import sealing
from convlog_sqlite.database import Connection, Database, fetch, value
from convlog_sqlite.errors import InvalidEvent, UnknownReference
from convlog_sqlite.events import Corrupt, Erased, Event, Live, Payload
from convlog_sqlite.instants import from_microseconds, id_text
from convlog_sqlite.keystore import Keystore
from convlog_sqlite.store.names import Names
from convlog_sqlite.store.sessions import Segment, require_there
from convlog_sqlite.vocabulary import REASON_NAMES, TYPES

SCAN: Final = 20_000  # narrow rows looked at in one filtered read: a few milliseconds

# The most selective first; `to` before all, because it stands in no column.
FACETS: Final = {"to": 4, "task_id": 2, "thread_id": 3, "kind": 6, "agent": 1}
SUBJECT_FACET, PROPOSAL_FACET, EFFECT_FACET = 5, 7, 8
EFFECT_WORD: Final = "effect"  # under which every step of one is posted
_COLUMNS: Final = ("type", "agent", "task_id", "thread_id", "tool", "kind", "performative", "correlation_id")
FILTER_KEYS: Final = frozenset(_COLUMNS) | {"to"}

# ?1 session  ?2 after seq (exclusive)  ?3 before seq (exclusive)  ?4 limit
READ_PLAIN: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed
FROM (SELECT seq, pos FROM event WHERE session = ?1 AND seq > ?2 AND seq < ?3 ORDER BY seq LIMIT ?4) AS e
CROSS JOIN envelope AS v ON v.pos = e.pos LEFT JOIN payload AS p ON p.pos = e.pos ORDER BY e.seq"""
TAIL_PLAIN: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed
FROM (SELECT seq, pos FROM event WHERE session = ?1 AND seq > ?2 AND seq < ?3 ORDER BY seq DESC LIMIT ?4) AS e
CROSS JOIN envelope AS v ON v.pos = e.pos LEFT JOIN payload AS p ON p.pos = e.pos ORDER BY e.seq DESC"""

# ?5 scan  ?6 type  ?7 agent  ?8 task  ?9 thread  ?10 tool  ?11 kind  ?12 performative  ?13 correlation
READ_SCAN: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed
FROM (SELECT seq, pos FROM
        (SELECT * FROM event WHERE session = ?1 AND seq > ?2 AND seq < ?3 ORDER BY seq LIMIT ?5)
      WHERE (?6 IS NULL OR type = ?6) AND (?7 IS NULL OR agent = ?7) AND (?8 IS NULL OR task = ?8)
        AND (?9 IS NULL OR thread = ?9) AND (?10 IS NULL OR tool = ?10) AND (?11 IS NULL OR kind = ?11)
        AND (?12 IS NULL OR performative = ?12) AND (?13 IS NULL OR correlation = ?13)
      ORDER BY seq LIMIT ?4) AS e
CROSS JOIN envelope AS v ON v.pos = e.pos LEFT JOIN payload AS p ON p.pos = e.pos ORDER BY e.seq"""
TAIL_SCAN: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed
FROM (SELECT seq, pos FROM
        (SELECT * FROM event WHERE session = ?1 AND seq > ?2 AND seq < ?3 ORDER BY seq DESC LIMIT ?5)
      WHERE (?6 IS NULL OR type = ?6) AND (?7 IS NULL OR agent = ?7) AND (?8 IS NULL OR task = ?8)
        AND (?9 IS NULL OR thread = ?9) AND (?10 IS NULL OR tool = ?10) AND (?11 IS NULL OR kind = ?11)
        AND (?12 IS NULL OR performative = ?12) AND (?13 IS NULL OR correlation = ?13)
      ORDER BY seq DESC LIMIT ?4) AS e
CROSS JOIN envelope AS v ON v.pos = e.pos LEFT JOIN payload AS p ON p.pos = e.pos ORDER BY e.seq DESC"""

# ?14 facet  ?15 name
READ_POSTING: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed
FROM (SELECT i.seq, n.pos FROM
        (SELECT seq FROM posting WHERE session = ?1 AND facet = ?14 AND name = ?15 AND seq > ?2 AND seq < ?3
         ORDER BY seq LIMIT ?5) AS i
      CROSS JOIN event AS n ON n.session = ?1 AND n.seq = i.seq
      WHERE (?6 IS NULL OR type = ?6) AND (?7 IS NULL OR agent = ?7) AND (?8 IS NULL OR task = ?8)
        AND (?9 IS NULL OR thread = ?9) AND (?10 IS NULL OR tool = ?10) AND (?11 IS NULL OR kind = ?11)
        AND (?12 IS NULL OR performative = ?12) AND (?13 IS NULL OR correlation = ?13)
      ORDER BY i.seq LIMIT ?4) AS e
CROSS JOIN envelope AS v ON v.pos = e.pos LEFT JOIN payload AS p ON p.pos = e.pos ORDER BY e.seq"""
TAIL_POSTING: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed
FROM (SELECT i.seq, n.pos FROM
        (SELECT seq FROM posting WHERE session = ?1 AND facet = ?14 AND name = ?15 AND seq > ?2 AND seq < ?3
         ORDER BY seq DESC LIMIT ?5) AS i
      CROSS JOIN event AS n ON n.session = ?1 AND n.seq = i.seq
      WHERE (?6 IS NULL OR type = ?6) AND (?7 IS NULL OR agent = ?7) AND (?8 IS NULL OR task = ?8)
        AND (?9 IS NULL OR thread = ?9) AND (?10 IS NULL OR tool = ?10) AND (?11 IS NULL OR kind = ?11)
        AND (?12 IS NULL OR performative = ?12) AND (?13 IS NULL OR correlation = ?13)
      ORDER BY i.seq DESC LIMIT ?4) AS e
CROSS JOIN envelope AS v ON v.pos = e.pos LEFT JOIN payload AS p ON p.pos = e.pos ORDER BY e.seq DESC"""

# Where a bounded walk over a posting ended: ?1 session ?2 after ?3 before ?4 scan ?5 facet ?6 name
END_OF_READ: Final = """
SELECT count(*), max(seq) FROM (SELECT seq FROM posting WHERE session = ?1 AND facet = ?5 AND name = ?6
AND seq > ?2 AND seq < ?3 ORDER BY seq LIMIT ?4)"""
END_OF_TAIL: Final = """
SELECT count(*), min(seq) FROM (SELECT seq FROM posting WHERE session = ?1 AND facet = ?5 AND name = ?6
AND seq > ?2 AND seq < ?3 ORDER BY seq DESC LIMIT ?4)"""

SELECT_BY_PREFIX: Final = """
SELECT v.seq, v.id, v.bytes, p.slot, p.sealed, s.name, v.session
FROM envelope AS v JOIN session AS s ON s.id = v.session LEFT JOIN payload AS p ON p.pos = v.pos
WHERE v.id BETWEEN ?1 AND ?2 AND (?3 IS NULL OR s.tenant = (SELECT id FROM name WHERE text = ?3)) LIMIT 2"""
SELECT_HEAD: Final = "SELECT max(seq) FROM event WHERE session = ?"
# The opening of a session is as young as its import, and so is what has no time of its own in a transcript: some
# events behind it count too.
SELECT_FIRST: Final = "SELECT min(at) FROM event WHERE session = ?1 AND seq BETWEEN ?2 + 1 AND ?2 + 20"
SELECT_LAST: Final = "SELECT at FROM event WHERE session = ?1 AND seq = ?2"
COUNT_OPEN: Final = "SELECT count(*) FROM open_call WHERE session = ?"
SELECT_ANSWERED: Final = "SELECT answers FROM event WHERE session = ?1 AND seq = ?2"
SELECT_STORE_HEAD: Final = "SELECT pos, store_chain FROM envelope ORDER BY pos DESC LIMIT 1"
SELECT_CHANGED: Final = "SELECT DISTINCT session FROM envelope WHERE pos > ?"
SELECT_KNOWN: Final = """
SELECT s.name, EXISTS (SELECT 1 FROM open_call AS o WHERE o.session = v.session AND o.seq = v.seq),
       EXISTS (SELECT 1 FROM removal AS r WHERE r.session = v.session)
FROM envelope AS v JOIN session AS s ON s.id = v.session WHERE v.id = ?"""
SELECT_BURIED: Final = """
SELECT r.id, t.at, t.reason FROM envelope AS v CROSS JOIN tombstone AS t ON t.pos = v.pos
LEFT JOIN envelope AS r ON r.pos = t.redaction WHERE v.id = ?"""
SELECT_POS: Final = "SELECT pos FROM envelope WHERE id = ?"

_ID_DIGITS: Final = re.compile(r"[0-9a-f]{8,32}", re.ASCII)

Row = tuple[int, bytes, bytes, int | None, bytes | None]  # seq, id, envelope, slot, sealed


def correlation_digest(text: str) -> int:
    """The number under which a correlation id is indexed."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


class Rows(NamedTuple):
    """Rows of one read, ascending. `stopped_at` is the last seq looked at when the bound came first."""

    rows: list[Row]
    stopped_at: int | None


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter whose names were looked up. `facet` and `name` are the posting to walk, if any."""

    columns: tuple[int | None, ...]
    facet: int | None
    name: int | None

    def scan(self, scan: int, limit: int) -> int:
        """How many rows to look at: where the posting alone decides, those that are wanted and no others."""
        return limit if self.is_posting_alone else scan

    @property
    def is_posting_alone(self) -> bool:
        """Whether every row of the posting matches."""
        return self.facet is not None and all(column is None for column in self.columns)


def check_filters(filters: Mapping[str, Any]) -> dict[str, str]:
    """The filters that were given. Raises InvalidEvent for what is no filter."""
    found = {}
    for key, wanted in filters.items():
        if key not in FILTER_KEYS:
            raise InvalidEvent(f"/{key}", "no such filter")
        if wanted is None:
            continue
        if not isinstance(wanted, str):
            raise InvalidEvent(f"/{key}", "a filter is text")
        if key == "type" and wanted not in TYPES:
            raise InvalidEvent("/type", "one of " + ", ".join(TYPES))
        found[key] = wanted
    return found


def look_up(connection: Connection, names: Names, filters: Mapping[str, str]) -> Filter | None:
    """The filter as numbers, or None when a name in it was never used: then nothing can match."""
    numbers: dict[str, int] = {}
    for key, text in filters.items():
        if key == "type":
            numbers[key] = TYPES[text]
        elif key == "correlation_id":
            numbers[key] = correlation_digest(text)
        elif (number := names.find(connection, text)) is None:
            return None
        else:
            numbers[key] = number
    driver = next((key for key in FACETS if key in numbers), None)
    columns = tuple(None if key == driver else numbers.get(key) for key in _COLUMNS)
    return Filter(columns, FACETS[driver] if driver else None, numbers[driver] if driver else None)


def select(
    connection: Connection,
    session: Segment,
    after: int,
    before: int,
    limit: int,
    where: Filter | None,
    scan: int,
) -> Rows:
    """The first `limit` matching rows of a segment after `after`, ascending."""
    if where is None:
        return Rows(fetch(connection, READ_PLAIN, (session.number, after, before, limit)), None)
    scan = where.scan(scan, limit)
    place = (session.number, after, before, limit, scan, *where.columns)
    if where.facet is None:
        rows = fetch(connection, READ_SCAN, place)
        ended = min(after + scan, before - 1)
        head = value(connection, SELECT_HEAD, (session.number,)) or session.after
        stopped = ended if len(rows) < limit and ended < min(head, before - 1) else None
        return Rows(rows, stopped)
    rows = fetch(connection, READ_POSTING, (*place, where.facet, where.name))
    return Rows(
        rows, _posting_end(connection, END_OF_READ, session, after, before, scan, where, len(rows) < limit)
    )


def select_last(
    connection: Connection,
    session: Segment,
    after: int,
    before: int,
    limit: int,
    where: Filter | None,
    scan: int,
) -> Rows:
    """The last `limit` matching rows of a segment before `before`, ascending."""
    if where is None:
        rows = fetch(connection, TAIL_PLAIN, (session.number, after, before, limit))
        return Rows(rows[::-1], None)
    scan = where.scan(scan, limit)
    place = (session.number, after, before, limit, scan, *where.columns)
    if where.facet is None:
        rows = fetch(connection, TAIL_SCAN, place)[::-1]
        head = value(connection, SELECT_HEAD, (session.number,)) or session.after
        ended = min(before - 1, head) - scan + 1
        return Rows(rows, ended if len(rows) < limit and ended > after + 1 else None)
    rows = fetch(connection, TAIL_POSTING, (*place, where.facet, where.name))[::-1]
    return Rows(
        rows, _posting_end(connection, END_OF_TAIL, session, after, before, scan, where, len(rows) < limit)
    )


def _posting_end(
    connection: Connection,
    sql: str,
    session: Segment,
    after: int,
    before: int,
    scan: int,
    where: Filter,
    short: bool,
) -> int | None:
    if not short or where.is_posting_alone:
        return None
    looked_at, last = fetch(connection, sql, (session.number, after, before, scan, where.facet, where.name))[
        0
    ]
    found: int | None = last
    return found if looked_at >= scan else None


class Opener:
    """Turns rows into events: reads their keys, opens what is sealed."""

    def __init__(self, keystore: Keystore, store_id: bytes, database: Database) -> None:
        self.keystore, self._store_id, self._database = keystore, store_id, database

    def events(self, session: str, rows: Sequence[Row]) -> list[Event]:
        """One event for each row; a payload that cannot be read is a value."""
        payloads = self.payloads(session, rows)
        return [Event(row[2], payload) for row, payload in zip(rows, payloads, strict=True)]

    def payloads(self, session: str, rows: Sequence[Row]) -> list[Payload]:
        """The payload answer of each row."""
        keys = iter(self.keystore.ciphers([row[3] for row in rows if row[3] is not None]))
        open_one = sealing.PayloadSeals(self._store_id, session).open
        answers: list[Payload] = []
        for row in rows:
            seq, event_id, _, slot, sealed = row
            if slot is None:
                answers.append(Corrupt())
                continue
            key = next(keys)
            if sealed and isinstance(key, sealing.Cipher):
                try:
                    answers.append(Live(open_one(key, sealed, event_id, seq, slot)))
                except sealing.SealBroken:
                    answers.append(Corrupt())
            else:
                answers.append(self._open(session, row, key)[0])
        return answers

    def payload_and_salt(self, session: str, row: Row) -> tuple[Payload, bytes]:
        """The payload answer of one row and the salt of its commitment, empty unless it is live."""
        if row[3] is None:
            return Corrupt(), b""
        return self._open(session, row, self.keystore.read([row[3]])[0])

    def _open(self, session: str, row: Row, key: bytes | sealing.Cipher | Payload) -> tuple[Payload, bytes]:
        """What `open` gives; of a wiped payload, whatever an older keystore has in its slot, what the tombstone says."""
        if row[4] == b"" and not isinstance(key, Erased):
            return self._buried(row[1]) or self.open(session, row, key)[0], b""
        return self.open(session, row, key)

    def _buried(self, event_id: bytes) -> Erased | None:
        with self._database.read() as connection:
            for by, at, reason in fetch(connection, SELECT_BURIED, (event_id,)):
                if by is not None:
                    return Erased(id_text(by), _instant(at), REASON_NAMES.get(reason, "unknown"))
        return None

    def open(self, session: str, row: Row, key: bytes | sealing.Cipher | Payload) -> tuple[Payload, bytes]:
        """The payload answer of a row whose slot holds `key`, and the salt of its commitment."""
        if not isinstance(key, bytes | sealing.Cipher):
            return key, b""
        seq, event_id, _, slot, sealed = row
        bound_to = sealing.place(self._store_id, event_id, session, seq, slot or 0, 0)
        try:
            salt, content = sealing.unseal(key, sealed or b"", bound_to)
        except sealing.SealBroken:
            return Corrupt(), b""
        return Live(content), salt


def _instant(microseconds: int) -> str:
    """RFC 3339; a changed row may say anything, and is then the epoch."""
    try:
        return from_microseconds(microseconds // 1000 * 1000)  # as the slot has it
    except OverflowError:
        return from_microseconds(0)


def event_by_id(database: Database, opener: Opener, event_id: str, tenant: str | None) -> Event:
    """The event whose id begins with these 8 to 32 hex digits, among those of one tenant if one is given.

    Raises UnknownReference, SessionRemoved, InvalidEvent.
    """
    digits = event_id.replace("-", "").lower()
    if not _ID_DIGITS.fullmatch(digits):
        raise UnknownReference("id", event_id)
    first, last = (bytes.fromhex(digits.ljust(32, fill)) for fill in "0f")
    with database.read() as connection:
        found = fetch(connection, SELECT_BY_PREFIX, (first, last, tenant))
        if len(found) == 1:
            require_there(connection, found[0][-1])
    if not found:
        raise UnknownReference("id", event_id)
    if len(found) > 1:
        raise InvalidEvent("/id", f"several event ids begin with {event_id}; give more of it")
    *row, session, _ = found[0]
    return opener.events(session, [row])[0]
