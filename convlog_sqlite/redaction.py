"""redact: make content unreadable for good, everywhere the store knows of, and leave the record that it was.

Synchronous: when `redact` returns, the keys are gone from the disk, the sealed bytes are wiped, and every
registered plaintext file that could be reached was written anew and its old bytes overwritten. What could
not be reached is named, and the erasure stays pending until a later call has done it. What a crash left
half done is finished by the next handle that opens the store for writing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from convlog_sqlite.database import BUSY_SECONDS, Database
from convlog_sqlite.drafts import check_name
from convlog_sqlite.errors import ConvlogError, InvalidEvent
from convlog_sqlite.instants import Clock, id_text
from convlog_sqlite.locks import FileLock
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.store import copies, opening
from convlog_sqlite.store.erasing import Eraser, Intent, Scope
from convlog_sqlite.store.preparing import subject_digest
from convlog_sqlite.vocabulary import REASONS

LOCK: Final = "log.erase"
SCOPES: Final = ("event", "session", "task", "agent", "subject")


@dataclass(slots=True)
class Redaction:
    """What a redaction did. Events `matched` are `erased`, `already` erased, or `protected` (redactions
    themselves and the store's own session). `unreachable` files may still hold the content.
    """

    matched: int = 0
    erased: int = 0
    already: int = 0
    protected: int = 0
    dry_run: bool = False
    redactions: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    wal_truncated: bool = True

    @property
    def complete(self) -> bool:
        """Whether no file that the store knows of holds the content any more."""
        return not self.unreachable

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        keys = (
            "matched",
            "erased",
            "already",
            "protected",
            "dry_run",
            "redactions",
            "unreachable",
            "wal_truncated",
        )
        return {key: getattr(self, key) for key in keys} | {"complete": self.complete}


Exporter = Callable[[Path], Mirror]


class Redactor:
    """Erases in one open store."""

    def __init__(self, store: opening.Store, clock: Clock, mirrors: Exporter) -> None:
        """`mirrors` makes the keeper of the files below a directory."""
        self._store, self._clock, self._mirrors = store, clock, mirrors

    def redact(self, scope: Scope, *, reason: str, by: str, dry_run: bool) -> Redaction:
        """Erase what is in `scope`. See `ConversationLog.redact`."""
        check(scope, reason, by)
        scope = self._keyed(scope)
        if dry_run:
            decision = self._eraser(self._store.database).look(scope)
            erased = sum(map(len, decision.positions.values()))
            return Redaction(decision.matched, erased, decision.already, decision.protected, dry_run=True)
        with _Alone(self._store) as database:
            eraser = self._eraser(database)
            decision, intents = eraser.intend(scope, by, reason)
            found = Redaction(decision.matched, 0, decision.already, decision.protected)
            self._finish(eraser, intents, found)
            found.erased = sum(map(len, decision.positions.values()))
            found.wal_truncated = database.truncate_wal()
            return found

    def finish(self) -> Redaction:
        """Finish what a crash left half done, unless somebody is at it."""
        found = Redaction()
        with _Alone(self._store) as database:
            eraser = self._eraser(database)
            self._finish(eraser, eraser.pending(), found)
        return found

    def _eraser(self, database: Database) -> Eraser:
        return Eraser(database, self._store.keystore, self._store.writer.store_id, self._clock)

    def _finish(self, eraser: Eraser, intents: Sequence[Intent], found: Redaction) -> None:
        for intent in intents:
            eraser.erase(intent)
            found.redactions.append(id_text(intent.id))
            missed = self._rewrite(intent.session)
            found.unreachable += [path for path in missed if path not in found.unreachable]
            if not missed:
                eraser.forget(intent)

    def _rewrite(self, session: str) -> list[str]:
        """Write every registered file of a session anew; those that could not be."""
        directory = self._store.directory
        if directory is None:
            return []
        with self._store.database.read() as connection:
            registered = copies.all_copies(connection, directory)
        missed = []
        for kind, root in registered:
            if kind == copies.EXPORT and not root.is_dir():
                missed.append(str(root / session))
                continue
            mirror = self._mirrors(root)
            try:
                mirror.rewrite(session)
            except (ConvlogError, OSError):
                missed.append(str(mirror.path(session)))
            finally:
                mirror.close()
        return missed

    def _keyed(self, scope: Scope) -> Scope:
        if scope.kind != "subject":
            return scope
        pepper = self._store.keystore.pepper
        return Scope("subject", tuple(subject_digest(pepper, name) for name in scope.names))


def check(scope: Scope, reason: str, by: str) -> None:
    """Refuse a scope, reason or author that is none."""
    if scope.kind not in SCOPES:
        raise InvalidEvent("/scope", "one of " + ", ".join(SCOPES))
    if not scope.names:
        raise InvalidEvent(f"/{scope.kind}", "names nothing to erase")
    if reason not in REASONS:
        raise InvalidEvent("/reason", "one of " + ", ".join(REASONS))
    check_name(by, "/by")


class _Alone:
    """The erasure lock, and a database at full durability whatever the handle's own is."""

    def __init__(self, store: opening.Store) -> None:
        self._store = store
        self._lock: FileLock | None = None
        self._database = store.database

    def __enter__(self) -> Database:
        store = self._store
        if store.directory is None:
            return store.database
        self._lock = FileLock(store.directory / LOCK)
        try:
            self._lock.acquire(BUSY_SECONDS)
        except BaseException:
            self._lock.close()
            raise
        self._database = Database(store.database.path, durability="full", read_only=False, gate=store.gate)
        return self._database

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._database.close()
            self._lock.close()
