"""Restoring: putting a backup in place of a store's database, or making a store of it where there is none.

The keystore that is there stays: what was erased since the backup stays erased, and everything else reads. The
database that was there is set aside, not destroyed; nobody may have the store open. Between two steps a crash
leaves the old database or the new one under its name, whole. Afterwards each event whose key an erasure has
destroyed is redacted in the restored log too, so that it says so itself and verifies.

What came after the backup is gone from the log: events, and with them holds, policies, roles and fences. Files
that were exported since are taken over, so that later erasures reach them. Mirrors that are ahead are set aside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from convlog_sqlite import discovery, rekeying, schema
from convlog_sqlite.backup import USE_NO_WAL, copy_database, opened
from convlog_sqlite.database import BUSY_SECONDS, connect, fetch, translated
from convlog_sqlite.drafts import Draft, check_name
from convlog_sqlite.errors import BackupRefused, NotAStore, os_errors
from convlog_sqlite.filesystem import check_filesystem, make_private_directory, sync_directory
from convlog_sqlite.gate import WriterGate
from convlog_sqlite.instants import Clock, system_clock
from convlog_sqlite.kek import KeySource
from convlog_sqlite.keystore import Keystore
from convlog_sqlite.log import ConversationLog
from convlog_sqlite.store import copies, opening
from convlog_sqlite.store.erasing import has_intents
from convlog_sqlite.store.preparing import prepare
from convlog_sqlite.store.reading import SELECT_STORE_HEAD
from convlog_sqlite.verify import verify
from convlog_sqlite.vocabulary import RESTORED_KIND, STORE_SESSION

SET_ASIDE: Final = "log.db.before-restore-"
_NEW: Final = "log.db.new-"


@dataclass(frozen=True, slots=True)
class Restoration:
    """What restoring did, or would do in a dry run.

    `pos` is the last position of the backup, `lost` how many events of the store came after it; `set_aside` the
    file that the database was moved to, `erased` how many events were redacted again, because they were erased
    since, and `new` whether there was no store before.
    """

    store: str
    pos: int
    lost: int
    erased: int
    new: bool
    set_aside: str | None
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Source:
    """A backup: its database, its keystore if it has one, the store it is of, and its last position."""

    database: Path
    keystore: Path | None
    store_id: bytes
    pos: int


def restore(
    backup: str | Path,
    store: str | Path | None = None,
    *,
    by: str,
    keys: str | Path | None = None,
    kek: KeySource | None = None,
    dry_run: bool = False,
    discard: bool = False,
    clock: Clock = system_clock,
) -> Restoration:
    """Put a backup in the place of a store's database, or make a store of it where none is.

    `backup` is what `ConversationLog.backup` made. `store` is found as `ConversationLog.open` finds it. A store that
    is there keeps its keystore; for a new one it is the one at `keys`, or else the backup's own. The database that
    was there is set aside, unless `discard`. `by` is the agent that answers for it.

    Raises BackupRefused for a backup of another store, one with faults, without keys, or while an erasure is
    pending that a file out of reach holds up; StoreBusy while any handle is open; StoreError. Then nothing changed.
    """
    check_name(by, "/by")
    target = Path(store).absolute() if store is not None else discovery.find() or discovery.default()
    source = _source(Path(backup).absolute())
    keystore_path = None if keys is None else Path(keys).absolute()
    if opening.exists(target):
        done = _over(source, target, keystore_path, kek, clock, dry_run=dry_run, discard=discard)
    else:
        done = _anew(source, target, keystore_path, kek, clock, dry_run=dry_run)
    if dry_run:
        return done
    # While the log is as short as the backup was: later it might have as many events, and other ones.
    _bring_up_mirror(target, keystore_path, kek, clock)
    _tell(target, keystore_path, kek, clock, by, done)
    return replace(done, erased=_bury(target, keystore_path, kek, clock, by))


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
    dry_run: bool,
    discard: bool,
) -> Restoration:
    """Restore over a store that is there."""
    store_id, _, _ = opening.without_keystore(target, read_only=False)
    if store_id != source.store_id:
        raise BackupRefused(target, "other-store", "the backup is of another store")
    # To open it finishes what can be finished: an erasure that was decided is not undone by an older database.
    with ConversationLog.open(target, create=False, keys=keys, kek=kek, clock=clock) as log:
        head, _ = log.reader.store_head()
        with log.reader.database.read() as connection:
            pending = has_intents(connection)
            registered = copies.paths(connection)
    if pending:
        raise BackupRefused(
            target, "erasure-pending", "an erasure is not complete: `convlog redact` says why"
        )
    lost = max(0, head - source.pos)
    with opening.alone(target):
        keystore_path = keys or opening.keystore_of(target)
        with _built(source, target, registered) as built:
            _check(built, keystore_path, source.store_id, kek, clock)
            if dry_run:
                return Restoration(str(target), source.pos, lost, 0, False, None, True)
            aside = _exchange(built, target, discard=discard)
    return Restoration(str(target), source.pos, lost, 0, False, aside, False)


def _anew(
    source: _Source, target: Path, keys: Path | None, kek: KeySource | None, clock: Clock, *, dry_run: bool
) -> Restoration:
    """Make a store of a backup."""
    keystore_path = keys or source.keystore
    if keystore_path is None:
        rule = "the backup has no keys: give the keystore of its store (--keys)"
        raise BackupRefused(target, "no-keys", rule)
    if target.exists() and any(target.iterdir()):
        raise BackupRefused(target, "exists", "there is something already, and it is no store")
    if dry_run:
        return Restoration(str(target), source.pos, 0, 0, True, None, True)
    make_private_directory(target)
    check_filesystem(target)
    gate = WriterGate(target / opening.GATE)
    try:
        with gate.held(BUSY_SECONDS), opening.alone(target), os_errors(target):
            opening.keep_out_of_git(target)
            with _built(source, target, ()) as built:
                _check(built, keystore_path, source.store_id, kek, clock)
                if keys is None:
                    with closing(Keystore.open(keystore_path, source.store_id, writable=False)) as theirs:
                        copied = rekeying.copied(theirs)
                        rekeying.write(target / opening.KEYSTORE, theirs.header, copied)
                else:
                    opening.point_to(target, keys)
                built.rename(target / opening.DATABASE)
                sync_directory(target)
    finally:
        gate.close()
    return Restoration(str(target), source.pos, 0, 0, True, None, False)


@contextmanager
def _built(source: _Source, target: Path, registered: Sequence[str]) -> Iterator[Path]:
    """The database to be, beside the one that is there; gone at the end unless it was renamed."""
    for left in target.glob(f"{_NEW}*"):
        left.unlink()
    built = target / f"{_NEW}{os.getpid()}"
    try:
        copy_database(source.database, built)
        schema.upgrade(built)
        with translated(str(built)):
            connection = connect(str(built))
            try:
                for path in registered:
                    if path != copies.OWN_MIRROR:
                        copies.register(connection, copies.EXPORT, path)
            finally:
                connection.close()
        yield built
    finally:
        for suffix in ("", "-wal", "-shm"):
            built.with_name(built.name + suffix).unlink(missing_ok=True)


def _check(built: Path, keystore_path: Path, store_id: bytes, kek: KeySource | None, clock: Clock) -> None:
    """Refuse a database that does not verify with the keystore. Raises BackupRefused, KeystoreUnusable."""
    with (
        closing(Keystore.open(keystore_path, store_id, writable=False, kek=kek)) as keystore,
        opened(built, keystore, store_id, clock) as reader,
    ):
        # What was erased since is redacted again, once the database is in its place.
        faults = [one for one in verify(reader, None) if one.severity == "fault" and one.rule != "tombstone"]
    if faults:
        raise BackupRefused(
            built, "faults", f"the backup does not verify: {faults[0].rule}: {faults[0].detail}"
        )


def _exchange(built: Path, target: Path, *, discard: bool) -> str | None:
    """Put the new database in the place of the old one, which keeps another name, and say which."""
    database = target / opening.DATABASE
    aside = target / f"{SET_ASIDE}{time.time_ns()}"
    with translated(str(database)), os_errors(database):
        connection = connect(str(database))
        try:
            connection.execute(
                USE_NO_WAL
            )  # nothing of it is left in a WAL that the new one would take for its own
        finally:
            connection.close()
        os.link(database, aside)
        built.replace(database)
        if discard:
            aside.unlink()
        sync_directory(target)
    return None if discard else str(aside)


def _tell(
    target: Path, keys: Path | None, kek: KeySource | None, clock: Clock, by: str, done: Restoration
) -> None:
    """Record in `_store` that the database was restored."""
    store = opening.open_store(target, durability="full", read_only=False, keys=keys, clock=clock, kek=kek)
    try:
        value = {"pos": done.pos, "lost": done.lost}
        draft = Draft(type="mutation", agent=by, kind=RESTORED_KIND, value=value)
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
