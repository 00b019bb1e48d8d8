"""Comparing the store's chain with an anchor that was kept elsewhere, for `verify`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from convlog_sqlite.database import value
from convlog_sqlite.findings import Finding
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.reader import Reader

SELECT_STORE_CHAIN: Final = "SELECT store_chain FROM envelope WHERE pos = ?"


def anchor_findings(reader: Reader, store: str, pos: int, chain: str) -> Iterator[Finding]:
    """Whether the log still goes through `chain` (hex) at position `pos`, and is that of `store`."""
    if store != id_text(reader.store_id):
        yield Finding("anchor", "the anchor is of another store")
        return
    with reader.database.read() as connection:
        found = value(connection, SELECT_STORE_CHAIN, (pos,))
    if found is None and pos > 0:
        yield Finding("anchor", f"the log ends before position {pos}: newer events were cut off")
    elif found is not None and found.hex() != chain:
        yield Finding("anchor", f"the log was rewritten at or before position {pos}")
