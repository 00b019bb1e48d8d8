"""A store's directory: made, opened, closed.

    log.db (-wal, -shm)   the database            log.keys   the keystore
    log.lock              the writer gate         log.open   held shared by every open handle
    sessions/             the mirror

A new store is built aside and linked into place under the writer gate: whoever opens it sees a whole
store or none. Making one where one is changes nothing. A keystore is never made for a database that
exists: without its keys a store is damaged, not new.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from convlog_sqlite import keystore as keystores
from convlog_sqlite import schema
from convlog_sqlite.database import BUSY_SECONDS, MEMORY, Database, check_sqlite, value
from convlog_sqlite.drafts import Draft
from convlog_sqlite.errors import (
    KeystoreOlder,
    KeystoreUnusable,
    NotAStore,
    StoreBusy,
    StoreReadOnly,
    os_errors,
)
from convlog_sqlite.filesystem import (
    PRIVATE_DIRECTORY,
    PRIVATE_FILE,
    check_filesystem,
    check_platform,
    make_private_directory,
    sync,
    sync_directory,
    write_all,
)
from convlog_sqlite.gate import WriterGate
from convlog_sqlite.instants import Clock
from convlog_sqlite.kek import UNWRAPPED, KeySource
from convlog_sqlite.keystore import Keystore
from convlog_sqlite.locks import FileLock, holders
from convlog_sqlite.store import copies
from convlog_sqlite.store.committing import HIGHEST_SLOT, Writer
from convlog_sqlite.store.preparing import prepare
from convlog_sqlite.store.reserved import KnownKeys, known_keys
from convlog_sqlite.vocabulary import STORE_AGENT, STORE_SESSION

DATABASE: Final = "log.db"
KEYSTORE: Final = "log.keys"
GATE: Final = "log.lock"
OPEN: Final = "log.open"
_ASIDE: Final = "log.db.new-"
_ALONE_SECONDS: Final = 2.0  # a command that was started before is through by then
# Names the keystore when `--keys` put it elsewhere.
KEYSTORE_POINTER: Final = "log.keys-path"


@dataclass(frozen=True, slots=True)
class Store:
    """One open handle on a store."""

    directory: Path | None
    keystore_path: Path | None
    database: Database
    keystore: Keystore
    writer: Writer
    gate: WriterGate | None
    handles: FileLock | None
    known: KnownKeys

    def close(self) -> None:
        """Close everything. Safe to call twice."""
        self.database.close()
        self.keystore.close()
        for lock in (self.gate, self.handles):
            if lock is not None:
                lock.close()


def exists(directory: Path) -> bool:
    """Whether a store is at `directory`. Raises StoreReadOnly when that cannot be told."""
    with os_errors(directory):
        return (directory / DATABASE).exists()


def create(
    directory: Path, *, mirror: bool, keys: Path | None, clock: Clock, kek: KeySource | None = None
) -> bool:
    """Make a store, unless there is one. True when this call made it.

    Where `kek` gives a key-encryption key, the master key is never on the disk without it.
    Keystore and database are built aside and get their names one after the other, the database last: it
    is what makes a store. Raises KeystoreUnusable when a keystore is there and no database, for that is a
    damaged store or another's keystore; NotAStore when the directory holds something else.
    """
    check_platform()
    check_sqlite()
    _check_place(directory)
    make_private_directory(directory)
    check_filesystem(directory)
    gate = WriterGate(directory / GATE)
    try:
        with gate.held(BUSY_SECONDS), os_errors(directory):
            if exists(directory):
                return False
            keystore_path = keys.absolute() if keys else directory / KEYSTORE
            if keystore_path.exists() and _finish(directory, keystore_path):
                return True
            keystore_asides = _keystore_asides(directory, keystore_path)
            # A WAL of a database that is gone: SQLite would replay it into the new one.
            stale = [directory / (DATABASE + suffix) for suffix in ("-wal", "-shm", "-journal")]
            for left_behind in (*directory.glob(_ASIDE + "*"), *keystore_asides, *stale):
                left_behind.unlink(missing_ok=True)
            return _build(directory, keystore_path, mirror=mirror, clock=clock, kek=kek)
    finally:
        gate.close()


def _keystore_aside(directory: Path, keystore_path: Path) -> str:
    """The name under which the keystore of this store, and no other's, is built."""
    place = hashlib.blake2b(os.fsencode(directory), digest_size=8).hexdigest()
    return f".{keystore_path.name}.convlog-new-{place}"


def _keystore_asides(directory: Path, keystore_path: Path) -> list[Path]:
    """What a crash left of it. `--keys` may point among the keystores of others: no pattern is used there."""
    return [keystore_path.with_name(_keystore_aside(directory, keystore_path))]


