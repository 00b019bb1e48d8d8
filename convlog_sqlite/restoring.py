"""Restoring: putting a backup in place of a store's database, or making a store of it where there is none.

It works over a damaged database, and where the database is gone and the keystore is not. The keystore that is there stays: what was erased since the backup stays erased, and everything else reads. The
database that was there is set aside, not destroyed; nobody may have the store open. Between two steps a crash
leaves the old database or the new one under its name, whole. Afterwards each event whose key an erasure has
destroyed is redacted in the restored log too, so that it says so itself and verifies.

What came after the backup is gone from the log: events, and with them holds, policies, roles and fences. Files
that were exported since are taken over, so that later erasures reach them. Mirrors that are ahead are set aside.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from convlog_sqlite import discovery, rekeying, schema
from convlog_sqlite.backup import OF_THE_KEYSTORE, Progress, copy_database, leave_wal, opened
from convlog_sqlite.database import BUSY_SECONDS, Database, SQLiteError, connect, fetch, translated
from convlog_sqlite.drafts import Draft, check_name
from convlog_sqlite.errors import (
    BackupRefused,
    KeystoreOlder,
    NotAStore,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    os_errors,
)
from convlog_sqlite.files import AHEAD, last_line, seq_of
from convlog_sqlite.filesystem import check_filesystem, make_private_directory, sync_directory
from convlog_sqlite.gate import WriterGate
from convlog_sqlite.instants import Clock, system_clock
from convlog_sqlite.kek import KeySource
from convlog_sqlite.keystore import Keystore
from convlog_sqlite.log import ConversationLog
from convlog_sqlite.rewriting import FILE_NAME
from convlog_sqlite.store import copies, opening, replacing
from convlog_sqlite.store.erasing import has_intents
from convlog_sqlite.store.preparing import prepare
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.reading import SELECT_STORE_HEAD
from convlog_sqlite.store.reserved import known_keys
from convlog_sqlite.tenancy import bound_to, require_whole_store
from convlog_sqlite.verify import verify
from convlog_sqlite.vocabulary import RESTORED_KIND, RESTORED_THREAD, STORE_SESSION

SET_ASIDE: Final = "log.db.before-restore-"
_NEW: Final = "log.db.new-"


@dataclass(frozen=True, slots=True)
class Restoration:
    """What restoring did, or would do in a dry run.

    `pos` is the last position of the backup, `lost` how many events of the store it does not have, None where the
    store's database is too damaged to tell; `set_aside` the file that the database was moved to, `erased` how many events were redacted again, because they were erased
    since, and `new` whether there was no store before. The keystore has no key for `lost_keys` of the backup's events.
    """

    store: str
    pos: int
    lost: int | None
    erased: int
    new: bool
    set_aside: str | None
    dry_run: bool
    lost_keys: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Source:
    """A backup: its database and keystore, if it has one; its store, last position, and the generation of its keys."""

    database: Path
    keystore: Path | None
    store_id: bytes
    pos: int
    known: int


def restore(
    backup: str | Path,
    store: str | Path | None = None,
    *,
    by: str,
    keys: str | Path | None = None,
    kek: KeySource | None = None,
    dry_run: bool = False,
    discard: bool = False,
    progress: Progress | None = None,
    clock: Clock = system_clock,
) -> Restoration:
    """Put a backup in the place of a store's database, or make a store of it where none is.

    `backup` is what `ConversationLog.backup` made. `store` is found as `ConversationLog.open` finds it. A store that
    is there keeps its keystore; for a new one it is the one at `keys`, or else the backup's own. The database that
    was there is set aside, unless `discard`. `by` is the agent that answers for it. `progress` is called with how
    many bytes are copied, and of how many.

    Raises BackupRefused for a backup of another store, one with faults, without keys, or while an erasure is
    pending that a file out of reach holds up; StoreBusy while any handle is open; StoreError. Then nothing changed.
    """
    check_name(by, "/by")
    require_whole_store(bound_to(None), "restore")
    target = Path(store).absolute() if store is not None else discovery.find() or discovery.default()
    keystore_path = None if keys is None else Path(keys).absolute()
    with _untrusted(Path(backup).absolute()) as path:
        source = _source(path)
        if opening.exists(target):
            done = _over(
                source, target, keystore_path, kek, clock, progress=progress, dry_run=dry_run, discard=discard
            )
        else:
            done = _anew(source, target, keystore_path, kek, clock, progress=progress, dry_run=dry_run)
    if dry_run:
        return done
    # While the log is as short as the backup was: later it might have as many events, and other ones.
    _bring_up_mirror(target, keystore_path, kek, clock)
    _tell(target, keystore_path, kek, clock, by, done)
    return replace(done, erased=_bury(target, keystore_path, kek, clock, by))


@contextmanager
def _untrusted(path: Path) -> Iterator[Path]:
    """Anybody may have made this file: whatever SQLite says of it, and text that is none, is damage."""
    try:
        yield path
    except (SQLiteError, UnicodeDecodeError) as error:
        raise StoreCorrupt(path, "it, or the database that is to be replaced, cannot be read") from error


def _source(path: Path) -> _Source:
    file = path / opening.DATABASE if path.is_dir() else path
    if not file.is_file():
        raise NotAStore(path, "there is no backup here")
    with translated(str(file)):
        connection = connect(str(file), read_only=True)
        try:
            schema.check(connection, str(file))
            rows = fetch(connection, SELECT_STORE_HEAD)
            keystore = file.with_name(opening.KEYSTORE)
            return _Source(
                file,
                keystore if keystore.is_file() else None,
                schema.store_id(connection, str(file)),
                rows[0][0] if rows else 0,
                known_keys(connection).generation,
            )
        finally:
            connection.close()


def _over(
    source: _Source,
    target: Path,
    keys: Path | None,
    kek: KeySource | None,
    clock: Clock,
    *,
    progress: Progress | None,
    dry_run: bool,
    discard: bool,
) -> Restoration:
    """Restore over a store that is there."""
    keystore_path = keys or opening.keystore_of(target)
    _refuse_other(source, target)
    if not dry_run:
        # To open it finishes what can be finished: an erasure that was decided is not undone by an older database.
        with suppress(StoreCorrupt, NotAStore):  # then it has nothing to say any more
            ConversationLog.open(target, create=False, keys=keys, kek=kek, clock=clock).close()
    with opening.alone(target):
        lost, registered = _look(source, target)
        with (
            _built(source, target, registered, progress) as built,
            closing(_keystore(keystore_path, source, kek)) as keystore,
        ):
            keyless = _check(built, keystore, source.store_id, clock)
            done = Restoration(str(target), source.pos, lost, 0, False, None, dry_run, keyless)
            if dry_run:
                return done
            _set_mirrors_aside(target, built, keystore, source.store_id, clock)
            return replace(done, set_aside=_exchange(built, target, discard=discard))


def _refuse_other(source: _Source, target: Path) -> None:
    """Refuse a backup of another store, as far as the database that is there can tell."""
    path = str(target / opening.DATABASE)
    with suppress(StoreCorrupt, NotAStore), translated(path), closing(connect(path, read_only=True)) as here:
        schema.check(here, path)
        if schema.store_id(here, path) != source.store_id:
            raise BackupRefused(target, "other-store", "the backup is of another store")


def _look(source: _Source, target: Path) -> tuple[int | None, list[copies.Copied]]:
    """How many events would be lost, and where files were exported to; (None, []) where it is damaged.

    Raises BackupRefused while an erasure is pending.
    """
    path = str(target / opening.DATABASE)
    try:
        with translated(path), closing(connect(path, read_only=True)) as here:
            needs_upgrade = schema.check(here, path)  # in a dry run: else it was done
            pending = not needs_upgrade and has_intents(here)
            registered = copies.registered(here)
            with (
                translated(str(source.database)),
                closing(connect(str(source.database), read_only=True)) as old,
            ):
                lost = replacing.undone(here, old)
    except (StoreCorrupt, NotAStore):
        return None, []
    if pending:
        raise BackupRefused(
            target, "erasure-pending", "an erasure is not complete: `convlog redact` says why"
        )
    return lost, registered


def _keystore(path: Path, source: _Source, kek: KeySource | None) -> Keystore:
    """The keystore that is to go with a backup, open. Raises KeystoreUnusable and its kin."""
    keystore = Keystore.open(path, source.store_id, kek=kek)
    try:
        keystore.require_master()
        if keystore.header.generation < source.known:
            raise KeystoreOlder(path, keystore.header.generation, source.known)
    except BaseException:  # an interrupt too
        keystore.close()
        raise
    return keystore


def _anew(
    source: _Source,
    target: Path,
    keys: Path | None,
    kek: KeySource | None,
    clock: Clock,
    *,
    progress: Progress | None,
    dry_run: bool,
) -> Restoration:
    """Make a store of a backup, also where a keystore is left of one, or an attempt that failed."""
    names = {entry.name for entry in target.iterdir()} if target.is_dir() else set()
    if (os.path.lexists(target) and not target.is_dir()) or (names and not any(map(_is_ours, names))):
        raise BackupRefused(target, "exists", "there is something already, and it is no store")
    place = keys or opening.keystore_of(target)
    theirs = source.keystore if keys is None and not place.exists() else place
    if theirs is None:
        rule = "the backup has no keys: give the keystore of its store (--keys)"
        raise BackupRefused(target, "no-keys", rule)
    _keystore(theirs, source, kek).close()  # refused before anything is made
    done = Restoration(str(target), source.pos, 0, 0, True, None, dry_run)
    if dry_run:
        return done
    make_private_directory(target)
    check_filesystem(target)
    with ExitStack() as held:
        gate = held.enter_context(closing(WriterGate(target / opening.GATE)))
        held.enter_context(gate.held(BUSY_SECONDS))
        held.enter_context(opening.alone(target))
        held.enter_context(os_errors(target))
        if opening.exists(target):
            raise BackupRefused(target, "exists", "a store was made here meanwhile")
        opening.keep_out_of_git(target)
        if keys is not None:
            opening.point_to(target, keys)
        if theirs != place:
            with closing(Keystore.open(theirs, source.store_id, writable=False)) as copied:
                rekeying.put_in_place(place, copied.header, rekeying.copied(copied))
        built = held.enter_context(_built(source, target, (), progress))
        keystore = held.enter_context(closing(_keystore(place, source, kek)))
        keyless = _check(built, keystore, source.store_id, clock)
        _set_mirrors_aside(target, built, keystore, source.store_id, clock)
        _remove_wal(target / opening.DATABASE)
        built.rename(target / opening.DATABASE)
        sync_directory(target)
    return replace(done, lost_keys=keyless)


def _is_ours(name: str) -> bool:
    return name.startswith("log.")


@contextmanager
def _built(
    source: _Source, target: Path, registered: Sequence[copies.Copied], progress: Progress | None
) -> Iterator[Path]:
    """The database to be, beside the one that is there; gone at the end unless it was renamed."""
    for left in target.glob(f"{_NEW}*"):
        left.unlink()
    built = target / f"{_NEW}{os.getpid()}"
    try:
        copy_database(source.database, built, progress)
        schema.upgrade(built)
        with translated(str(built)):
            connection = connect(str(built))
            try:
                for copied in registered:
                    if copied.path != copies.OWN_MIRROR:
                        copies.register(connection, copies.EXPORT, *copied)
            finally:
                connection.close()
        yield built
    finally:
        for suffix in ("", "-wal", "-shm"):
            built.with_name(built.name + suffix).unlink(missing_ok=True)


def _check(built: Path, keystore: Keystore, store_id: bytes, clock: Clock) -> int:
    """Refuse a database that does not verify, or is not as convlog makes one. Of how many events the keystore has no key.

    Raises BackupRefused.
    """
    with opened(built, keystore, store_id, clock) as reader:
        with reader.database.read() as connection:
            strange = schema.differences(connection)
        if strange:
            rule = f"its tables and guards are not those that convlog makes: {', '.join(strange[:3])}"
            raise BackupRefused(built, "faults", rule)
        lost = 0
        for one in verify(reader, None):
            lost += one.rule == "key-lost"
            # What was erased since is redacted again, once the database is in its place.
            if one.severity == "fault" and one.rule not in OF_THE_KEYSTORE:
                rule = f"the backup does not verify: {one.rule}: {one.detail}"
                raise BackupRefused(built, "faults", rule)
    return lost


def _set_mirrors_aside(target: Path, built: Path, keystore: Keystore, store_id: bytes, clock: Clock) -> None:
    """Mirror files whose last line the restored log does not have are kept apart, before anybody can append."""
    with opened(built, keystore, store_id, clock) as reader:
        for path in sorted((target / copies.OWN_MIRROR).glob(f"*/{FILE_NAME}")):
            with os_errors(path):
                if path.is_symlink() or not _is_of_log(path, reader):
                    path.rename(path.with_name(f"{FILE_NAME}{AHEAD}{time.time_ns()}"))


def _is_of_log(path: Path, reader: Reader) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        line = last_line(descriptor)
    finally:
        os.close(descriptor)
    if line is None:
        return True
    seq, session = seq_of(line), path.parent.name
    if seq is None or reader.find_session(session) is None or seq > reader.head(session):
        return False
    return next(reader.lines(session, seq - 1, seq + 1), None) == line


def _exchange(built: Path, target: Path, *, discard: bool) -> str | None:
    """Put the new database in the place of the old one, which keeps another name, and say which."""
    database = target / opening.DATABASE
    aside = target / f"{SET_ASIDE}{time.time_ns()}"
    with os_errors(database):
        _empty_wal(database)
        if not discard:
            # A WAL that could not be emptied belongs to a damaged database: it is kept beside it.
            wal = database.with_name(database.name + "-wal")
            for path, name in ((database, aside), (wal, aside.with_name(aside.name + "-wal"))):
                if path.exists() and path.stat().st_size:
                    _also(path, name)
            sync_directory(target)
        _remove_wal(database)
        built.replace(database)
        sync_directory(target)
    if discard:
        return None
    with suppress(StoreError):  # damaged as it is, it is kept as it is
        leave_wal(aside)
    return str(aside)


def _empty_wal(database: Path) -> None:
    """Move what the WAL holds into the database, which stays one that can be opened, whatever comes next."""
    with suppress(StoreCorrupt, NotAStore):
        opened_again = Database(str(database), durability="full", read_only=False, gate=None)
        with closing(opened_again):
            if not opened_again.truncate_wal():
                raise StoreBusy(database, "another program is reading the database; try again")


def _remove_wal(database: Path) -> None:
    """Nothing of the old database is left that the new one would take for its own."""
    for suffix in ("-wal", "-shm", "-journal"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _also(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        path.rename(name)  # no second names here; restoring again goes on from there


def _tell(
    target: Path, keys: Path | None, kek: KeySource | None, clock: Clock, by: str, done: Restoration
) -> None:
    """Record in `_store` that the database was restored."""
    store = opening.open_store(target, durability="full", read_only=False, keys=keys, clock=clock, kek=kek)
    try:
        value = {"pos": done.pos, "lost": done.lost}
        draft = Draft(type="mutation", agent=by, kind=RESTORED_KIND, thread_id=RESTORED_THREAD, value=value)
        prepared = prepare(draft, store.keystore.pepper)
        store.writer.record_decision(STORE_SESSION, lambda _: prepared)
    finally:
        store.close()


def _bring_up_mirror(target: Path, keys: Path | None, kek: KeySource | None, clock: Clock) -> None:
    """Hold every file of the mirror to the log; one that is ahead is set aside."""
    with ConversationLog.open(target, create=False, keys=keys, kek=kek, clock=clock) as log:
        if log.mirror.enabled:
            log.mirror.update()


def _bury(target: Path, keys: Path | None, kek: KeySource | None, clock: Clock, by: str) -> int:
    """Redact what was erased since the backup; how many events it was."""
    with ConversationLog.open(target, create=False, keys=keys, kek=kek, clock=clock) as log:
        erased = log.record_erasures(by=by)
        if log.mirror.enabled:
            log.mirror.update()
        return erased
