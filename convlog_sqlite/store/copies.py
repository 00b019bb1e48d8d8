"""Every file outside the database that may hold plaintext: mirrors and exports. Owns the table `copy`.

A file is written down here before its first byte, so that an erasure can reach it.
"""

from __future__ import annotations

from typing import Final

from convlog_sqlite.database import Connection, fetch, value

SELECT_COPIES: Final = "SELECT kind, path FROM copy ORDER BY id"
SELECT_COPY: Final = "SELECT 1 FROM copy WHERE path = ?"
SELECT_KIND: Final = "SELECT count(*) FROM copy WHERE kind = ?"
SELECT_EXPORTS: Final = "SELECT path FROM copy WHERE kind = 2 ORDER BY path"
DELETE_EXPORT: Final = "DELETE FROM copy WHERE kind = 2 AND path = ?"
INSERT_COPY: Final = "INSERT INTO copy (kind, path) VALUES (?, ?)"

MIRROR: Final = 1
EXPORT: Final = 2
OWN_MIRROR: Final = "sessions"  # relative to the store: it may be moved


def has_mirror(connection: Connection) -> bool:
    """Whether the store keeps its own mirror."""
    return bool(value(connection, SELECT_KIND, (MIRROR,)))


def is_registered(connection: Connection, path: str) -> bool:
    """Whether `path` is written down."""
    return value(connection, SELECT_COPY, (path,)) is not None


def register(connection: Connection, kind: int, path: str) -> None:
    """Write a file or directory down, in a write block. Twice is once."""
    if not is_registered(connection, path):
        connection.execute(INSERT_COPY, (kind, path))


def unregister(connection: Connection, path: str) -> None:
    """Forget a directory of exports, in a write block: the caller saw that no file is left there."""
    connection.execute(DELETE_EXPORT, (path,))


def exports(connection: Connection) -> list[str]:
    """The directories that were exported to, absolute."""
    return [path for (path,) in fetch(connection, SELECT_EXPORTS)]


def paths(connection: Connection) -> list[str]:
    """What is written down, as it is: the store's own mirror by `OWN_MIRROR`, exports by absolute paths."""
    return [path for _, path in fetch(connection, SELECT_COPIES)]
