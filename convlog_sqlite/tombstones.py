"""What `verify` asks about erased events and removed sessions: is all of it gone that the log says is, and only that?

Its rule `tombstone` is broken where a tombstone's slot, or that of a blob, does not hold the record of an
erasure; where a slot does and neither a tombstone nor a pending erasure says so, as after restoring an older
database; where a tombstone names no redaction event, another slot or another redaction than the slot does;
where sealed bytes were not wiped. By which redaction an event was erased is no finding: the event says it.

Where the log says that its database was restored, the last two are notes with the rule `restored`: a redaction event,
and what a removal erased that was erased before, cannot be redacted again.

Its rule `removal` is broken where rows, keys or plaintext of a removed session are there, where its chain does
not end as it did, and where no `session-removed` in `_store` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.events import Erased, Payload
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.vocabulary import REDACTION_KIND, RESTORED_THREAD, STORE_SESSION

SELECT_TOMBSTONES: Final = """
SELECT t.pos, t.slot, v.id, k.text, length(p.sealed) FROM tombstone AS t
LEFT JOIN payload AS p ON p.pos = t.pos LEFT JOIN envelope AS v ON v.pos = t.redaction
LEFT JOIN event AS e ON e.session = v.session AND e.seq = v.seq LEFT JOIN name AS k ON k.id = e.kind
WHERE t.pos BETWEEN ? AND ?"""
SELECT_INTENDED: Final = "SELECT pos FROM intent_event WHERE pos BETWEEN ? AND ?"
NEWEST_RESTORE: Final = """
SELECT e.pos FROM session AS s JOIN name AS n ON n.text = ?2
CROSS JOIN posting AS p ON p.session = s.id AND p.facet = 3 AND p.name = n.id
CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq
WHERE s.name = ?1 ORDER BY p.seq DESC LIMIT 1"""
SELECT_BLOB_SLOTS: Final = """
SELECT v.session, v.seq, s.number FROM slot AS s CROSS JOIN tombstone AS t ON t.pos = s.pos
CROSS JOIN envelope AS v ON v.pos = s.pos WHERE s.part > 0"""
HIGHEST_SLOT: Final = "SELECT coalesce(max(number), -1) FROM slot"
OF_NO_EVENT: Final = """
SELECT t.pos FROM tombstone AS t LEFT JOIN envelope AS v ON v.pos = t.pos WHERE v.pos IS NULL"""


PENDING_IN: Final = """
SELECT 1 FROM intent AS i JOIN session AS s ON s.id = i.session LEFT JOIN intent_copy AS c ON c.intent = i.id
WHERE s.name = ? AND (i.state = 1 OR c.path = ?)"""


SELECT_REMOVALS: Final = """
SELECT r.session, r.events, r.chain, s.base,
       EXISTS (SELECT 1 FROM intent AS i WHERE i.id = r.intent AND i.state = 1),
       EXISTS (SELECT 1 FROM envelope AS v CROSS JOIN session AS o ON o.id = v.session
               CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq
               CROSS JOIN name AS k ON k.id = e.kind
               WHERE v.id = r.intent AND o.name = '_store' AND k.text = 'session-removed'),
       EXISTS (SELECT 1 FROM posting AS p WHERE p.session = r.session)
       OR EXISTS (SELECT 1 FROM open_call AS c WHERE c.session = r.session)
       OR EXISTS (SELECT 1 FROM state_head AS h WHERE h.session = r.session)
       OR EXISTS (SELECT 1 FROM reading AS g WHERE g.session = r.session)
FROM removal AS r CROSS JOIN session AS s ON s.id = r.session"""


@dataclass(frozen=True, slots=True)
class Removal:
    """What the log says of a removed session. `chain` is where its chain ended, at seq `head`."""

    head: int
    chain: bytes
    is_pending: bool
    is_recorded: bool
    has_rows: bool

    def faults(self, answers: Sequence[bytes | Payload], *, has_rows: bool) -> list[str]:
        """What is wrong about one of its events, the slots of whose tombstone give `answers`."""
        if self.is_pending:
            return []
        found = ["the session is removed, but not all rows of this event"] if has_rows else []
        if not answers:
            found.append("the session is removed, but no tombstone says so of this event")
        elif not all(isinstance(answer, Erased) for answer in answers):
            found.append("the session is removed, but the slot does not say so: the key may be there")
        return found

    def whole_faults(self, head: int, chain: bytes) -> list[str]:
        """What is wrong about the session as a whole, whose events and chain end there."""
        if self.is_pending:
            return []
        found = [] if self.is_recorded else ["no session-removed says that it is removed"]
        if self.has_rows:
            found.append("it is removed, but the index still names it")
        if (head, chain) != (self.head, self.chain):
            found.append("it is removed, and does not end where it did")
        return found


def removals_in(connection: Connection) -> dict[int, Removal]:
    """The sessions that are removed, or being removed, by number."""
    return {
        number: Removal(base + events, chain, bool(pending), bool(recorded), bool(rows))
        for number, events, chain, base, pending, recorded, rows in fetch(connection, SELECT_REMOVALS)
    }


def removals(reader: Reader) -> dict[int, Removal]:
    """The sessions that are removed by now."""
    with reader.database.read() as connection:
        return removals_in(connection)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What one says. `redaction` is the id of an event, None where there is no such redaction event."""

    slot: int
    redaction: bytes | None
    is_wiped: bool


