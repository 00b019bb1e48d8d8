"""Backups: the database as one file, taken while others write, and proved to be restorable before it gets its name.

A backup is a directory with `log.db`, and with `log.keys` where that was asked for. The database alone holds no
key: restored beside the current keystore, what was erased since stays erased. A copy of the keystore brings
back what is erased after it was made, so it is only given under a key-encryption key, or on the explicit word.

The keystore is copied after the database, so that it has the key of every event there, and while no erasure is
begun or half done: what was erased by the time a backup gets its name, no key in it opens. Everything is built aside,
checked, synced and then renamed: under the name of a backup there is a whole one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from convlog_sqlite import rekeying
from convlog_sqlite.database import Database, connect, translated, value
from convlog_sqlite.errors import BackupRefused, NotAStore, StoreCorrupt, StoreFull, StoreReadOnly, os_errors
from convlog_sqlite.filesystem import keep_private, sync, sync_directory
from convlog_sqlite.findings import Finding
from convlog_sqlite.instants import Clock
from convlog_sqlite.kek import BARE
from convlog_sqlite.keystore import Keystore
from convlog_sqlite.redaction import Redactor
from convlog_sqlite.store import opening
from convlog_sqlite.store.committing import Writer
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.tenancy import whole_store

Progress = Callable[[int, int], None]

VACUUM_INTO: Final = "VACUUM INTO ?"
USE_WAL: Final = "PRAGMA journal_mode = WAL"
USE_NO_WAL: Final = "PRAGMA journal_mode = DELETE"
PAGE_COUNT: Final = "PRAGMA page_count"
PAGE_SIZE: Final = "PRAGMA page_size"
INTEGRITY_CHECK: Final = "PRAGMA integrity_check(1)"
_ASIDE: Final = ".convlog-backup-"
_STEPS: Final = 50_000  # of SQLite's machine
# What `verify` says of the keystore, not of the database: a copy is none the worse for it. What is erased while a
# copy is checked, it cannot know; and keys that are lost would be no reason to go without backups from then on.
OF_THE_KEYSTORE: Final = frozenset({"tombstone", "key-lost", "keystore-short"})
_SEVERITY: Final = "fault"


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was taken and checked. `events` of the whole store, `chain` the store's at `pos`, in hex.

    `keys` says how the copy of the keystore is kept: `bare` or `wrapped`; None where there is none.
    """

    path: str
    events: int
    pos: int
    chain: str
    bytes: int
    keys: str | None

    def to_dict(self) -> dict[str, Any]:
        """The backup as JSON values."""
        return asdict(self)


class BackingUp:
    """The part of a log that takes backups. `ConversationLog` is one."""

    path: Path | None
    tenant: str | None
    reader: Reader
    _store: opening.Store
    _clock: Clock

    @abstractmethod
    def _redactor(self) -> Redactor: ...
    @abstractmethod
    def _prove(self, reader: Reader) -> list[Finding]: ...

    @whole_store
    def backup(
        self,
        destination: str | Path,
        *,
        with_keys: bool = False,
        bare_keys: bool = False,
        progress: Progress | None = None,
    ) -> Backup:
        """Write a backup to `destination`, a new directory, while others write; checked as `verify` checks.

        The database only, unless `with_keys` adds the keystore, as it is kept. A keystore under no key-encryption
        key is refused without `bare_keys`: such a copy reads for ever what is erased after it. `progress` is called
        with how many bytes are copied, and of how many; the check comes after them.
        Raises BackupRefused and StoreError; then nothing is there.
        """
        if self.path is None:
            raise NotAStore(":memory:", "an ephemeral log has no backups")
        target = Path(destination).absolute()
        if with_keys:
            with self._keystore_to_copy(target, bare_keys=bare_keys):
                pass  # refused before the work, not after it
        if os.path.lexists(target):
            raise BackupRefused(target, "exists", "there is something already")
        with _aside(target) as aside:
            copy = aside / opening.DATABASE
            copy_database(self._store.database.path, copy, progress)
            pos, chain = self._check(copy)
            with ExitStack() as held:
                kept = self._copy_keys(held, aside, target, bare_keys=bare_keys) if with_keys else None
                size = sum(file.stat().st_size for file in aside.iterdir())
                give_name(aside, target)
        return Backup(str(target), pos, pos, chain.hex(), size, kept)

    def _copy_keys(self, held: ExitStack, aside: Path, target: Path, *, bare_keys: bool) -> str:
        """Copy the keystore, and how it is kept. Until `held` ends, no erasure can come between it and its name.

        One that was begun before is finished first: what was erased by then, the copy has no key of.
        """
        held.enter_context(self._redactor().at_rest())
        with self._keystore_to_copy(target, bare_keys=bare_keys) as keystore:
            rekeying.write(aside / opening.KEYSTORE, keystore.header, rekeying.copied(keystore))
            return "bare" if keystore.header.kept == BARE else "wrapped"

    @contextmanager
    def _keystore_to_copy(self, target: Path, *, bare_keys: bool) -> Iterator[Keystore]:
        """The keystore as it is kept now: it may have been given another key since this handle opened it."""
        if self._store.database.read_only:
            raise StoreReadOnly(self._store.keystore.path, "to copy keys, open the store for writing")
        path, store_id = Path(self._store.keystore.path), self.reader.store_id
        with closing(Keystore.open(path, store_id, writable=False)) as keystore:
            if keystore.header.kept == BARE and not bare_keys:
                raise BackupRefused(target, "bare-keys", "the keystore is under no key-encryption key")
            yield keystore

    def _check(self, copy: Path) -> tuple[int, bytes]:
        """Hold a copy to everything that can be checked; the end of its chain. Raises StoreCorrupt."""
        with opened(copy, self._store.keystore, self.reader.store_id, self._clock) as reader:
            found = (one for one in self._prove(reader) if one.rule not in OF_THE_KEYSTORE)
            faults = [one for one in found if one.severity == _SEVERITY]
            if faults:
                raise StoreCorrupt(copy, f"the backup was not kept: {faults[0].rule}: {faults[0].detail}")
            end = reader.store_head()
        leave_wal(copy)
        return end


