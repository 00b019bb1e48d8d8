"""Which sessions there are, and which are removed. Owns the tables `session` and `removal`.

A session id is given once and for ever; two ids that differ only in case cannot both exist, because they
are file names. A session that retention removed keeps its row, and is as good as not there: to open it or to
append to it is SessionRemoved from the moment that its removal is decided, to read on in it when its rows went.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.errors import InvalidEvent, SessionRemoved, UnknownReference
from convlog_sqlite.instants import from_microseconds, id_text
from convlog_sqlite.store.names import SELECT_TEXT

SELECT_SESSION: Final = "SELECT id, name, tenant, base FROM session WHERE folded = ?"
SELECT_SESSIONS: Final = """
SELECT id, name, tenant, base FROM session AS s
WHERE NOT EXISTS (SELECT 1 FROM removal AS r WHERE r.session = s.id) ORDER BY name"""
INSERT_SESSION: Final = "INSERT INTO session (name, folded, tenant) VALUES (?, ?, ?) RETURNING id"
SELECT_REMOVAL: Final = """
SELECT s.name, r.policy, r.version, r.at, r.intent, r.events FROM removal AS r
CROSS JOIN session AS s ON s.id = r.session WHERE r.session = ?"""
SELECT_REMOVALS: Final = """
SELECT s.name, r.policy, r.version, r.at, r.intent, r.events FROM removal AS r
CROSS JOIN session AS s ON s.id = r.session ORDER BY s.name"""
INSERT_REMOVAL: Final = "INSERT INTO removal VALUES (?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as the tables know it. `base` is the seq it starts behind."""

    number: int
    name: str
    tenant: str | None
    base: int


@dataclass(frozen=True, slots=True)
class RemovedSession:
    """A session that retention removed: by which policy (`old@2`), when that was decided (RFC 3339), how many events.

    `by` is the id of the event in `_store` that records it.
    """

    id: str
    policy: str
    at: str
    by: str
    events: int

    def to_dict(self) -> dict[str, Any]:
        """The removal as JSON values."""
        return asdict(self)


def require_there(connection: Connection, number: int) -> None:
    """Raise SessionRemoved for a session that is removed, or being removed."""
    for row in fetch(connection, SELECT_REMOVAL, (number,)):
        found = _removed(row)
        raise SessionRemoved(found.id, found.policy, found.at, found.by)


def removed(connection: Connection) -> list[RemovedSession]:
    """Every session that is removed, or being removed, by id."""
    return [_removed(row) for row in fetch(connection, SELECT_REMOVALS)]


def insert_removal(
    connection: Connection,
    number: int,
    intent: bytes,
    policy: tuple[str, int],
    at: int,
    head: tuple[int, bytes],
) -> None:
    """Let a session be removed from now on. `at` is in microseconds, `head` its number of events and end of chain."""
    connection.execute(INSERT_REMOVAL, (number, intent, *policy, at, *head))


def _removed(row: tuple[str, str, int, int, bytes, int]) -> RemovedSession:
    name, policy, version, at, intent, events = row
    return RemovedSession(name, f"{policy}@{version}", from_microseconds(at), id_text(intent), events)


class Sessions:
    """Sessions by id, remembered per handle: a session never changes, and its row is never deleted."""

    def __init__(self) -> None:
        self._rows: dict[str, SessionRow] = {}

    def find(self, connection: Connection, name: str) -> SessionRow | None:
        """The session `name`, or None; removed or not. Raises InvalidEvent when it exists in other case."""
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
        """Every session that is not removed, by id."""
        return [_row(connection, row) for row in fetch(connection, SELECT_SESSIONS)]

    def insert(
        self, connection: Connection, name: str, tenant: str | None, tenant_number: int | None
    ) -> SessionRow:
        """Make a session. Remembered by `remember`, once the transaction committed."""
        number: int = value(connection, INSERT_SESSION, (name, name.casefold(), tenant_number))
        return SessionRow(number, name, tenant, 0)

    def remember(self, row: SessionRow) -> None:
        """Keep a row that is committed: a transaction that reads its own rows may yet be rolled back."""
        self._rows[row.name] = row


def _row(connection: Connection, row: tuple[int, str, int | None, int]) -> SessionRow:
    number, name, tenant, base = row
    text = None if tenant is None else value(connection, SELECT_TEXT, (tenant,))
    return SessionRow(number, name, text, base)
