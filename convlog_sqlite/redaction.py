"""redact: make content unreadable for good, everywhere the store knows of, and leave the record that it was.

Synchronous: when `redact` returns, the keys are gone from the disk, the sealed bytes are wiped, and every
registered plaintext file that could be reached was written anew and its old bytes overwritten. What could
not be reached is named, and the erasure stays pending until a later call has done it. What a crash left
half done is finished by the next handle that opens the store for writing, or that has it open and appends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from convlog_sqlite.database import BUSY_SECONDS, Database
from convlog_sqlite.drafts import Draft, check_name
from convlog_sqlite.errors import (
    ConvlogError,
    FilesLeft,
    InvalidEvent,
    NotAStore,
    StoreBusy,
    StoreError,
    UnknownReference,
)
from convlog_sqlite.events import Erased
from convlog_sqlite.instants import Clock, id_text
from convlog_sqlite.locks import FileLock
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.residue import SEARCHED_EVENTS, Mark, Residue, marks_of, search
from convlog_sqlite.retention import Rules
from convlog_sqlite.store import copies, opening
from convlog_sqlite.store.emptying import Emptier
from convlog_sqlite.store.erasing import Decision, Eraser, Intent, Scope, has_intents, newest_slots
from convlog_sqlite.store.expiring import Due, Expiry
from convlog_sqlite.store.fences import FENCE_KEY
from convlog_sqlite.store.lapsing import Lapsing
from convlog_sqlite.store.preparing import Prepared, prepare, subject_digest
from convlog_sqlite.store.removing import Removals, Ruling
from convlog_sqlite.vocabulary import FENCE_KIND, REASONS, STORE_SESSION

LOCK: Final = "log.erase"
SCOPES: Final = ("event", "session", "task", "agent", "subject")


@dataclass(slots=True)
class Redaction:
    """What a redaction did. Events `matched` are `erased`, `already` erased, `held`, or `protected` (redactions
    themselves and the store's own session). `unreachable` files may still hold the content. Where retention
    was applied, `policies` counts the erased events by policy, written `id@version`; `removed` names the closed
    sessions that were removed whole, each with its policy, and `kept` those that are due and stay, each with what
    needs it: open-call, open-effect, fork, hold, min-age or erasure-pending. `readings` counts by
    policy what is no longer known to have been read. `derived` of the erased ones are claims and proposed claims
    that went with their evidence, `derived_kept` are those that stay though it went. `residue` is what a search of
    every file found of them afterwards, None where none was asked for.
    """

    matched: int = 0
    erased: int = 0
    already: int = 0
    protected: int = 0
    dry_run: bool = False
    redactions: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    wal_truncated: bool = True
    held: int = 0
    policies: dict[str, int] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    readings: dict[str, int] = field(default_factory=dict)
    derived: int = 0
    derived_kept: int = 0
    residue: list[Residue] | None = None

    @property
    def complete(self) -> bool:
        """Whether no file that the store knows of holds the content any more."""
        return not self.unreachable and not self.residue

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        keys = (
            "matched",
            "erased",
            "already",
            "held",
            "protected",
            "derived",
            "derived_kept",
            "policies",
            "removed",
            "kept",
            "readings",
            "dry_run",
            "redactions",
            "unreachable",
            "wal_truncated",
        )
        said = {key: getattr(self, key) for key in keys} | {"complete": self.complete}
        return said if self.residue is None else said | {"residue": [asdict(one) for one in self.residue]}


Exporter = Callable[[Path], Mirror]

_log: Final = logging.getLogger("convlog_sqlite")


class Redactor:
    """Erases in one open store."""

    def __init__(self, store: opening.Store, clock: Clock, mirrors: Exporter) -> None:
        """`mirrors` makes the keeper of the files below a directory."""
        self._store, self._clock, self._mirrors = store, clock, mirrors

    def redact(
        self,
        scope: Scope,
        *,
        reason: str,
        by: str,
        dry_run: bool,
        override: Sequence[str] = (),
        fence: bool = False,
        verify: bool = False,
        keep_derived: bool = False,
    ) -> Redaction:
        """Erase what is in `scope`. See `ConversationLog.redact`."""
        check(scope, reason, by)
        fencing = self._fence(scope, by) if fence else None
        scope = self._keyed(scope)
        if dry_run:
            eraser = self._eraser(self._store.database)
            decision = eraser.look(scope, override, keep_derived=keep_derived)
            return _decided(decision, dry_run=True)
        self._store.keystore.check_usable()  # else the event that says what was erased could not be written
        with _Alone(self._store) as database:
            eraser = self._eraser(database)
            self._catch_up(eraser)
            decision, intents = eraser.intend(scope, by, reason, override, fencing, keep_derived=keep_derived)
            found = _decided(decision, dry_run=False)
            marks = self._marks(eraser, intents) if verify else None
            # What others left half done is finished too, and is not this caller's to hear of.
            of_others = [intent for intent in intents if not eraser.is_of(intent, scope.tenant)]
            self._finish(eraser, of_others, Redaction())
            self._finish(eraser, [intent for intent in intents if intent not in of_others], found)
            found.wal_truncated = database.truncate_wal()
            if marks is not None:
                found.residue = search(marks, self._places(database))
            return found

    def record_again(self, events: Sequence[str], *, reason: str, by: str, override: Sequence[str]) -> None:
        """Redact what an erasure has destroyed that a restored database does not know of.

        That erasure was complete, so no file holds the content, and none is written anew: a mirror that is ahead
        of the restored log is set aside as it is.
        """
        with _Alone(self._store) as database:
            eraser = self._eraser(database)
            # What went with them then is among them; what was kept then stays.
            scope = Scope("event", tuple(events))
            _, intents = eraser.intend(scope, by, reason, override, keep_derived=True)
            for intent in intents:
                eraser.erase(intent)
                eraser.settle(intent, eraser.copies_of(intent))

    def _marks(self, eraser: Eraser, intents: Sequence[Intent]) -> list[Mark]:
        marks: list[Mark] = []
        left = SEARCHED_EVENTS
        for intent in intents:
            for event_id, payload, keys in eraser.contents(intent, left):
                marks += marks_of(event_id, payload, keys)
                left -= 1
        return marks

    def _places(self, database: Database) -> list[Path]:
        """Every file and directory that the store knows of."""
        directory = self._store.directory
        if directory is None:
            return []
        with database.read() as connection:
            copied = [directory / path for path in copies.paths(connection)]
        return [directory, Path(self._store.keystore.path), *copied]

    def retain(self, *, by: str, dry_run: bool, keep_derived: bool = False) -> Redaction:
        """Erase what the retention policies say is due. See `ConversationLog.apply_retention`."""
        now = self._clock()
        if dry_run:
            going = self._removals(self._store.database, now).look()
            leaving = {session for session, ruling in going.items() if ruling.kept is None}
            due = self._expiry(self._store.database, now).look(leaving, keep_derived=keep_derived)
            planned = _of_due(due, going, dry_run=True)
            planned.readings = _by_policy(self._lapsing(self._store.database, now).look().policies)
            return planned
        self._store.keystore.check_usable()  # as above
        with _Alone(self._store) as database:
            eraser = self._eraser(database)
            self._catch_up(eraser)
            before = Redaction()
            self._finish(eraser, eraser.pending(), before)  # a session whose erasure is half done stays
            # Sessions first: of one that goes, no event needs to be erased by itself.
            going = self._removals(database, now).intend(by, "retention", now)
            due = self._expiry(database, now).intend(by, "retention", now, keep_derived=keep_derived)
            found = _of_due(due, going, dry_run=False)
            found.redactions, found.unreachable = before.redactions, before.unreachable
            self._finish(eraser, eraser.pending(), found)
            found.readings = _by_policy(self._lapsing(database, now).let_go(eraser.writer, by).policies)
            found.wal_truncated = database.truncate_wal()
            return found

    def _lapsing(self, database: Database, now: int) -> Lapsing:
        return Lapsing(database, self._store.writer.opener, lambda found: Rules.of(found, now // 1000))

    def _removals(self, database: Database, now: int) -> Removals:
        return Removals(database, self._store.writer.opener, lambda found: Rules.of(found, now // 1000))

    def _expiry(self, database: Database, now: int) -> Expiry:
        return Expiry(database, self._store.writer.opener, lambda found: Rules.of(found, now // 1000))

    def forget(self, root: Path) -> None:
        """Forget a directory of exports. See `ConversationLog.forget_export`."""
        with self._store.database.read() as connection:
            if str(root) not in copies.exports(connection):
                raise UnknownReference("export", str(root))
        with _Alone(self._store) as database, self._mirrors(root).withdrawn() as left:
            if left:
                raise FilesLeft(root, left)
            self._eraser(database).forget_place(str(root))

    def finish(self) -> bool:
        """Finish what a crash left half done, and destroy again what an older keystore brought back.

        Not while somebody else is at it: then False. Never raises a StoreError: a store where an erasure cannot be
        finished can be read and written, and the erasure stays pending; that is logged.
        """
        older = self._is_keystore_older()
        with self._store.database.read() as connection:
            if not older and not has_intents(connection):
                return True
        try:
            with _Alone(self._store, seconds=0) as database:
                eraser = self._eraser(database)
                if older:
                    eraser.destroy_again()
                self._finish(eraser, eraser.pending(), Redaction())
        except StoreBusy:
            return False  # a living redactor is at it
        except StoreError as error:
            _log.error("erasure: pending: %s", error)
        return True

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """While the block lasts no erasure begins, and none is decided whose keys are still there.

        Raises StoreBusy while a redactor is at it, StoreError when what is decided cannot be finished.
        """
        with _Alone(self._store) as database:
            eraser = self._eraser(database)
            self._catch_up(eraser)
            self._finish(eraser, eraser.pending(), Redaction())
            yield

    def pending(self) -> frozenset[bytes]:
        """What is decided and not done everywhere."""
        return frozenset(intent.id for intent in self._eraser(self._store.database).pending())

    def _catch_up(self, eraser: Eraser) -> None:
        """Before an erasure hides it: an older keystore may have been copied over the one that is open."""
        if self._is_keystore_older():
            eraser.destroy_again()

    def _is_keystore_older(self) -> bool:
        with self._store.database.read() as connection:
            slots = newest_slots(connection)
        return not all(isinstance(answer, Erased) for answer in self._store.keystore.read(slots))

    def _eraser(self, database: Database) -> Eraser:
        writer = self._store.writer
        own = writer if database is self._store.database else None
        return Eraser(database, self._store.keystore, writer.store_id, self._clock, own)

    def _finish(self, eraser: Eraser, intents: Sequence[Intent], found: Redaction) -> None:
        for intent in intents:
            if intent.removes:
                Emptier(eraser.writer).empty(intent)
            else:
                eraser.erase(intent)
            if id_text(intent.id) not in found.redactions:
                found.redactions.append(id_text(intent.id))
            rewritten = []
            for place in eraser.copies_of(intent):
                missed = self._rewrite(place, intent)
                if missed is None:
                    rewritten.append(place)
                elif missed not in found.unreachable:
                    found.unreachable.append(missed)
            eraser.settle(intent, rewritten)

    def _rewrite(self, place: str, intent: Intent) -> str | None:
        """Write a session's file in a registered place anew; its path when that could not be."""
        mirror = self._mirrors((self._store.directory or Path()) / place)
        path = str(mirror.path(intent.session))
        # A place that is not there may be on a disk that is not there. Not so the mirror: it is the store's own.
        if place != copies.OWN_MIRROR and not mirror.root.is_dir():
            return path
        try:
            mirror.rewrite(intent.session)
            if intent.removes and place == copies.OWN_MIRROR:
                mirror.after_append(STORE_SESSION)  # where the removal is recorded
        except (ConvlogError, OSError):
            return path
        finally:
            mirror.close()
        return None

    def _fence(self, scope: Scope, by: str) -> Prepared:
        if scope.kind != "subject":
            raise InvalidEvent("/fence", "goes with a subject")
        if self._store.directory is None:
            raise NotAStore(":memory:", "an ephemeral log keeps no fences")
        return fence_event(FENCE_KIND, scope.names[0], by, self._store.keystore.pepper)

    def _keyed(self, scope: Scope) -> Scope:
        if scope.kind != "subject":
            return scope
        pepper = self._store.keystore.pepper
        return replace(scope, names=tuple(subject_digest(pepper, name) for name in scope.names))


def fence_event(kind: str, name: str, by: str, pepper: bytes) -> Prepared:
    """The event that fences a person, or lifts the fence. It holds no content. Raises InvalidEvent."""
    state_key = FENCE_KEY.format(subject=subject_digest(pepper, name))
    return prepare(Draft(type="mutation", agent=by, kind=kind, subjects=[name], state_key=state_key), pepper)


def check(scope: Scope, reason: str, by: str) -> None:
    """Refuse a scope, reason or author that is none."""
    if scope.kind not in SCOPES:
        raise InvalidEvent("/scope", "one of " + ", ".join(SCOPES))
    if not scope.names:
        raise InvalidEvent(f"/{scope.kind}", "names nothing to erase")
    if reason not in REASONS:
        raise InvalidEvent("/reason", "one of " + ", ".join(REASONS))
    check_name(by, "/by")


def _decided(decision: Decision, *, dry_run: bool) -> Redaction:
    return Redaction(
        decision.matched,
        sum(map(len, decision.positions.values())),
        decision.already,
        decision.protected,
        dry_run=dry_run,
        derived=sum(decision.derived.values()),
        derived_kept=decision.kept,
    )


def _of_due(due: Due, going: Mapping[str, Ruling], *, dry_run: bool) -> Redaction:
    counts = due.policies.copy()
    removed, kept = {}, {}
    for session, ruling in sorted(going.items()):
        if ruling.kept is None:
            removed[session] = "{}@{}".format(*ruling.policy)
            counts[ruling.policy] += ruling.erasing
        else:
            kept[session] = ruling.kept
    policies = _by_policy(counts)
    erased = counts.total()
    return Redaction(
        erased + due.held,
        erased,
        dry_run=dry_run,
        held=due.held,
        policies=policies,
        removed=removed,
        kept=kept,
        derived=due.derived,
        derived_kept=len(due.kept),
    )


def _by_policy(counts: Mapping[tuple[str, int], int]) -> dict[str, int]:
    return {f"{name}@{version}": count for (name, version), count in sorted(counts.items()) if count}


class _Alone:
    """The erasure lock, and a database at full durability whatever the handle's own is."""

    def __init__(self, store: opening.Store, seconds: float = BUSY_SECONDS) -> None:
        self._store, self._seconds = store, seconds
        self._lock: FileLock | None = None
        self._database = store.database

    def __enter__(self) -> Database:
        store = self._store
        if store.directory is None:
            return store.database
        self._lock = FileLock(store.directory / LOCK)
        try:
            if not self._lock.try_acquire():
                if not self._seconds:
                    raise StoreBusy(self._lock.path)
                self._lock.acquire(self._seconds)
            path, gate = store.database.path, store.gate
            self._database = Database(path, durability="full", read_only=False, gate=gate)
        except BaseException:  # an interrupt too must not leave the erasure lock held
            self._lock.close()
            raise
        return self._database

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._database.close()
            self._lock.close()
