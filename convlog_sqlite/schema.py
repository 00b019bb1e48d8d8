"""The schema: finding and applying migrations, making a new database, refusing a newer one.

A new database is built aside and linked into place, so that nobody ever sees half of one. Pending
migrations run under BEGIN IMMEDIATE, which re-checks what is pending, so that two processes may open an
old store at once. sqlite_utils is imported only when there is something to apply. A read-only handle
never migrates.
"""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from convlog_sqlite.database import (
    BEGIN_WRITE,
    COMMIT,
    MEMORY,
    ROLLBACK,
    Connection,
    connect,
    fetch,
    translated,
    value,
)
from convlog_sqlite.errors import NotAStore, SchemaTooNew, os_errors
from convlog_sqlite.filesystem import keep_private, sync_directory

APPLICATION_ID: Final = 0x434C4F47  # "CLOG"
_SET: Final = "convlog"

GET_APPLICATION_ID: Final = "PRAGMA application_id"
USE_WAL: Final = "PRAGMA journal_mode = WAL"
FOREIGN_KEY_CHECK: Final = "PRAGMA foreign_key_check"
APPLIED: Final = "SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY id"
OBJECTS: Final = "SELECT type, name, sql FROM sqlite_schema"
TABLES: Final = "SELECT count(*) FROM sqlite_schema WHERE name IN ('_sqlite_migrations', 'store')"
INSERT_STORE: Final = "INSERT INTO store (id, store_id) VALUES (1, ?)"
SELECT_STORE: Final = "SELECT store_id FROM store WHERE id = 1"


def migrations_directory() -> Path:
    """Where the numbered SQL files are: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).with_name("migrations")
    return inside if inside.is_dir() else Path(__file__).parent.parent / "migrations"


def known() -> list[str]:
    """The names of all migrations this convlog has, in order."""
    return sorted(path.stem for path in migrations_directory().glob("[0-9]*.sql"))


def check(connection: Connection, path: str) -> list[str]:
    """The names of migrations still to be applied. Raises NotAStore, SchemaTooNew."""
    if value(connection, GET_APPLICATION_ID) != APPLICATION_ID or value(connection, TABLES) != 2:
        raise NotAStore(path, "the database there was not made by convlog")
    applied = [name for (name,) in fetch(connection, APPLIED, (_SET,))]
    names = known()
    if set(applied) - set(names):
        raise SchemaTooNew(path, len(applied), len(names))
    if not applied:
        raise NotAStore(path, "the database does not say which migrations it has")
    return [name for name in names if name not in applied]


def store_id(connection: Connection, path: str) -> bytes:
    """The id of the store, 16 bytes. Raises NotAStore."""
    found = value(connection, SELECT_STORE)
    if not isinstance(found, bytes):
        raise NotAStore(path, "the database has no store id")
    return found


def build(path: Path, identity: bytes) -> None:
    """Make the database of a new store at `path`, which must not exist yet."""
    with translated(str(path)):
        connection = connect(str(path), create=True)
        try:
            keep_private(path)  # before the WAL exists: it takes the mode of the database
            connection.execute(USE_WAL)
            fill(connection, identity)
        finally:
            connection.close()


def differences(connection: Connection) -> list[str]:
    """Tables, indexes and triggers of an upgraded database that are not as the migrations make them, by name.

    Whoever hands over a database may have taken its guards away, or put statements of their own in.
    """
    pristine = connect(MEMORY, create=True)
    try:
        _apply(pristine)
        expected = {tuple(row) for row in fetch(pristine, OBJECTS)}
    finally:
        pristine.close()
    found = {tuple(row) for row in fetch(connection, OBJECTS)}
    return sorted({name for _, name, _ in expected ^ found})


def fill(connection: Connection, identity: bytes) -> None:
    """Give an empty database its tables and the store its id."""
    connection.pragma("application_id", APPLICATION_ID)
    _apply(connection)
    connection.execute(INSERT_STORE, (identity,))


def upgrade(path: Path) -> None:
    """Apply what is pending in an existing database. Safe when several processes do it at once."""
    with translated(str(path)):
        connection = connect(str(path))
        try:
            _apply(connection)
        finally:
            connection.close()


def link_into_place(built: Path, path: Path) -> bool:
    """Give a database that was built aside its name. False when another process was first."""
    with os_errors(path):
        try:
            os.link(built, path)
        except FileExistsError:
            built.unlink()
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP):
                raise
            built.rename(path)  # no hard links here; the caller's lock keeps others out
        else:
            built.unlink()
        sync_directory(path.parent)
    return True


def _apply(connection: Connection) -> None:
    from sqlite_utils import Database  # noqa: PLC0415 costs 0.1 s, and is seldom needed

    migrations: Any = _load_migrations()
    connection.execute(BEGIN_WRITE)
    try:
        # sqlite-utils reads what is pending without a lock; under ours its answer stands.
        adapted: Any = MigrationConnection(connection)
        migrations.apply(Database(adapted, recursive_triggers=False, execute_plugins=False))
        if fetch(connection, FOREIGN_KEY_CHECK):
            raise NotAStore(connection.filename, "a migration left dangling references")
        connection.pragma("user_version", len(known()))
        connection.execute(COMMIT)
    except BaseException:  # whatever it was, half a migration is rolled back, and it goes on to the caller
        if connection.in_transaction:
            connection.execute(ROLLBACK)
        raise


def _load_migrations() -> object:
    file = migrations_directory() / "migrations.py"
    spec = importlib.util.spec_from_file_location("convlog_sqlite_migrations", file)
    if spec is None or spec.loader is None:
        raise NotAStore(file, "the installed convlog has no migrations")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    migrations: object = module.migrations
    return migrations


class MigrationConnection:
    """The part of a DB-API connection that sqlite-utils needs to run migrations, over apsw.

    One SQLite library in a process, migrations included: two libraries on one file corrupt it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.isolation_level = None

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: Any = ()) -> MigrationCursor:
        return MigrationCursor(self._connection, sql, parameters)

    def cursor(self) -> MigrationConnection:
        return self

    def close(self) -> None: ...


class MigrationCursor:
    """Rows already fetched: nothing stays open in the database."""

    def __init__(self, connection: Connection, sql: str, parameters: Any) -> None:
        described: list[tuple[Any, ...]] = []

        def describe(cursor: Any, _sql: str, _bindings: Any) -> bool:
            described[:] = [(name, *(None,) * 6) for name, *_ in cursor.get_description()]
            return True

        cursor = connection.cursor()
        cursor.exec_trace = describe
        self._rows: list[Sequence[Any]] = list(cursor.execute(sql, parameters).fetchall())
        self.description = described or None
        self.lastrowid = connection.last_insert_rowid()
        self.rowcount = connection.changes()

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self._rows)

    def fetchall(self) -> list[Sequence[Any]]:
        rows, self._rows = self._rows, []
        return rows

    def fetchone(self) -> Sequence[Any] | None:
        return self._rows.pop(0) if self._rows else None
