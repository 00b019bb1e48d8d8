"""What stands for each piece of state, kept while it is appended. Owns the table `state_head`.

A mutation names its `state_key` and, in `links.supersedes`, what it was decided on. Where it supersedes
every head, it alone stands. Where another landed since, both stand: a conflict, until one supersedes
both. A mutation that supersedes nothing replaces a single head, and `over` says so where that was another
agent's; onto a conflict it comes as one more head. `fold` is that rule, and the only one: the table, the
projection and the reading of an earlier time all use it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.errors import StateConflict
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.vocabulary import LAST_SEQ

SELECT_HEADS: Final = """
SELECT h.pos, v.id, e.agent, h.over FROM state_head AS h CROSS JOIN envelope AS v ON v.pos = h.pos
CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq
WHERE h.session = ? AND h.key = ? ORDER BY h.pos"""
SELECT_WRITTEN: Final = "SELECT 1 FROM event WHERE session = ? AND state_key = ? LIMIT 1"
SELECT_HISTORY: Final = """
SELECT e.pos, v.id, e.agent FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ? AND e.state_key = ? AND e.seq <= ? ORDER BY e.seq"""
SELECT_SUPERSEDED: Final = "SELECT target FROM link WHERE pos = ? AND type = 3"
SELECT_FORK: Final = "SELECT parent, base FROM fork WHERE session = ?"
DELETE_HEADS: Final = "DELETE FROM state_head WHERE session = ? AND key = ?"
INSERT_HEAD: Final = "INSERT INTO state_head VALUES (?, ?, ?, ?)"


class Head(NamedTuple):
    """A mutation that stands for a piece of state. `over` is the position of another agent's that it replaced."""

    pos: int
    id: bytes
    agent: int
    over: int | None = None


def fold(heads: Iterable[Head], new: Head, superseded: Collection[int]) -> list[Head]:
    """What stands once `new`, which supersedes the positions `superseded`, has landed."""
    before = list(heads)
    if superseded:
        return [head for head in before if head.pos not in superseded] + [new]
    if len(before) > 1:
        return [*before, new]
    over = next((head.pos for head in before if head.agent != new.agent), None)
    return [new._replace(over=over)]


def heads(connection: Connection, session: SessionRow, key: int) -> list[Head]:
    """What stands for a state key of a session, oldest first; in a fork, what it inherited counts."""
    found = [Head(*row) for row in fetch(connection, SELECT_HEADS, (session.number, key))]
    if found or not session.base or fetch(connection, SELECT_WRITTEN, (session.number, key)):
        return found
    return _inherited(connection, session, key)


def line_of(connection: Connection, session: SessionRow) -> list[tuple[int, int]]:
    """A session, and what it was forked from, and so on: (session, the last seq that counts)."""
    line = [(session.number, LAST_SEQ)]
    while session.base and (forked := fetch(connection, SELECT_FORK, (line[-1][0],))):
        ((parent, base),) = forked
        line.append((parent, min(base, line[-1][1])))
    return line


def _inherited(connection: Connection, session: SessionRow, key: int) -> list[Head]:
    found: list[Head] = []
    for parent, base in reversed(line_of(connection, session)[1:]):
        for row in fetch(connection, SELECT_HISTORY, (parent, key, base)):
            superseded = [target for (target,) in fetch(connection, SELECT_SUPERSEDED, (row[0],))]
            found = fold(found, Head(*row), superseded)
    return found


def require(state_key: str, found: Iterable[Head], expected: Collection[str]) -> None:
    """Refuse unless exactly the mutations `expected` stand. Raises StateConflict."""
    standing = [id_text(head.id) for head in found]
    if set(standing) != set(expected):
        raise StateConflict(state_key, standing)


def record(
    connection: Connection,
    session: int,
    key: int,
    before: Iterable[Head],
    new: Head,
    superseded: Collection[int],
) -> None:
    """Let `new` stand, as `fold` says."""
    connection.execute(DELETE_HEADS, (session, key))
    for head in fold(before, new, superseded):
        connection.execute(INSERT_HEAD, (session, key, head.pos, head.over))
