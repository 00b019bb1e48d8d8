"""What a database that is about to be replaced has, and the backup that replaces it does not."""

from __future__ import annotations

from typing import Final

from convlog_sqlite.database import Connection, value

CHAIN_AT: Final = "SELECT store_chain FROM envelope WHERE pos = ?"
HEAD: Final = "SELECT coalesce(max(pos), 0) FROM envelope"


def undone(connection: Connection, backup: Connection) -> int:
    """How many of its events the backup does not have; both are of one store."""
    head = int(value(connection, HEAD))
    low, high = 0, min(head, int(value(backup, HEAD)))
    while low < high:  # the last position up to which they are the same
        middle = (low + high + 1) // 2
        same = value(connection, CHAIN_AT, (middle,)) == value(backup, CHAIN_AT, (middle,))
        low, high = (middle, high) if same else (low, middle - 1)
    return head - low
