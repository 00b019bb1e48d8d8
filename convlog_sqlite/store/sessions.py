"""Which sessions there are. Owns the table `session`.

A session id is given once and for ever; two ids that differ only in case cannot both exist, because they
are file names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.errors import InvalidEvent, UnknownReference
from convlog_sqlite.store.names import SELECT_TEXT

SELECT_SESSION: Final = "SELECT id, name, tenant, base FROM session WHERE folded = ?"
SELECT_SESSIONS: Final = "SELECT id, name, tenant, base FROM session ORDER BY name"
INSERT_SESSION: Final = "INSERT INTO session (name, folded, tenant) VALUES (?, ?, ?) RETURNING id"


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as the tables know it. `base` is the seq it starts behind."""

    number: int
    name: str
    tenant: str | None
    base: int


class Sessions:
    """Sessions by id, remembered per handle: a session never changes and none is deleted."""

    def __init__(self) -> None:
        self._rows: dict[str, SessionRow] = {}

    def find(self, connection: Connection, name: str) -> SessionRow | None:
        """The session `name`, or None. Raises InvalidEvent when it exists in other case."""
        row = self._rows.get(name)
        if row is not None:
            return row
        found = fetch(connection, SELECT_SESSION, (name.casefold(),))
        if not found:
            return None
        row = _row(connection, found[0])
        if row.name != name:
            raise InvalidEvent("/session", f"differs only by case from the session {row.name!r}")
        return row

    def require(self, connection: Connection, name: str) -> SessionRow:
        """The session `name`. Raises UnknownReference."""
        row = self.find(connection, name)
        if row is None:
            raise UnknownReference("session", name)
        return row

    def all(self, connection: Connection) -> list[SessionRow]:
        """Every session, by id."""
        return [_row(connection, row) for row in fetch(connection, SELECT_SESSIONS)]

    def insert(
        self, connection: Connection, name: str, tenant: str | None, tenant_number: int | None
    ) -> SessionRow:
        """Make a session. Remembered by `remember`, once the transaction committed."""
        number: int = value(connection, INSERT_SESSION, (name, name.casefold(), tenant_number))
        return SessionRow(number, name, tenant, 0)

    def known(self, name: str) -> SessionRow | None:
        """The session `name`, if it is remembered."""
        return self._rows.get(name)

    def remember(self, row: SessionRow) -> None:
        """Keep a row that is committed: a transaction that reads its own rows may yet be rolled back."""
        self._rows[row.name] = row


def _row(connection: Connection, row: tuple[int, str, int | None, int]) -> SessionRow:
    number, name, tenant, base = row
    text = None if tenant is None else value(connection, SELECT_TEXT, (tenant,))
    return SessionRow(number, name, text, base)
