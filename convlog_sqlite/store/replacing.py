"""What a database that is about to be replaced has, and the backup that replaces it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.erasing import SELECT_INTENTS
from convlog_sqlite.vocabulary import STORE_SESSION

CHAIN_AT: Final = "SELECT store_chain FROM envelope WHERE pos = ?"
HEAD: Final = "SELECT coalesce(max(pos), 0) FROM envelope"
DECISIONS: Final = """
SELECT k.text, count(*) FROM session AS s CROSS JOIN event AS e ON e.session = s.id
CROSS JOIN name AS k ON k.id = e.kind WHERE s.name = ? AND e.pos > ? GROUP BY k.text ORDER BY k.text"""
STANDING_SLOTS: Final = """
SELECT p.pos, p.slot FROM payload AS p LEFT JOIN tombstone AS t ON t.pos = p.pos
WHERE p.pos > ? AND t.pos IS NULL ORDER BY p.pos LIMIT 4096"""


def head(connection: Connection) -> int:
    """The position of the newest event, 0 in an empty store."""
    return int(value(connection, HEAD))


def common(connection: Connection, other: Connection) -> int:
    """The last position up to which two databases of one store have the same events."""
    low, high = 0, min(head(connection), head(other))
    while low < high:
        middle = (low + high + 1) // 2
        same = value(connection, CHAIN_AT, (middle,)) == value(other, CHAIN_AT, (middle,))
        low, high = (middle, high) if same else (low, middle - 1)
    return low


def decisions(connection: Connection, after: int) -> dict[str, int]:
    """What was decided in `_store` behind a position: how many mutations of each kind."""
    return dict(fetch(connection, DECISIONS, (STORE_SESSION, after)))


def pending(connection: Connection) -> list[str]:
    """The erasures that are decided and not done everywhere."""
    return [id_text(row[0]) for row in fetch(connection, SELECT_INTENTS)]


def standing_slots(connection: Connection) -> Iterator[list[int]]:
    """The slots of all events that no tombstone says are erased, many at a time."""
    pos = 0
    while rows := fetch(connection, STANDING_SLOTS, (pos,)):
        pos = rows[-1][0]
        yield [slot for _, slot in rows if slot is not None]
