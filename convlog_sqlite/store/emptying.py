"""What goes of a session that is removed, block by block, and what stays.

Its envelopes stay as position, id, commitment, leaf and chain, without their bytes: so every chain verifies,
and no second import brings anything back. So do the digests of idempotency keys, the effects and their keys,
the slots, the tombstones, and the session's id. All other rows of it go. The database lets them go only
while the intent to remove the session stands.

A block is one transaction: appenders to other sessions wait for one at most. Each may be done again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.drafts import Draft
from convlog_sqlite.keystore import Keystore, erasure_record
from convlog_sqlite.store import lapsing
from convlog_sqlite.store.committing import Writer
from convlog_sqlite.store.erasing import DECIDED, Intent, bury, wipe_sealed, wiped
from convlog_sqlite.store.preparing import Prepared, prepare
from convlog_sqlite.store.reading import SELECT_POS
from convlog_sqlite.vocabulary import REASON_NAMES, REMOVED_KIND, STORE_SESSION

BLOCK: Final = 500  # events in one transaction: some milliseconds under the write lock

SELECT_BLOCK: Final = """
SELECT e.seq, e.pos, p.slot FROM event AS e LEFT JOIN payload AS p ON p.pos = e.pos
WHERE e.session = ?1 AND e.seq > ?2 ORDER BY e.seq LIMIT ?3"""
# ?1 session  ?2 first seq  ?3 last seq
SELECT_BLOBS: Final = """
SELECT b.pos, b.part, b.slot FROM event AS e CROSS JOIN blob AS b ON b.pos = e.pos
WHERE e.session = ?1 AND e.seq BETWEEN ?2 AND ?3"""
SELECT_REMOVAL_END: Final = "SELECT events, chain FROM removal WHERE session = ?"
SELECT_SNAPSHOT_SLOTS: Final = "SELECT slot FROM snapshot WHERE session = ?"
DELETE_PAYLOAD: Final = "DELETE FROM payload WHERE pos = ?"
DELETE_LINKS: Final = "DELETE FROM link WHERE pos = ?"
DELETE_LEASE: Final = "DELETE FROM lease WHERE pos = ?"
EMPTY_ENVELOPE: Final = "UPDATE envelope SET bytes = x'' WHERE pos = ?"
DELETE_EVENTS: Final = "DELETE FROM event WHERE session = ?1 AND seq BETWEEN ?2 AND ?3"
DELETE_PURPOSES: Final = "DELETE FROM purpose WHERE session = ?1 AND seq BETWEEN ?2 AND ?3"
DELETE_LABELS: Final = "DELETE FROM label WHERE session = ?1 AND seq BETWEEN ?2 AND ?3"
DELETE_POSTINGS: Final = """
DELETE FROM posting WHERE (session, facet, name, seq) IN (
    SELECT session, facet, name, seq FROM posting WHERE session = ?1 LIMIT ?2) RETURNING 1"""
DELETE_STATES: Final = "DELETE FROM state_head WHERE session = ?"
DELETE_SNAPSHOTS: Final = "DELETE FROM snapshot WHERE session = ?"

_POSTINGS: Final = 4 * BLOCK


@dataclass(frozen=True, slots=True)
class Block:
    """Some events of a session: (seq, pos, slot) of each, and (pos, part, slot) of their blobs."""

    events: list[tuple[int, int, int | None]]
    blobs: list[tuple[int, int, int]]

    @property
    def slots(self) -> list[int]:
        """Every slot that holds a key to them."""
        own = [slot for *_, slot in self.events if slot is not None]
        return own + [slot for *_, slot in self.blobs]


def _block(connection: Connection, session: int, after: int) -> Block:
    """The first events of a session behind seq `after`; an empty one at its end."""
    events: list[Any] = fetch(connection, SELECT_BLOCK, (session, after, BLOCK))
    if not events:
        return Block([], [])
    return Block(events, fetch(connection, SELECT_BLOBS, (session, events[0][0], events[-1][0])))


def _delete(connection: Connection, session: int, found: Block) -> None:
    positions = [(pos,) for _, pos, _ in found.events]
    for sql in (DELETE_PAYLOAD, DELETE_LINKS, DELETE_LEASE, EMPTY_ENVELOPE):
        connection.executemany(sql, positions)
    for sql in (DELETE_EVENTS, DELETE_PURPOSES, DELETE_LABELS):
        connection.execute(sql, (session, found.events[0][0], found.events[-1][0]))


class Emptier:
    """Removes sessions that are decided to go. The caller holds the erasure lock."""

    def __init__(self, writer: Writer) -> None:
        self._database, self._keystore, self._writer = writer.database, writer.keystore, writer

    def empty(self, intent: Intent) -> None:
        """Destroy the keys, record the removal, let the rows go: then the session is gone from the store."""
        if intent.state != DECIDED:
            return
        self._destroy_keys(intent)
        removal = self._record_removal(intent)
        while self._remove_block(intent, removal):
            pass

    def _destroy_keys(self, intent: Intent) -> None:
        number, after = intent.number, 0
        record = erasure_record(intent.id, intent.at // 1000, intent.reason)
        with self._database.read() as connection:
            slots = [slot for (slot,) in fetch(connection, SELECT_SNAPSHOT_SLOTS, (number,))]
        self._keystore.destroy(dict.fromkeys(slots, record))
        while True:
            with self._database.read() as connection:
                found = _block(connection, number, after)
            if not found.events:
                return
            self._keystore.destroy(dict.fromkeys(found.slots, record))
            after = found.events[-1][0]

    def _record_removal(self, intent: Intent) -> int:
        """The position of the event that says that a session is removed; a crash may have come behind it."""
        try:
            with self._database.write() as connection:
                pos: int | None = value(connection, SELECT_POS, (intent.id,))
                if pos is None:
                    record = _record_of(connection, intent, self._keystore)
                    pos = self._writer.record_inside(connection, STORE_SESSION, record)
                return pos
        finally:
            self._writer.forget_heads()

    def _remove_block(self, intent: Intent, removal: int) -> bool:
        """Let some rows of a session go, in one transaction. False when that were the last."""
        with self._database.write() as connection:
            found = _block(connection, intent.number, 0)
            if found.events:
                wipe_sealed(connection, [(pos,) for _, pos, _ in found.events], found.blobs)
                bury(connection, intent, removal, [(pos, slot) for _, pos, slot in found.events])
                _delete(connection, intent.number, found)
                return True
            if fetch(connection, DELETE_POSTINGS, (intent.number, _POSTINGS)):
                return True
            if lapsing.remove_some(connection, intent.number):
                return True
            for sql in (DELETE_STATES, DELETE_SNAPSHOTS):
                connection.execute(sql, (intent.number,))
            wiped(connection, intent)
            return False


def _record_of(connection: Connection, intent: Intent, keystore: Keystore) -> Prepared:
    events, chain = fetch(connection, SELECT_REMOVAL_END, (intent.number,))[0]
    content = {
        "session": intent.session,
        "reason": REASON_NAMES[intent.reason],
        **strictjson.load(intent.detail.encode()),
        "events": events,
        "chain": chain.hex(),
    }
    draft = Draft(
        type="mutation",
        agent=intent.agent,
        kind=REMOVED_KIND,
        state_key=f"session/{intent.session}",
        value=content,
    )
    return prepare(draft, keystore.pepper, intent.id)
