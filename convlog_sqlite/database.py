"""Connections to `log.db`, and the two blocks in which everything happens: `read()` and `write()`.

The only module that knows apsw. Reading and writing use a connection each, so that a read never waits
for a commit of the same process. A write block is one IMMEDIATE transaction behind the store's writer
gate; a read block is one snapshot, and callers fetch what they need inside it: no cursor stays open while
other code runs, because an open cursor keeps the WAL from being reset. Errors of SQLite leave as the
StoreError that `_TRANSLATIONS` names.

Nothing else in a process may open `log.db`, `log.db-wal` or `log.db-shm`, not even to read a byte:
closing such a descriptor drops SQLite's locks. A handle used after fork() is refused: its commits would
be lost without a word.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import apsw

from convlog_sqlite.errors import (
    ForkedHandle,
    NotAStore,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreIOError,
    StoreReadOnly,
    StoreReplaced,
    Translating,
    UnsupportedPlatform,
)
from convlog_sqlite.gate import WriterGate

Connection = apsw.Connection
SQLiteError = apsw.Error
Lock = Any  # threading.Lock and RLock are no types

MEMORY: Final = ":memory:"
SQLITE_VERSION: Final = apsw.sqlite_lib_version()
_OLDEST_SQLITE: Final = 3_051_003  # the WAL-reset fix: sqlite.org/wal.html#walresetbug
BUSY_SECONDS: Final = 10.0
_TRUNCATE_SECONDS: Final = 0.2
DURABILITIES: Final = {"full": "FULL", "normal": "NORMAL"}

BEGIN_READ: Final = "BEGIN DEFERRED"
BEGIN_WRITE: Final = "BEGIN IMMEDIATE"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
DATA_VERSION: Final = "PRAGMA data_version"
JOURNAL_MODE: Final = "PRAGMA journal_mode"

# SQLite's own word -> ours. Foreign errors are translated here and nowhere else.
_TRANSLATIONS: Final[dict[type[apsw.Error], type[StoreError]]] = {
    apsw.BusyError: StoreBusy,
    apsw.LockedError: StoreBusy,
    apsw.FullError: StoreFull,
    apsw.ReadOnlyError: StoreReadOnly,
    apsw.PermissionsError: StoreReadOnly,
    apsw.CantOpenError: StoreReadOnly,
    apsw.NotADBError: NotAStore,
    apsw.CorruptError: StoreCorrupt,
    apsw.ConstraintError: StoreCorrupt,  # we ask before we insert: the tables were changed behind our back
    apsw.IOError: StoreIOError,
    apsw.ConnectionClosedError: StoreClosed,
}
_FULL_ERRNO: Final = frozenset({27, 28, 122})  # EFBIG, ENOSPC, EDQUOT


def check_sqlite() -> None:
    """Refuse an SQLite whose WAL can lose commits (before 3.51.3)."""
    if apsw.SQLITE_VERSION_NUMBER < _OLDEST_SQLITE:
        raise UnsupportedPlatform(f"SQLite {SQLITE_VERSION}")


class translated(Translating):  # noqa: N801 a block, and read as one
    """Turn an apsw error inside the block into ours. What is not in the table is a defect and passes."""

    __slots__ = ()

    def _translation(self, error: BaseException) -> StoreError | None:
        kind = _TRANSLATIONS.get(type(error)) if isinstance(error, apsw.Error) else None
        if kind is None:
            return None
        rule = None
        if isinstance(error, apsw.CantOpenError):
            rule = "cannot be opened: even to be read, a database in WAL mode needs to write beside itself"
        if isinstance(error, apsw.ConstraintError):
            rule = "its tables do not agree; run `convlog verify`"
        if kind is StoreIOError:
            number = getattr(error, "system_errno", 0) or 0
            if number in _FULL_ERRNO:
                return StoreFull(self._path)
            rule = f"{StoreIOError.rule}: {os.strerror(number)}" if number else None
        return kind(self._path, rule)


def connect(
    path: str, *, read_only: bool = False, create: bool = False, synchronous: str = "FULL"
) -> Connection:
    """One connection, with every setting that safety rests on. Raises ForkedHandle where fork() made it unsafe."""
    if _UNSAFE and os.path.realpath(path) in _UNSAFE:
        raise ForkedHandle(path, "in use while this process was forked; start the process anew (spawn)")
    mode = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    connection = apsw.Connection(path, flags=mode | (apsw.SQLITE_OPEN_CREATE if create else 0))
    # A backstop only: the writer gate keeps processes in order; this waits for checkpoints and recovery.
    connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
    for option, on in (
        (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
        (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
        (apsw.SQLITE_DBCONFIG_DQS_DML, 0),
        (apsw.SQLITE_DBCONFIG_DQS_DDL, 0),
        (apsw.SQLITE_DBCONFIG_ENABLE_ATTACH_CREATE, 0),
        (apsw.SQLITE_DBCONFIG_ENABLE_ATTACH_WRITE, 0),
    ):
        connection.config(option, on)
    # secure_delete counts only if every connection has it since the file was born: SQLite's page splits
    # leave copies behind otherwise.
    for name, value in (
        ("synchronous", synchronous),
        ("secure_delete", "on"),
        ("recursive_triggers", "on"),
        ("cell_size_check", "on"),
        ("temp_store", "memory"),
        ("mmap_size", 0),
        ("journal_size_limit", 4 << 20),
    ):
        connection.pragma(name, value)
    return connection


def _identity(path: str) -> tuple[int, int] | None:
    """Which file has this name: (device, inode). The file is not opened."""
    try:
        found = os.stat(path)  # noqa: PTH116 asked at every block, and Path.stat takes ten times as long
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def fetch(connection: Connection, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
    """All rows of a query: the cursor is exhausted when this returns."""
    return connection.execute(sql, parameters).fetchall()


def value(connection: Connection, sql: str, parameters: Sequence[Any] = ()) -> Any:
    """The first column of the first row of a query, or None."""
    return connection.execute(sql, parameters).get


class Database:
    """The database of one open handle. Safe to use from several threads."""

    def __init__(self, path: str, *, durability: str, read_only: bool, gate: WriterGate | None) -> None:
        """Open nothing yet: each connection is made when first needed. `gate` orders writers across processes."""
        self.path = path
        self._synchronous = DURABILITIES[durability]
        self.read_only = read_only
        self._gate = gate
        self._writing = threading.RLock()
        # An in-memory database exists in one connection only, so reads and writes share it and its lock.
        self._reading = self._writing if path == MEMORY else threading.RLock()
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._refusal: type[StoreError] | None = None
        self._identity: tuple[int, int] | None = None
        _OPEN.add(self)

    def _connect(self, *, read_only: bool) -> Connection:
        connection = connect(
            self.path, read_only=read_only, create=self.path == MEMORY, synchronous=self._synchronous
        )
        if self.path != MEMORY and connection.execute(JOURNAL_MODE).get != "wal":
            connection.close()
            raise NotAStore(self.path, "the database is not in WAL mode")
        if self._identity is None and self.path != MEMORY:
            self._identity = _identity(self.path)
        return connection

    def check_open(self) -> None:
        """Raise StoreClosed or ForkedHandle. Asks the system nothing."""
        if self._refusal is not None:
            raise self._refusal(self.path)

    def check_usable(self) -> None:
        """Raise StoreClosed, ForkedHandle or StoreReplaced when nothing can be done with this handle any more."""
        self.check_open()
        # Asked at every block (2 µs): what would be written to a file that has no name any more is lost.
        if self._identity is not None and self._identity != _identity(self.path):
            raise StoreReplaced(self.path)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One snapshot. Fetch inside the block; keep it short."""
        with self._reading, translated(self.path):
            self.check_usable()
            if self.path == MEMORY:
                yield self._write_connection()
                return
            connection = self._reader
            if connection is None:
                connection = self._reader = self._connect(read_only=True)
            nested = bool(connection.in_transaction)  # a signal handler in the middle of a read of its thread
            try:
                if not nested:
                    connection.execute(BEGIN_READ)  # inside: an interrupt may come when it has begun
                yield connection
            finally:
                if not nested and connection.in_transaction:
                    connection.execute(COMMIT)

    def _write_connection(self) -> Connection:
        if self._writer is None:
            self._writer = self._connect(read_only=False)
        return self._writer

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One IMMEDIATE transaction: all of the block is committed, or nothing.

        IMMEDIATE, because a deferred transaction that reads first and writes later fails at once with
        SQLITE_BUSY_SNAPSHOT, and no waiting helps it. When the block returned, the commit is durable at
        the handle's durability.
        """
        with self._writing, translated(self.path):
            self.check_usable()  # first: the gate of a closed or forked handle is closed too
            with self._gate.held(BUSY_SECONDS) if self._gate is not None else nullcontext():
                if self.read_only:
                    raise StoreReadOnly(self.path, "this handle was opened read-only")
                connection = self._write_connection()
                committing = False
                try:
                    connection.execute(BEGIN_WRITE)  # inside: an interrupt may come when it has begun
                    yield connection
                    committing = True
                    connection.execute(COMMIT)
                except BaseException as error:
                    if isinstance(error, apsw.IOError):  # before the rollback: it may overwrite it
                        error.__dict__["system_errno"] = connection.system_errno
                    # SQLite has already rolled back after some errors (a full disk, a failed write).
                    if connection.in_transaction:
                        connection.execute(ROLLBACK)
                    elif committing and not isinstance(error, apsw.Error):
                        error.__dict__["committed"] = True  # interrupted behind a commit that went well
                    raise

    def is_unmoved(self, version: int) -> bool:
        """Whether nobody writes here now, and nobody else committed since its data_version was `version`. Waits for nobody."""
        if not self._writing.acquire(blocking=False):
            return False
        try:
            with translated(self.path):
                self.check_usable()
                writer = self._writer
                is_idle = writer is not None and not writer.in_transaction
                return is_idle and bool(writer and value(writer, DATA_VERSION) == version)
        finally:
            self._writing.release()

    def create_schema(self, fill: Callable[[Connection], None]) -> None:
        """Give an in-memory database its tables."""
        with self._writing, translated(self.path):
            fill(self._write_connection())

    def checkpoint(self) -> tuple[int, int]:
        """Move WAL frames into the database without waiting: (frames in the WAL, frames moved)."""
        with self._writing, translated(self.path):
            self.check_usable()
            return self._write_connection().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def truncate_wal(self) -> bool:
        """Empty the WAL, unless a reader prevents it. It holds sealed bytes only; to leave it is no fault."""
        with self._writing, translated(self.path):
            self.check_usable()
            if self.path == MEMORY:
                return True
            connection = self._write_connection()
            deadline = time.monotonic() + _TRUNCATE_SECONDS
            connection.set_busy_timeout(0)
            try:
                while True:
                    try:
                        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                    except apsw.BusyError:
                        if time.monotonic() > deadline:
                            return False
                        time.sleep(0.01)
                    else:
                        return True
            finally:
                connection.set_busy_timeout(int(BUSY_SECONDS * 1000))

    def watch(self) -> Callable[[], bool]:
        """A function that says whether anything was committed since it last said so, by any process.

        It has a connection of its own, because SQLite does not count a connection's own commits.
        """
        if self.path == MEMORY:
            return lambda: True
        with self._reading, translated(self.path):
            self.check_usable()
            connection = self._connect(read_only=True)
            return _Watch(self, connection).changed

    def close(self) -> None:
        """Close both connections. Safe to call twice."""
        with self._reading, self._writing:
            self._refusal = self._refusal or StoreClosed
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None

    def _locks(self) -> list[Lock]:
        return [self._reading, self._writing]

    def _forked(self, *, quiet: bool) -> None:
        _let_go(
            self.path, [found for found in (self._reader, self._writer) if found is not None], quiet=quiet
        )
        self._reader = self._writer = None
        self._reading = self._writing = threading.RLock()  # another thread may have held the old ones
        self._refusal = ForkedHandle


class _Watch:
    def __init__(self, database: Database, connection: Connection) -> None:
        self._database, self._connection = database, connection
        self._seen = -1
        self._asking = threading.Lock()
        _WATCHES.add(self)

    def changed(self) -> bool:
        # The pragma, not the method of the same name: the method does not see other processes.
        with self._asking, translated(self._database.path):
            self._database.check_usable()
            now: int = self._connection.execute(DATA_VERSION).get
        changed, self._seen = now != self._seen, now
        return changed

    def _locks(self) -> list[Lock]:
        return [self._asking]

    def _forked(self, *, quiet: bool) -> None:
        _let_go(self._database.path, [self._connection], quiet=quiet)
        self._asking = threading.Lock()


# fork(). SQLite keeps one table of open files for a process and counts the locks on them; POSIX locks do not
# pass to a child, the table does. A connection that the child opens beside inherited ones takes no lock, because the
# table says that there is one; the parent's last close then deletes the WAL under it, and what the child commits
# is lost. So no thread is let into SQLite while the process forks, and the child closes what it
# inherited, without a checkpoint: closing unlocks nothing of the parent's. Where that cannot be (a fork inside
# a block, a thread that does not come back), the child may not open that file at all.

_OPEN: Final[weakref.WeakSet[Database]] = weakref.WeakSet()
_WATCHES: Final[weakref.WeakSet[_Watch]] = weakref.WeakSet()
_LEAKED: Final[list[Connection]] = []
_UNSAFE: Final[set[str]] = set()
_FORKING: Final = threading.Lock()  # two threads may fork at once
_held: list[tuple[Database | _Watch, list[Lock]]] = []


def _let_go(path: str, connections: Sequence[Connection], *, quiet: bool) -> None:
    if path == MEMORY:
        _LEAKED.extend(connections)
    elif not quiet or any(connection.in_transaction for connection in connections):
        _LEAKED.extend(connections)
        _UNSAFE.add(os.path.realpath(path))
    else:
        for connection in connections:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()


def _before_fork() -> None:
    _FORKING.acquire()
    deadline = time.monotonic() + BUSY_SECONDS
    handles: list[Database | _Watch] = [*_OPEN, *_WATCHES]
    for handle in handles:
        wanted = handle._locks()  # noqa: SLF001 one module, one handle
        taken = [lock for lock in wanted if lock.acquire(timeout=max(0.0, deadline - time.monotonic()))]
        _held.append((handle, taken))


def _after_fork_in_parent() -> None:
    for _, taken in _held:
        for lock in taken:
            lock.release()
    _held.clear()
    _FORKING.release()


def _after_fork_in_child() -> None:
    for handle, taken in _held:
        handle._forked(quiet=len(taken) == len(handle._locks()))  # noqa: SLF001 one module, one handle
    _held.clear()
    _FORKING.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
