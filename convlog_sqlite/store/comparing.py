"""Two sessions side by side: what they share, and which pieces of state stand differently since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from convlog_sqlite.database import Connection, Database, fetch, value
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.names import SELECT_TEXT
from convlog_sqlite.store.reading import SELECT_HEAD
from convlog_sqlite.store.sessions import SessionRow, Sessions
from convlog_sqlite.store.states import heads

# ?1 session  ?2 after seq  ?3 last seq
SELECT_STATES: Final = """
SELECT seq, state_key FROM (SELECT seq, state_key FROM event
    WHERE session = ?1 AND seq > ?2 AND seq <= ?3 ORDER BY seq LIMIT 4000)"""

StateApart = tuple[
    str, tuple[str, ...], tuple[str, ...]
]  # state key, ids that stand in the one and in the other


def shared(database: Database, a: str, b: str) -> int:
    """The last seq that two sessions share, 0 when they share nothing. Raises UnknownReference."""
    with database.read() as connection:
        mine, theirs = (Sessions().require(connection, name) for name in (a, b))
        if mine.number == theirs.number:
            return value(connection, SELECT_HEAD, (mine.number,)) or mine.base
    last = {part.number: part.upto for part in theirs.line}
    return max((min(part.upto, last[part.number]) for part in mine.line if part.number in last), default=0)


def states_since(database: Database, a: str, b: str, seq: int) -> Iterator[StateApart]:
    """The pieces of state that were set behind `seq` in either session and stand differently, by key."""
    keys: set[int] = set()
    for name in (a, b):
        keys |= _set_since(database, name, seq)
    with database.read() as connection:
        rows = [Sessions().require(connection, name) for name in (a, b)]
        texts = sorted((value(connection, SELECT_TEXT, (key,)), key) for key in keys)
    for text, key in texts:
        with database.read() as connection:
            mine, theirs = (_standing(connection, row, key) for row in rows)
        if mine != theirs:
            yield text, mine, theirs


def _standing(connection: Connection, session: SessionRow, key: int) -> tuple[str, ...]:
    return tuple(id_text(head.id) for head in heads(connection, session, key))


def _set_since(database: Database, name: str, seq: int) -> set[int]:
    """The numbers of the state keys that were set in a session behind `seq`."""
    found: set[int] = set()
    with database.read() as connection:
        line = Sessions().require(connection, name).line
    for part in line:
        after = max(part.after, seq)
        while after < part.upto:
            with database.read() as connection:
                rows = fetch(connection, SELECT_STATES, (part.number, after, part.upto))
            if not rows:
                break
            found.update(key for _, key in rows if key is not None)
            after = rows[-1][0]
    return found
