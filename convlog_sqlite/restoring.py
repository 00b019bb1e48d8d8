"""restore: put the database of a backup in place of a store's, or make a store of it where there is none.

The keystore that is in place stays: it knows every erasure, so what was erased since the backup stays erased. Only
where there is no store does the copy of the keys that was made with the backup come with it.

Nobody else has the store open meanwhile. What is to come is built aside as `log.db.restoring` and takes the name
`log.db` in one step: a crash leaves the old database or the new one. The old one is kept as `log.db.before-…`,
from which it can be restored in turn, and so are mirror files that the new one does not have the lines of.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from convlog_sqlite import copying, discovery, files, rekeying, schema
from convlog_sqlite.backing import keys_of
from convlog_sqlite.copying import Checked, Progress, silent
from convlog_sqlite.database import BUSY_SECONDS, Database
from convlog_sqlite.drafts import Draft, check_name
from convlog_sqlite.errors import (
    BackupUnusable,
    ConvlogError,
    ErasurePending,
    KeystoreOlder,
    NotAStore,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreIOError,
    StoreReplaced,
    os_errors,
)
from convlog_sqlite.events import Erased, Lost
from convlog_sqlite.filesystem import (
    check_filesystem,
    check_platform,
    make_private_directory,
    sync,
    sync_directory,
)
from convlog_sqlite.gate import WriterGate
from convlog_sqlite.instants import Clock, id_text, system_clock
from convlog_sqlite.kek import KeySource
from convlog_sqlite.keystore import Keystore
from convlog_sqlite.log import ConversationLog
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.rewriting import FILE_NAME
from convlog_sqlite.store import copies, opening, replacing
from convlog_sqlite.store.committing import Writer
from convlog_sqlite.store.preparing import prepare
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.vocabulary import RESTORED_KIND, RESTORED_THREAD, STORE_SESSION

KEPT: Final = "log.db.before-"
_ASIDE: Final = "log.db.restoring"
_STATE_KEY: Final = "store/database"
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did, or with `dry_run` would do.

    The store at `path` has `events` again. `undone` counts those of the replaced database that the backup does not
    have, None where it could not be read. Of the backup's events, `erased` were erased since and stay so; of `lost`
    the keystore in place has no key. `decisions` counts by kind what stood in `_store` and is undone: holds, fences and
    policies have to be decided again. `kept` is the replaced database, `set_aside` are mirror files that it had
    written, `keys` is the copy of the keystore that was put in place, where there was none.
    """

    path: str
    backup: str
    store: str
    events: int
    chain: str
    undone: int | None
    erased: int
    lost: int
    decisions: dict[str, int] = field(default_factory=dict)
    kept: str | None = None
    set_aside: list[str] = field(default_factory=list)
    keys: str | None = None
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


def restore(
    backup: str | Path,
    store: str | Path | None = None,
    *,
    keys: str | Path | None = None,
    by: str,
    discard: bool = False,
    dry_run: bool = False,
    kek: KeySource | None = None,
    progress: Progress = silent,
    clock: Clock = system_clock,
) -> Restored:
    """Put a backup in the place of a store's database; the store is found as `ConversationLog.open` finds it.

    Where there is no store one is made of it: with the keystore at `keys`, which stays where it is, else with the
    copy that was made with the backup. With `discard` the replaced database is not kept. A dry run changes nothing.
    It is recorded in `_store` as a mutation `store-restored` of agent `by`.

    Raises BackupUnusable for a backup that is damaged, of another store, or without keys where keys are needed;
    StoreBusy while any handle is open, with the process that has it as `holder`; ErasurePending while an erasure
    is not done everywhere; KeystoreLocked and its kin, NotAStore, SchemaTooNew, InvalidEvent, StoreError.
    """
    check_platform()
    check_name(by, "/by")
    source = Path(backup).absolute()
    directory = Path(store).absolute() if store is not None else discovery.find() or discovery.default()
    found = copying.check(source, progress)
    if found.problems:
        raise BackupUnusable(source, "damaged", f"the backup is damaged: {found.problems[0]}", found.problems)
    kek = kek or KeySource.environment()
    given = None if keys is None else Path(keys).absolute()
    work = _Work(source, found, directory, given, by, kek, progress, clock)
    done = (
        work.over(discard=discard, dry_run=dry_run)
        if opening.exists(directory)
        else work.anew(dry_run=dry_run)
    )
    if not dry_run:
        # Opening it finishes what the backup says is pending, and tells it what became of its keystore.
        with ConversationLog.open(directory, create=False, keys=given, kek=kek, clock=clock) as log:
            _bring_up(log.mirror)
    return done


def _bring_up(mirror: Mirror) -> None:
    if mirror.enabled:
        with suppress(ConvlogError):  # it lags where it cannot be written
            mirror.update()