def _check_place(directory: Path) -> None:
    """Refuse to scatter a store's files among others."""
    try:
        found = {entry.name for entry in directory.iterdir()}
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # what is wrong with it shows when it is made
    if found and not any(name.startswith("log.") for name in found):
        hint = f"; the store in it is {directory / '.convlog'}" if ".convlog" in found else ""
        raise NotAStore(directory, f"neither empty nor a convlog store{hint}")


def _finish(directory: Path, keystore_path: Path) -> bool:
    """Finish what a crash left between the two names. Raises KeystoreUnusable when it was no crash."""
    aside = next(iter(sorted(directory.glob(_ASIDE + "*.built"))), None)
    if aside is None:
        raise KeystoreUnusable(
            keystore_path, "a keystore is here, but no log.db that it belongs to; restore the database"
        )
    database = Database(str(aside), durability="full", read_only=True, gate=None)
    try:
        with database.read() as connection:
            identity = schema.store_id(connection, str(aside))
    finally:
        database.close()
        for suffix in (
            "-wal",
            "-shm",
        ):  # of a reader; everything was moved into the database when it was built
            Path(f"{aside}{suffix}").unlink(missing_ok=True)
    Keystore.open(keystore_path, identity, writable=False).close()
    for second_name in _keystore_asides(directory, keystore_path):
        second_name.unlink(missing_ok=True)
    return schema.link_into_place(aside, directory / DATABASE)


def _build(
    directory: Path, keystore_path: Path, *, mirror: bool, clock: Clock, kek: KeySource | None
) -> bool:
    identity = uuid.uuid4().bytes
    point_to(directory, keystore_path)
    aside = directory / f"{_ASIDE}{os.getpid()}"
    keystore_aside = keystore_path.with_name(_keystore_aside(directory, keystore_path))
    keystores.create(keystore_aside, identity, UNWRAPPED if kek is None or kek.only_opens else kek.wrapping())
    keystore = Keystore.open(keystore_aside, identity, kek=kek)
    try:
        schema.build(aside, identity)
        _write_settings(aside, keystore, mirror=mirror, clock=clock)
        keep_out_of_git(directory)
    finally:
        keystore.close()
    built = aside.rename(aside.with_name(aside.name + ".built"))
    if not schema.link_into_place(keystore_aside, keystore_path):
        built.unlink()
        raise KeystoreUnusable(keystore_path, "a keystore is here already; it is never overwritten")
    made = schema.link_into_place(built, directory / DATABASE)
    sync_directory(directory)
    return made


def point_to(directory: Path, keystore_path: Path) -> None:
    """Note where the keystore is, when it is elsewhere."""
    pointer = directory / KEYSTORE_POINTER
    if keystore_path == directory / KEYSTORE:
        pointer.unlink(missing_ok=True)  # left by a crash: no store is here yet
        return
    keystore_path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
    _write_private(pointer, f"{keystore_path}\n")


def keep_out_of_git(directory: Path) -> None:
    """Keys and plaintext are not to be committed by `git add -A`."""
    _write_private(directory / ".gitignore", "*\n")


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        write_all(descriptor, text.encode())
        sync(descriptor)
    finally:
        os.close(descriptor)


def _write_settings(aside: Path, keystore: Keystore, *, mirror: bool, clock: Clock) -> None:
    """The store's first events: what was set when it was made, in the session `_store`."""
    database = Database(str(aside), durability="full", read_only=False, gate=None)
    try:
        if mirror:
            with database.write() as connection:
                copies.register(connection, copies.MIRROR, copies.OWN_MIRROR)
        setting = Draft(
            type="mutation",
            agent=STORE_AGENT,
            kind="state-set",
            state_key="store/mirror",
            value={"mirror": mirror},
        )
        writer = Writer(database, keystore, keystore.header.store_id, clock)
        writer.append(STORE_SESSION, None, [prepare(setting, keystore.pepper)])
    finally:
        database.close()


def open_store(
    directory: Path,
    *,
    durability: str,
    read_only: bool,
    keys: Path | None,
    clock: Clock,
    kek: KeySource | None = None,
    tenant: str | None = None,
) -> Store:
    """Open what is there; locked where `kek` is needed and not given. `tenant` binds its writer.

    Raises NotAStore, SchemaTooNew, KeystoreUnusable, KeySourceFailed, StoreBusy, UnsupportedFilesystem.
    """
    _check_store(directory)
    with contextlib.ExitStack() as undo:
        handles = _join_handles(directory, read_only=read_only)
        if handles is not None:
            undo.callback(handles.close)
        gate = None if read_only else WriterGate(directory / GATE)
        if gate is not None:
            undo.callback(gate.close)
        path = str(directory / DATABASE)
        database = Database(path, durability=durability, read_only=read_only, gate=gate)
        undo.callback(database.close)
        identity = _check_schema(database, directory, read_only=read_only)
        keystore_path = keys.absolute() if keys else keystore_of(directory)
        keystore = Keystore.open(keystore_path, identity, writable=not read_only, kek=kek)
        undo.callback(keystore.close)
        with database.read() as connection:
            known = known_keys(connection)
        if keystore.header.generation < known.generation:
            raise KeystoreOlder(keystore_path, keystore.header.generation, known.generation)
        writer = Writer(database, keystore, identity, clock, tenant)
        undo.pop_all()
        return Store(directory, keystore_path, database, keystore, writer, gate, handles, known)


