"""The rows of one transaction, kept until they go in together.

Owns the tables `envelope`, `event`, `posting`, `purpose`, `link`, `slot`, `payload`, `idempotency`, `open_call`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from convlog_sqlite.database import Connection
from convlog_sqlite.store.labels import INSERT_LABEL, INSERT_SUBJECT

INSERT_ENVELOPE: Final = "INSERT INTO envelope VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_EVENT: Final = "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_POSTING: Final = "INSERT INTO posting VALUES (?, ?, ?, ?)"
INSERT_PURPOSE: Final = "INSERT OR IGNORE INTO purpose VALUES (?, ?, ?)"
INSERT_LINK: Final = "INSERT OR IGNORE INTO link VALUES (?, ?, ?)"
INSERT_SLOT: Final = "INSERT INTO slot VALUES (?, ?, ?)"
INSERT_PAYLOAD: Final = "INSERT INTO payload VALUES (?, ?, ?)"
INSERT_IDEMPOTENCY: Final = "INSERT INTO idempotency VALUES (?, ?)"
INSERT_OPEN: Final = "INSERT INTO open_call VALUES (?, ?)"


@dataclass(slots=True)
class Rows:
    """The rows of one transaction, inserted together at its end."""

    envelope: list[tuple[Any, ...]] = field(default_factory=list)
    event: list[tuple[Any, ...]] = field(default_factory=list)
    posting: list[tuple[int, int, int | None, int]] = field(default_factory=list)
    subject: list[tuple[int, int, int, int]] = field(default_factory=list)
    label: list[tuple[int, int, int, int]] = field(default_factory=list)
    purpose: list[tuple[int, int, int]] = field(default_factory=list)
    link: list[tuple[int, int, int]] = field(default_factory=list)
    slot: list[tuple[int, int, int]] = field(default_factory=list)
    payload: list[tuple[int, int, bytes]] = field(default_factory=list)
    idempotency: list[tuple[bytes, int]] = field(default_factory=list)
    open_call: dict[int, tuple[int, int]] = field(default_factory=dict)

    def insert(self, connection: Connection) -> None:
        """Insert what there is, and keep none of it."""
        for sql, rows in (
            (INSERT_ENVELOPE, self.envelope),
            (INSERT_EVENT, self.event),
            (INSERT_POSTING, self.posting),
            (INSERT_SUBJECT, self.subject),
            (INSERT_LABEL, self.label),
            (INSERT_PURPOSE, self.purpose),
            (INSERT_LINK, self.link),
            (INSERT_SLOT, self.slot),
            (INSERT_PAYLOAD, self.payload),
            (INSERT_IDEMPOTENCY, self.idempotency),
        ):
            if rows:
                connection.executemany(sql, rows)
                rows.clear()
        if self.open_call:
            connection.executemany(INSERT_OPEN, self.open_call.values())
            self.open_call.clear()
