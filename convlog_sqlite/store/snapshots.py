"""Folded states, sealed, to start from instead of from the beginning. Owns the table `snapshot`.

A snapshot is disposable. It has a slot of its own, so that it dies in the same step as the content it was
made from: an erasure destroys the slots of every snapshot that covers what it erases, forks' too, and one
is kept only if no erasure began since the fold started reading. What does not open is as good as not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from convlog_sqlite import sealing, strictjson
from convlog_sqlite.database import Connection, Database, fetch, value
from convlog_sqlite.keystore import SLOT_BYTES, Keystore
from convlog_sqlite.store.rows import INSERT_SLOT
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.store.writing import HIGHEST_SLOT

FORMAT: Final = 1

SELECT_SNAPSHOTS: Final = """
SELECT seq, slot, sealed FROM snapshot WHERE session = ? AND projection = ? AND version = ? AND seq <= ?
ORDER BY seq DESC LIMIT 2"""
SELECT_NEWER: Final = """
SELECT 1 FROM snapshot WHERE session = ? AND projection = ? AND version = ? AND seq >= ?"""
SELECT_OTHERS: Final = "SELECT id, slot FROM snapshot WHERE session = ? AND projection = ? AND id <> ?"
INSERT_SNAPSHOT: Final = """
INSERT INTO snapshot (session, seq, projection, version, slot, sealed) VALUES (?, ?, ?, ?, ?, ?) RETURNING id"""
DELETE_SNAPSHOT: Final = "DELETE FROM snapshot WHERE id = ?"
SELECT_ERASED_FROM: Final = """
SELECT v.session, min(v.seq) FROM intent_event AS i CROSS JOIN envelope AS v ON v.pos = i.pos
WHERE i.intent = ? GROUP BY v.session"""
SELECT_COVERING: Final = "SELECT id, slot FROM snapshot WHERE session = ? AND seq >= ?"
SELECT_FORKS: Final = "SELECT session FROM fork WHERE parent = ? AND base >= ?"
SELECT_GENERATION: Final = """
SELECT coalesce(max(redaction), 0), EXISTS (SELECT 1 FROM intent WHERE state = 1) FROM tombstone"""

_NO_EVENT: Final = 0  # a slot belongs to a position; that of a snapshot to none


class Generation(NamedTuple):
    """How far erasure has come: the position of the newest redaction, and whether one is under way."""

    redaction: int
    is_erasing: bool


def generation(connection: Connection) -> Generation:
    """The generation of erasure that this transaction sees."""
    ((redaction, is_erasing),) = fetch(connection, SELECT_GENERATION)
    return Generation(redaction, bool(is_erasing))


@dataclass(frozen=True, slots=True)
class Subject:
    """What a snapshot is of."""

    session: SessionRow
    projection: str
    version: int

    @property
    def key(self) -> tuple[int, str, int]:
        """The columns that name it."""
        return self.session.number, self.projection, self.version


class Snapshots:
    """The snapshots of one open store. Safe to use from several threads."""

    def __init__(self, database: Database, keystore: Keystore, store_id: bytes) -> None:
        self._database, self._keystore, self._store_id = database, keystore, store_id

    def newest(self, subject: Subject, upto: int) -> tuple[int, Any] | None:
        """The (seq, state) of the newest snapshot at or before seq `upto` that opens."""
        with self._database.read() as connection:
            rows = fetch(connection, SELECT_SNAPSHOTS, (*subject.key, upto))
        for (seq, slot, sealed), key in zip(
            rows, self._keystore.read([slot for _, slot, _ in rows]), strict=True
        ):
            if not isinstance(key, bytes):
                continue
            try:
                _, content = sealing.unseal(key, sealed, self._bound_to(subject, seq, slot))
                said = strictjson.load(content)
            except (sealing.SealBroken, ValueError):
                continue
            if said["format"] == FORMAT:
                return seq, said["state"]
        return None

    def keep(self, subject: Subject, seq: int, state: Any, read_under: Generation) -> bool:
        """Keep the state at `seq` and drop what was kept before.

        False where a newer one stands, or an erasure began since the fold read. Raises StoreError.
        """
        if read_under.is_erasing:
            return False
        ((slot, key),) = self._keystore.take(1, self._highest_slot)
        content = strictjson.dump({"format": FORMAT, "state": state})
        bound_to = self._bound_to(subject, seq, slot)
        sealed = sealing.seal(key, content, bound_to, os.urandom(sealing.SALT_BYTES))
        with self._database.write() as connection:
            self._keystore.check_usable()
            if generation(connection) != read_under or fetch(connection, SELECT_NEWER, (*subject.key, seq)):
                return False
            session, projection, version = subject.key
            row = (session, seq, projection, version, slot, sealed)
            connection.execute(INSERT_SLOT, (slot, _NO_EVENT, 1))
            kept = value(connection, INSERT_SNAPSHOT, row)
            others = fetch(connection, SELECT_OTHERS, (session, projection, kept))
        self._drop(others)
        return True

    def forget(self, subject: Subject) -> None:
        """Drop every snapshot of a projection of a session. Raises StoreError."""
        with self._database.read() as connection:
            found = fetch(connection, SELECT_OTHERS, (subject.session.number, subject.projection, 0))
        self._drop(found)

    def _drop(self, found: Sequence[tuple[int, int]]) -> None:
        """Keys first: a row without its key says nothing, a key without its row could not be found again."""
        if found:
            self._keystore.destroy({slot: bytes(SLOT_BYTES) for _, slot in found})
            with self._database.write() as connection:
                drop(connection, [number for number, _ in found])

    def _bound_to(self, subject: Subject, seq: int, slot: int) -> bytes:
        where = f"{subject.session.name}\0{subject.projection}"
        return sealing.place(self._store_id, bytes(16), where, seq, slot, subject.version)

    def _highest_slot(self) -> int:
        with self._database.read() as connection:
            highest: int = value(connection, HIGHEST_SLOT)
        return highest


def covering(connection: Connection, intent_id: bytes) -> list[tuple[int, int]]:
    """(id, slot) of every snapshot that covers an event which an intent erases."""
    found: list[tuple[int, int]] = []
    for session, seq in fetch(connection, SELECT_ERASED_FROM, (intent_id,)):
        for number in _with_forks(connection, session, seq):
            found += fetch(connection, SELECT_COVERING, (number, seq))
    return found


def _with_forks(connection: Connection, session: int, seq: int) -> Iterator[int]:
    """The session and every fork that inherited what stands at `seq`, forks of forks too."""
    yield session
    for (fork,) in fetch(connection, SELECT_FORKS, (session, seq)):
        yield from _with_forks(connection, fork, seq)


def drop(connection: Connection, ids: Sequence[int]) -> None:
    """Forget snapshots whose keys are destroyed."""
    connection.executemany(DELETE_SNAPSHOT, [(number,) for number in ids])
