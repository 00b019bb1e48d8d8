"""Every file outside the database that may hold plaintext: mirrors and exports. Owns the table `copy`.

A file is written down here before its first byte, so that an erasure can reach it. Where it was written through a
view, that stands beside it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from convlog_sqlite.database import Connection, fetch, value

SELECT_COPIES: Final = "SELECT path, view FROM copy ORDER BY id"
SELECT_VIEW: Final = "SELECT view FROM copy WHERE path = ?"
SELECT_COPY: Final = "SELECT 1 FROM copy WHERE path = ?"
SELECT_KIND: Final = "SELECT count(*) FROM copy WHERE kind = ?"
SELECT_EXPORTS: Final = "SELECT path FROM copy WHERE kind = 2 ORDER BY path"
DELETE_EXPORT: Final = "DELETE FROM copy WHERE kind = 2 AND path = ?"
INSERT_COPY: Final = "INSERT INTO copy (kind, path, view) VALUES (?, ?, ?)"

MIRROR: Final = 1
EXPORT: Final = 2
OWN_MIRROR: Final = "sessions"  # relative to the store: it may be moved


class Copied(NamedTuple):
    """A directory of files: its path as in `paths`, and the view that they were written through, if any."""

    path: str
    view: str | None


def has_mirror(connection: Connection) -> bool:
    """Whether the store keeps its own mirror."""
    return bool(value(connection, SELECT_KIND, (MIRROR,)))


def is_registered(connection: Connection, path: str) -> bool:
    """Whether `path` is written down."""
    return value(connection, SELECT_COPY, (path,)) is not None


def register(connection: Connection, kind: int, path: str, view: str | None = None) -> None:
    """Write a file or directory down, in a write block. Twice is once."""
    if not is_registered(connection, path):
        connection.execute(INSERT_COPY, (kind, path, view))


def view_of(connection: Connection, path: str) -> str | None:
    """Through which view the files in a directory were written, None for whole ones and where there are none."""
    found: str | None = value(connection, SELECT_VIEW, (path,))
    return found


def unregister(connection: Connection, path: str) -> None:
    """Forget a directory of exports, in a write block: the caller saw that no file is left there."""
    connection.execute(DELETE_EXPORT, (path,))


def exports(connection: Connection) -> list[str]:
    """The directories that were exported to, absolute."""
    return [path for (path,) in fetch(connection, SELECT_EXPORTS)]


def paths(connection: Connection) -> list[str]:
    """What is written down, as it is: the store's own mirror by `OWN_MIRROR`, exports by absolute paths."""
    return [copied.path for copied in registered(connection)]


def registered(connection: Connection) -> list[Copied]:
    """What is written down, each with its view."""
    return [Copied(*row) for row in fetch(connection, SELECT_COPIES)]
