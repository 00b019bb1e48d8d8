"""What `verify` asks about erased events: is the key gone where the log says so, and only there?

Its rule `tombstone` is broken where a tombstone's slot, or that of a blob, does not hold the record of an
erasure; where a slot does and neither a tombstone nor a pending erasure says so, as after restoring an older
database; where a tombstone names no redaction event, another slot or another redaction than the slot does;
where sealed bytes were not wiped. By which redaction an event was erased is no finding: the event says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.events import Erased, Payload
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.vocabulary import REDACTION_KIND

SELECT_TOMBSTONES: Final = """
SELECT t.pos, t.slot, v.id, k.text, length(p.sealed) FROM tombstone AS t
LEFT JOIN payload AS p ON p.pos = t.pos LEFT JOIN envelope AS v ON v.pos = t.redaction
LEFT JOIN event AS e ON e.session = v.session AND e.seq = v.seq LEFT JOIN name AS k ON k.id = e.kind
WHERE t.pos BETWEEN ? AND ?"""
SELECT_INTENDED: Final = "SELECT pos FROM intent_event WHERE pos BETWEEN ? AND ?"
SELECT_BLOB_SLOTS: Final = """
SELECT v.session, v.seq, s.number FROM slot AS s CROSS JOIN tombstone AS t ON t.pos = s.pos
CROSS JOIN envelope AS v ON v.pos = s.pos WHERE s.part > 0"""
HIGHEST_SLOT: Final = "SELECT coalesce(max(number), -1) FROM slot"
OF_NO_EVENT: Final = """
SELECT t.pos FROM tombstone AS t LEFT JOIN envelope AS v ON v.pos = t.pos WHERE v.pos IS NULL"""


PENDING_IN: Final = """
SELECT 1 FROM intent AS i JOIN session AS s ON s.id = i.session LEFT JOIN intent_copy AS c ON c.intent = i.id
WHERE s.name = ? AND (i.state = 1 OR c.path = ?)"""


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

    @classmethod
    def of_page(cls, connection: Connection, first: int, last: int) -> Graves:
        """Those of the events from position `first` to `last`."""
        found = {
            pos: Tombstone(slot, redaction if kind == REDACTION_KIND else None, not size)
            for pos, slot, redaction, kind, size in fetch(connection, SELECT_TOMBSTONES, (first, last))
        }
        return cls(found, frozenset(pos for (pos,) in fetch(connection, SELECT_INTENDED, (first, last))))

    def faults(self, pos: int, slot: int, key: bytes | Payload) -> list[str]:
        """What is wrong about the erasure of an event; nothing for one that is not erased."""
        if pos not in self.tombstones:
            if isinstance(key, Erased) and pos not in self.intended:
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
        elif stone.redaction is not None and key.by != id_text(stone.redaction):
            found.append("the tombstone and the slot name different redactions")
        if not stone.is_wiped:
            found.append("erased, but the sealed payload was not wiped")
        return found

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
