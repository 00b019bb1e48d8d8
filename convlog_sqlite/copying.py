"""A whole database in one new file, and the look at such a file that says whether it is sound.

A copy is made by VACUUM INTO under one snapshot: writers go on, and it holds what was committed when it began,
with no page that is free and no WAL beside it. It is private from its first byte. SQLite's own backup calls begin
anew whenever another process commits between two steps, and so may never come to an end.

The look goes through everything that needs no key: SQLite's check, the numbers and both chains.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from convlog_sqlite import canonical, schema
from convlog_sqlite.database import Connection, connect, fetch, translated, value
from convlog_sqlite.errors import NotAStore, StoreCorrupt, os_errors
from convlog_sqlite.filesystem import PRIVATE_FILE, sync
from convlog_sqlite.fork_check import SELECT_FORK_CHAIN
from convlog_sqlite.store.committing import HIGHEST_SLOT
from convlog_sqlite.store.reserved import KnownKeys, known_keys

COPY_INTO: Final = "VACUUM INTO ?"
PAGE_COUNT: Final = "PRAGMA page_count"
PAGE_SIZE: Final = "PRAGMA page_size"
INTEGRITY: Final = "PRAGMA integrity_check(20)"
SELECT_HEAD: Final = "SELECT coalesce(max(pos), 0) FROM envelope"
SELECT_SESSION: Final = "SELECT name, base FROM session WHERE id = ?"
HAS_REMOVALS: Final = "SELECT 1 FROM sqlite_schema WHERE name = 'removal'"
IS_REMOVED: Final = "SELECT 1 FROM removal WHERE session = ?"
WALK: Final = """
SELECT pos, session, seq, bytes, commitment, leaf, chain, store_chain FROM envelope
WHERE pos > ? ORDER BY pos LIMIT 1000"""

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much

_STEPS: Final = 50_000  # of SQLite's machine between two looks at how far a copy is
_MOST_PROBLEMS: Final = 20


@dataclass(slots=True)
class Checked:
    """What a database says of itself, and what is wrong with it: nothing, where `problems` is empty."""

    store_id: bytes
    known: KnownKeys
    highest_slot: int
    events: int = 0
    chain: bytes = b""
    problems: list[str] = field(default_factory=list)


def silent(_what: str, _done: int, _of: int) -> None:
    """Say nothing of how far it is."""


@contextlib.contextmanager
def looking(path: Path) -> Iterator[Connection]:
    """A connection of its own that only reads a database which may be in any mode. Raises StoreError."""
    with translated(str(path)):
        connection = connect(str(path), read_only=True)
        try:
            yield connection
        finally:
            connection.close()


def copy(source: Path, target: Path, progress: Progress = silent) -> int:
    """Make `target`, which must not be there or be empty, a copy of the database `source`; how many bytes it has.

    It is synced. Raises StoreFull, StoreIOError, StoreCorrupt; an interrupt ends it. What there is of it then is for
    the caller to remove.
    """
    with os_errors(target):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE)
        os.close(descriptor)
    with looking(source) as connection:
        expected = int(value(connection, PAGE_COUNT)) * int(value(connection, PAGE_SIZE))

        def look() -> bool:
            progress("copied", min(_size(target), expected), expected)
            return False  # go on

        connection.set_progress_handler(look, _STEPS)  # it is also what lets an interrupt through
        connection.execute(COPY_INTO, (str(target),))
    with os_errors(target):
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW)  # nobody has it open
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)
    size = _size(target)
    progress("copied", size, size)
    return size


def remove(path: Path) -> None:
    """Remove a copy, and what SQLite may have left beside it: sealed bytes only."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def check(path: Path, progress: Progress = silent) -> Checked:
    """Look a database through. Raises NotAStore, SchemaTooNew, StoreCorrupt, StoreReadOnly."""
    if not path.is_file():
        raise NotAStore(path, "there is no file of this name")
    found: Checked | None = None
    try:
        with looking(path) as connection:
            schema.check(connection, str(path))
            identity = schema.store_id(connection, str(path))
            found = Checked(identity, known_keys(connection), value(connection, HIGHEST_SLOT))
            found.problems += [text for (text,) in fetch(connection, INTEGRITY) if text != "ok"]
            _Walk(connection, found, progress).go()
    except StoreCorrupt as damaged:
        if found is None:
            raise
        found.problems.append(damaged.rule)
    return found


class _Walk:
    """Goes along the chains. It goes on from what stands there, so that one change is found once."""

    def __init__(self, connection: Connection, found: Checked, progress: Progress) -> None:
        self._connection, self._found, self._progress = connection, found, progress
        self._heads: dict[int, tuple[int, bytes]] = {}
        self._has_removals = value(connection, HAS_REMOVALS) is not None  # an older backup does not
        found.chain = canonical.origin(found.store_id)

    def go(self) -> None:
        of = int(value(self._connection, SELECT_HEAD))
        while rows := fetch(self._connection, WALK, (self._found.events,)):
            for row in rows:
                self._look(*row)
            self._progress("checked", self._found.events, of)

    def _look(self, pos: int, session: int, seq: int, envelope: bytes, commitment: bytes, *said: Any) -> None:
        leaf, chain, store_chain = said
        before, chain_before = self._heads.get(session) or self._origin(session)
        # What a removed session had is gone; its leaf stands for it.
        is_emptied = not envelope and self._is_removed(session)
        holds = (
            pos == self._found.events + 1
            and seq == before + 1
            and (is_emptied or canonical.leaf(envelope, commitment) == leaf)
            and canonical.link(chain_before, leaf) == chain
            and canonical.link(self._found.chain, leaf) == store_chain
        )
        if not holds and len(self._found.problems) < _MOST_PROBLEMS:
            self._found.problems.append(f"the chain does not hold at position {pos}")
        self._found.events, self._found.chain = pos, store_chain
        self._heads[session] = seq, chain

    def _is_removed(self, session: int) -> bool:
        return self._has_removals and value(self._connection, IS_REMOVED, (session,)) is not None

    def _origin(self, session: int) -> tuple[int, bytes]:
        name, base = next(iter(fetch(self._connection, SELECT_SESSION, (session,))), ("", 0))
        forked = fetch(self._connection, SELECT_FORK_CHAIN, (session,)) if base else []
        return base, forked[0][0] if forked else canonical.origin(self._found.store_id, name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