def copy_database(source: str | Path, target: Path, progress: Progress | None = None) -> None:
    """Copy a database into a new private file in WAL mode, from one snapshot; nobody waits. Raises StoreError."""
    with _naming(target), translated(str(source)), os_errors(target):
        reading = connect(str(source), read_only=True)
        try:
            expected = int(value(reading, PAGE_COUNT)) * int(value(reading, PAGE_SIZE))

            def look() -> bool:
                if progress is not None and target.exists():
                    progress(min(target.stat().st_size, expected), expected)
                return False  # go on

            reading.set_progress_handler(look, _STEPS)  # it lets an interrupt through, too
            reading.execute(VACUUM_INTO, (str(target),))
            if progress is not None:
                progress(expected, expected)
        finally:
            reading.close()
        keep_private(target)
        written = connect(str(target))
        try:
            written.execute(USE_WAL)
            if value(written, INTEGRITY_CHECK) != "ok":
                raise StoreCorrupt(target, "the copy of the database is damaged")
        finally:
            written.close()


@contextmanager
def _naming(target: Path) -> Iterator[None]:
    """What is full is where it is written to, not where it is read from."""
    try:
        yield
    except StoreFull:
        raise StoreFull(target) from None


def leave_wal(path: Path) -> None:
    """Make a database one file that can be read from a place that cannot be written."""
    with translated(str(path)):
        connection = connect(str(path))
        try:
            connection.execute(USE_NO_WAL)
        finally:
            connection.close()


@contextmanager
def opened(path: Path, keystore: Keystore, store_id: bytes, clock: Clock) -> Iterator[Reader]:
    """A reader of a database that is no store's yet, with a store's keystore."""
    database = Database(str(path), durability="full", read_only=True, gate=None)
    try:
        yield Reader(database, Writer(database, keystore, store_id, clock))
    finally:
        database.close()


def give_name(aside: Path, target: Path) -> None:
    """Sync what was built aside, and rename it."""
    with os_errors(target):
        for file in aside.iterdir():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                sync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(aside)
        if os.path.lexists(target):
            raise BackupRefused(target, "exists", "there is something already")
        aside.rename(target)
        sync_directory(target.parent)


@contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A private directory to build in, gone at the end unless it was renamed; those of killed backups go first."""
    if not target.parent.is_dir():
        raise BackupRefused(target, "no-directory", f"there is no directory {target.parent}")
    for left in target.parent.glob(f"{_ASIDE}*"):
        if not _is_alive(left.name.removeprefix(_ASIDE).partition("-")[0]):
            shutil.rmtree(left, ignore_errors=True)
    with os_errors(target.parent):
        aside = Path(tempfile.mkdtemp(prefix=f"{_ASIDE}{os.getpid()}-", dir=target.parent))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True