@dataclass(frozen=True, slots=True)
class _Current:
    """What is known of the database that is to be replaced; nothing where it is damaged."""

    undone: int | None
    exports: list[str]
    decisions: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Work:
    """One restore."""

    source: Path
    found: Checked
    directory: Path
    keys: Path | None
    by: str
    kek: KeySource | None
    progress: Progress
    clock: Clock

    def over(self, *, discard: bool, dry_run: bool) -> Restored:
        """Replace the database of the store that is there."""
        if not dry_run:
            self._finish()
        with opening.alone(self.directory), ExitStack() as held:
            current = self._look_at_current()
            keystore = held.enter_context(
                closing(self._keystore(self.keys or opening.keystore_of(self.directory)))
            )
            plan = replace(self._plan(keystore, dry_run=dry_run), undone=current.undone)
            kept = None if discard else self.directory / f"{KEPT}{self.clock()}"
            plan = replace(plan, decisions=current.decisions, kept=None if kept is None else str(kept))
            if dry_run:
                return plan
            aside, set_aside = self._build(keystore, plan, current.exports, kept)
            self._empty_wal()
            self._swap(aside, kept)
            return replace(plan, set_aside=set_aside)

    def _empty_wal(self) -> None:
        """Move the WAL of the database that is there into it: taken away alone, it would take commits with it."""
        path = self.directory / opening.DATABASE
        with suppress(StoreCorrupt, NotAStore):
            database = Database(str(path), durability="full", read_only=False, gate=None)
            with closing(database):
                if not database.truncate_wal():
                    raise StoreBusy(path, "another program is reading the database; try again")

    def anew(self, *, dry_run: bool) -> Restored:
        """Make a store of the backup where there is none."""
        opening.check_place(self.directory)
        place, copied = self._keys_for_new()
        with closing(self._keystore(copied or place)) as keystore:
            plan = self._plan(keystore, dry_run=dry_run)
            plan = replace(plan, keys=None if copied is None else str(place))
            if dry_run:
                return plan
            make_private_directory(self.directory)
            check_filesystem(self.directory)
        with ExitStack() as held:
            held.enter_context(opening.alone(self.directory))
            gate = held.enter_context(closing(WriterGate(self.directory / opening.GATE)))
            held.enter_context(gate.held(BUSY_SECONDS))
            held.enter_context(os_errors(self.directory))
            if opening.exists(self.directory):
                raise StoreReplaced(self.directory / opening.DATABASE, "a store was made here meanwhile")
            opening.point_to(self.directory, place)
            opening.keep_out_of_git(self.directory)
            if copied is not None:
                self._place_keys(copied, place)
            keystore = held.enter_context(closing(self._keystore(place)))
            aside, set_aside = self._build(keystore, plan, [], None)
            self._swap(aside, None)
        return replace(plan, set_aside=set_aside)

    def _finish(self) -> None:
        """What a redaction left half done is finished first: the backup may not know of it."""
        with suppress(StoreCorrupt, NotAStore):  # then there is nothing to be had from it
            ConversationLog.open(
                self.directory, create=False, keys=self.keys, kek=self.kek, clock=self.clock
            ).close()

    def _look_at_current(self) -> _Current:
        """What is lost with it. Raises BackupUnusable for a backup of another store, ErasurePending."""
        path = self.directory / opening.DATABASE
        try:
            with copying.looking(path) as connection:
                needs_upgrade = schema.check(connection, str(path))  # done by now, unless this is a dry run
                identity = schema.store_id(connection, str(path))
                pending = [] if needs_upgrade else replacing.pending(connection)
                with copying.looking(self.source) as backup:
                    common = replacing.common(connection, backup)
                undone, decisions = (
                    replacing.head(connection) - common,
                    replacing.decisions(connection, common),
                )
                found = _Current(undone, copies.exports(connection), decisions)
        except (StoreCorrupt, NotAStore):
            return _Current(None, [], {})
        if identity != self.found.store_id:
            raise self._foreign(id_text(identity))
        if pending:
            raise ErasurePending(self.directory, pending)
        return found

    def _foreign(self, here: str) -> BackupUnusable:
        rule = f"it is of store {id_text(self.found.store_id)}, and store {here} is at {self.directory}"
        return BackupUnusable(self.source, "foreign", rule)

    def _keystore(self, path: Path) -> Keystore:
        """The keystore to go with the backup, open. Raises KeystoreUnusable and its kin."""
        keystore = Keystore.open(path, self.found.store_id, kek=self.kek)
        try:
            keystore.require_master()
            if keystore.header.generation < self.found.known.generation:
                raise KeystoreOlder(path, keystore.header.generation, self.found.known.generation)
        except BaseException:
            keystore.close()
            raise
        return keystore

    def _keys_for_new(self) -> tuple[Path, Path | None]:
        """(where the keystore will be, what has to be copied there)."""
        place = self.keys or opening.keystore_of(self.directory)
        copied = keys_of(self.source)
        if place.exists():
            return place, None
        if copied.exists():
            return place, copied
        rule = f"no store is at {self.directory}, and the backup was made without keys: give the keystore with --keys"
        raise BackupUnusable(self.source, "keyless", rule)

    def _place_keys(self, copied: Path, place: Path) -> None:
        with os_errors(place), closing(self._keystore(copied)) as keystore:
            place.parent.mkdir(parents=True, exist_ok=True)
            aside = place.with_name(opening.keystore_aside_name(self.directory, place))
            files.destroy(aside)
            rekeying.write(aside, keystore.header, rekeying.copied(keystore))
            schema.link_into_place(aside, place)

    def _plan(self, keystore: Keystore, *, dry_run: bool) -> Restored:
        erased = lost = 0
        with copying.looking(self.source) as connection:
            for slots in replacing.standing_slots(connection):
                answers = keystore.read(slots)
                erased += sum(isinstance(answer, Erased) for answer in answers)
                lost += sum(isinstance(answer, Lost) for answer in answers)
        return Restored(
            str(self.directory),
            str(self.source),
            id_text(self.found.store_id),
            self.found.events,
            self.found.chain.hex(),
            0,
            erased,
            lost,
            dry_run=dry_run,
        )

    def _build(
        self, keystore: Keystore, plan: Restored, exports: list[str], kept: Path | None
    ) -> tuple[Path, list[str]]:
        """The database that is to come, whole and durable beside its place; and the mirror files that gave way to it."""
        aside = self.directory / _ASIDE
        copying.remove(aside)
        try:
            return aside, self._build_at(aside, keystore, plan, exports, kept)
        except BaseException:  # an interrupt too
            copying.remove(aside)
            raise

    def _build_at(
        self, aside: Path, keystore: Keystore, plan: Restored, exports: list[str], kept: Path | None
    ) -> list[str]:
        copying.copy(self.source, aside, self.progress)
        schema.use_wal(aside)
        database = Database(str(aside), durability="full", read_only=False, gate=None)
        try:
            with database.read() as connection:
                if replacing.head(connection) != self.found.events:
                    raise StoreIOError(aside, "the copy is not what the backup was")
            # Plaintext that the replaced database had exported is still there: an erasure must reach it.
            with database.write() as connection:
                for path in exports:
                    copies.register(connection, copies.EXPORT, path)
            writer = Writer(database, keystore, self.found.store_id, self.clock)
            set_aside = self._set_mirrors_aside(Reader(database, writer))
            writer.append(STORE_SESSION, None, [prepare(self._mutation(plan, kept), keystore.pepper)])
            if not database.truncate_wal():
                raise StoreIOError(aside, "its log could not be moved into it")
        finally:
            database.close()
        with os_errors(aside):
            descriptor = os.open(aside, os.O_RDONLY | os.O_NOFOLLOW)  # nobody has it open
            try:
                sync(descriptor)
            finally:
                os.close(descriptor)
        return set_aside

    def _mutation(self, plan: Restored, kept: Path | None) -> Draft:
        return Draft(
            type="mutation",
            agent=self.by,
            kind=RESTORED_KIND,
            state_key=_STATE_KEY,
            thread_id=RESTORED_THREAD,
            value={
                "pos": plan.events,
                "chain": plan.chain,
                "undone": plan.undone,
                "kept": None if kept is None else kept.name,
            },
        )

    def _set_mirrors_aside(self, reader: Reader) -> list[str]:
        """Mirror files whose last line the database that is to come does not have are kept, apart."""
        found = []
        root = self.directory / copies.OWN_MIRROR
        for path in sorted(root.glob(f"*/{FILE_NAME}")):
            session = path.parent.name
            with os_errors(path):
                if path.is_symlink() or not self._is_behind(reader, session, path):
                    aside = path.with_name(f"{FILE_NAME}{files.AHEAD}{self.clock()}")
                    path.rename(aside)
                    found.append(str(aside))
        return found

    def _is_behind(self, reader: Reader, session: str, path: Path) -> bool:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            line = files.last_line(descriptor)
        finally:
            os.close(descriptor)
        seq = None if line is None else files.seq_of(line)
        if line is None or seq is None or reader.find_session(session) is None:
            return line is None
        return seq <= reader.head(session) and next(reader.lines(session, seq - 1, seq + 1), None) == line

    def _swap(self, aside: Path, kept: Path | None) -> None:
        """Give the new database its name. What the old one's WAL held was moved into it, unless it is damaged."""
        current = self.directory / opening.DATABASE
        wal = current.with_name(current.name + "-wal")
        with os_errors(current):
            if kept is not None:
                for path, name in ((current, kept), (wal, kept.with_name(kept.name + "-wal"))):
                    if path.exists() and path.stat().st_size:
                        _also(path, name)
            sync_directory(self.directory)
            for suffix in ("-wal", "-shm", "-journal"):  # SQLite would replay them into the new one
                current.with_name(current.name + suffix).unlink(missing_ok=True)
            aside.rename(current)
            copying.remove(aside)
            sync_directory(self.directory)
        if kept is not None:
            with suppress(StoreError):  # it is kept as it is where it is damaged
                schema.be_one_file(kept)


def _also(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        path.rename(name)  # no second names here