@dataclass(frozen=True, slots=True)
class Graves:
    """Tombstones and decided erasures of one page of events."""

    tombstones: dict[int, Tombstone]
    intended: frozenset[int]
    restored: int = 0  # position of the newest `store-restored`

    @classmethod
    def of_page(cls, connection: Connection, first: int, last: int) -> Graves:
        """Those of the events from position `first` to `last`."""
        found = {
            pos: Tombstone(slot, redaction if kind == REDACTION_KIND else None, not size)
            for pos, slot, redaction, kind, size in fetch(connection, SELECT_TOMBSTONES, (first, last))
        }
        intended = frozenset(pos for (pos,) in fetch(connection, SELECT_INTENDED, (first, last)))
        restored = value(connection, NEWEST_RESTORE, (STORE_SESSION, RESTORED_THREAD))
        return cls(found, intended, restored or 0)

    def notes(self, pos: int, key: bytes | Payload) -> list[str]:
        """What is worth knowing about an event: that what erased it is among what a restore undid."""
        if not isinstance(key, Erased) or pos in self.intended or pos >= self.restored:
            return []
        stone = self.tombstones.get(pos)
        if stone is not None and (stone.redaction is None or key.by == id_text(stone.redaction)):
            return []
        return [f"its key was destroyed by {key.by}, which the restore of an older database undid"]

    def faults(self, pos: int, slot: int, key: bytes | Payload) -> list[str]:
        """What is wrong about the erasure of an event; nothing for one that is not erased."""
        if pos not in self.tombstones:
            if isinstance(key, Erased) and pos not in self.intended and pos >= self.restored:
                unknown = f"the key was destroyed by redaction {key.by}, which this log does not have"
                return [f"{unknown}: was an older database restored? To redact the event again mends it"]
            return []
        stone = self.tombstones[pos]
        found = []
        if stone.slot != slot:
            found.append("the tombstone names another slot than the payload's")
        if stone.redaction is None:
            found.append("the tombstone names no redaction event")
        if not isinstance(key, Erased):
            found.append("erased, but the slot does not say so: its key may be there")
        elif stone.redaction is not None and key.by != id_text(stone.redaction) and pos >= self.restored:
            found.append("the tombstone and the slot name different redactions")
        if not stone.is_wiped:
            found.append("erased, but the sealed payload was not wiped")
        return found

    def slots(self, pos: int) -> list[int]:
        """The slot that the tombstone of the event at `pos` names, if it has one."""
        return [self.tombstones[pos].slot] if pos in self.tombstones else []

    def says(self, pos: int) -> bool:
        """Whether the event at `pos` has a tombstone."""
        return pos in self.tombstones


def live_blobs(reader: Reader) -> Iterator[tuple[int, int, str]]:
    """(session number, seq, what is wrong) for each blob of an erased event whose key may be there."""
    with reader.database.read() as connection:
        rows = fetch(connection, SELECT_BLOB_SLOTS)
    answers = reader.opener.keystore.read([slot for *_, slot in rows])
    for (session, seq, _), answer in zip(rows, answers, strict=True):
        if not isinstance(answer, Erased):
            yield session, seq, "erased, but the slot of a blob does not say so: its key may be there"


def is_pending(reader: Reader, session: str, place: str) -> bool:
    """Whether an erasure is decided that a session's file in a registered place may not show yet."""
    with reader.database.read() as connection:
        return bool(fetch(connection, PENDING_IN, (session, place)))


def is_short(reader: Reader) -> str | None:
    """What is wrong when the keystore ends before the last slot that the log uses; None when it does not."""
    slots = reader.opener.keystore.slots
    with reader.database.read() as connection:
        highest = value(connection, HIGHEST_SLOT)
    if highest < slots:
        return None
    return f"it ends before slot {slots}, the log uses slots up to {highest}: it was cut, or is an older copy"


def of_no_event(reader: Reader) -> list[int]:
    """Positions that tombstones name and no event has."""
    with reader.database.read() as connection:
        return [pos for (pos,) in fetch(connection, OF_NO_EVENT)]