def _check_store(directory: Path) -> None:
    check_platform()
    check_sqlite()
    if not directory.is_dir():
        raise NotAStore(directory, "there is no store here; `convlog init` makes one")
    if not exists(directory):
        raise NotAStore(directory, "not a convlog store: there is no log.db")
    check_filesystem(directory)


def without_keystore(directory: Path, *, read_only: bool = True) -> tuple[bytes, KnownKeys, int]:
    """Store id, what the log knows of the keystore, and the highest slot: for a store whose keystore may be missing.

    Unless `read_only`, a pending upgrade is done: nobody can open the store for it. Raises NotAStore,
    SchemaTooNew, StoreReadOnly, StoreError.
    """
    _check_store(directory)
    database = Database(str(directory / DATABASE), durability="full", read_only=True, gate=None)
    try:
        identity = _check_schema(database, directory, read_only=read_only)
        with database.read() as connection:
            return identity, known_keys(connection), value(connection, HIGHEST_SLOT)
    finally:
        database.close()


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """No other handle is open, and none is opened, as long as the block lasts. Raises StoreBusy.

    Not waited for in the kernel's queue: a wait given up there takes the lock once more, and who opens the
    store at that moment would be told that it is being rekeyed.
    """
    handles = FileLock(directory / OPEN)
    try:
        deadline = time.monotonic() + _ALONE_SECONDS
        while not handles.try_acquire():
            if time.monotonic() > deadline:
                there = holders(handles.path)
                who = f" in process {', '.join(map(str, there))}" if there else ""
                rule = f"the store is open{who}; close every handle on it, then try again"
                raise StoreBusy(handles.path, rule, holder=there[0] if there else None)
            time.sleep(0.01)
        yield
    finally:
        handles.close()


@contextlib.contextmanager
def joined(directory: Path) -> Iterator[None]:
    """Nobody has the store alone as long as the block lasts: its keystore is not replaced. Raises StoreBusy."""
    _check_store(directory)
    handles = _join_handles(directory, read_only=True)
    try:
        yield
    finally:
        if handles is not None:
            handles.close()


def _join_handles(directory: Path, *, read_only: bool) -> FileLock | None:
    """Hold `log.open` shared, as every open handle does. Raises StoreBusy while somebody needs it alone."""
    try:
        handles = FileLock(directory / OPEN)
    except StoreReadOnly:
        if read_only:
            return None  # a directory that cannot be written cannot be restored over either
        raise
    if not handles.try_acquire(fcntl.LOCK_SH):
        handles.close()
        raise StoreBusy(directory / OPEN, "the store is being restored or rekeyed; try again")
    return handles


def keystore_of(directory: Path) -> Path:
    """Where the keystore of a store is, as the store says. Raises KeystoreUnusable."""
    pointer = directory / KEYSTORE_POINTER
    if pointer.exists():
        with os_errors(pointer):
            said = pointer.read_bytes().strip()
        if not said or b"\0" in said:
            raise KeystoreUnusable(pointer, "it names no file")
        return Path(os.fsdecode(said))
    return directory / KEYSTORE


def _check_schema(database: Database, directory: Path, *, read_only: bool) -> bytes:
    with database.read() as connection:
        pending = schema.check(connection, database.path)
    if pending and read_only:
        raise StoreReadOnly(directory, "the store needs an upgrade: open it once for writing")
    if pending:
        schema.upgrade(directory / DATABASE)
    with database.read() as connection:
        return schema.store_id(connection, database.path)


def open_in_memory(clock: Clock) -> Store:
    """A store in memory: no file, no key on a disk, gone at close."""
    check_platform()
    check_sqlite()
    identity = uuid.uuid4().bytes
    database = Database(MEMORY, durability="full", read_only=False, gate=None)
    database.create_schema(lambda connection: schema.fill(connection, identity))
    keystore = Keystore.in_memory(identity)
    writer = Writer(database, keystore, identity, clock)
    return Store(None, None, database, keystore, writer, None, None, KnownKeys())
