"""Which sessions there are, which were forked from which, and which are removed. Owns `session`, `fork`, `removal`.

A session id is given once and for ever; two ids that differ only in case cannot both exist, because they
are file names. A session that retention removed keeps its row, and is as good as not there: to open it or to
append to it is SessionRemoved from the moment that its removal is decided, to read on in it when its rows went.

A fork shares the events of another session up to its base, by reference, and its own seq goes on from
there. Its parent is the session that the event at the base belongs to: a fork of a fork, at an event that
the latter only shares, is a fork of the session that holds it. So the bases along a line of parents fall,
and every part of the line holds events.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.errors import InvalidEvent, SessionRemoved, StoreCorrupt, UnknownReference
from convlog_sqlite.instants import from_microseconds, id_text
from convlog_sqlite.store.names import SELECT_TEXT
from convlog_sqlite.vocabulary import LAST_SEQ

SELECT_SESSION: Final = "SELECT id, name, tenant, base FROM session WHERE folded = ?"
SELECT_SESSIONS: Final = """
SELECT id, name, tenant, base FROM session AS s
WHERE (?1 IS NULL OR s.tenant = (SELECT id FROM name WHERE text = ?1))
AND NOT EXISTS (SELECT 1 FROM removal AS r WHERE r.session = s.id) ORDER BY name"""
SELECT_REMOVAL: Final = """
SELECT s.name, r.policy, r.version, r.at, r.intent, r.events FROM removal AS r
CROSS JOIN session AS s ON s.id = r.session WHERE r.session = ?"""
SELECT_REMOVALS: Final = """
SELECT s.name, r.policy, r.version, r.at, r.intent, r.events FROM removal AS r
CROSS JOIN session AS s ON s.id = r.session ORDER BY s.name"""
SELECT_ANY_OF: Final = "SELECT 1 FROM session WHERE tenant = (SELECT id FROM name WHERE text = ?) LIMIT 1"
SELECT_TENANT: Final = """
SELECT n.text FROM session AS s LEFT JOIN name AS n ON n.id = s.tenant WHERE s.id = ?"""
INSERT_REMOVAL: Final = "INSERT INTO removal VALUES (?, ?, ?, ?, ?, ?, ?)"
INSERT_SESSION: Final = "INSERT INTO session (name, folded, tenant, base) VALUES (?, ?, ?, ?) RETURNING id"
INSERT_FORK: Final = "INSERT INTO fork VALUES (?, ?, ?)"
SELECT_PARENT: Final = """
SELECT s.id, s.name, s.base, f.base FROM fork AS f CROSS JOIN session AS s ON s.id = f.parent
WHERE f.session = ?"""
SELECT_FORKS: Final = """
SELECT s.id, s.name, f.base FROM fork AS f CROSS JOIN session AS s ON s.id = f.session WHERE f.parent = ?"""


class Segment(NamedTuple):
    """The events of one session behind seq `after`, up to seq `upto`."""

    number: int
    name: str
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as the tables know it. `base` is the seq it starts behind.

    `inherited` is what it shares with the sessions it was forked from, the nearest first.
    """

    number: int
    name: str
    tenant: str | None
    base: int
    inherited: tuple[Segment, ...] = ()

    @property
    def line(self) -> tuple[Segment, ...]:
        """Everything it shows, its own events first."""
        return (Segment(self.number, self.name, self.base, LAST_SEQ), *self.inherited)

    def alone(self) -> SessionRow:
        """The session without what it shares."""
        return replace(self, inherited=()) if self.inherited else self

    def segment_of(self, seq: int) -> Segment:
        """The part of its line in which a seq stands, or would."""
        if seq > self.base or not self.inherited:
            return self.line[0]
        return next((part for part in self.inherited if seq > part.after), self.inherited[-1])


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
    """Sessions by id, remembered per handle: a session never changes, and its row is never deleted.

    Bound to a tenant, those of that tenant: the others, and those of none, are not there.
    """

    def __init__(self, tenant: str | None = None, rows: dict[str, SessionRow] | None = None) -> None:
        """`rows` is what is remembered, whosesoever it is."""
        self._tenant = tenant
        self._rows: dict[str, SessionRow] = {} if rows is None else rows

    def of(self, tenant: str | None) -> Sessions:
        """The sessions of one tenant (None: all), which remember together with these."""
        return Sessions(tenant, self._rows)

    def find(self, connection: Connection, name: str) -> SessionRow | None:
        """The session `name`, or None; removed or not. Raises InvalidEvent when it exists in other case."""
        row = self._stored(connection, name)
        if row is None or self._tenant not in (None, row.tenant):
            return None
        if row.name != name:
            raise InvalidEvent("/session", f"differs only by case from the session {row.name!r}")
        return row

    def find_for(self, connection: Connection, name: str, tenant: str | None) -> SessionRow | None:
        """What `find` gives; of another tenant than this, if one is given, nothing but that the id is not to be had.

        Raises UnknownReference, InvalidEvent.
        """
        row = self._stored(connection, name)
        if row is not None and tenant is not None and row.tenant != tenant:
            raise UnknownReference("session", name)
        return self.find(connection, name)

    def _stored(self, connection: Connection, name: str) -> SessionRow | None:
        """The session whose id is `name`, in whatever case."""
        row = self._rows.get(name)
        if row is None:
            for found in fetch(connection, SELECT_SESSION, (name.casefold(),)):
                return _row(connection, found)
        return row

    def require(self, connection: Connection, name: str) -> SessionRow:
        """The session `name`. Raises UnknownReference."""
        row = self.find(connection, name)
        if row is None:
            raise UnknownReference("session", name)
        return row

    def all(self, connection: Connection) -> list[SessionRow]:
        """Every session that is not removed, by id."""
        return [_row(connection, row) for row in fetch(connection, SELECT_SESSIONS, (self._tenant,))]

    def names(self, connection: Connection) -> dict[int, str]:
        """The id of every session by its number, in the order of the ids."""
        return {row[0]: row[1] for row in fetch(connection, SELECT_SESSIONS, (self._tenant,))}

    def insert(
        self, connection: Connection, name: str, tenant: str | None, tenant_number: int | None
    ) -> SessionRow:
        """Make a session. Remembered by `remember`, once the transaction committed."""
        number: int = value(connection, INSERT_SESSION, (name, name.casefold(), tenant_number, 0))
        return SessionRow(number, name, tenant, 0)

    def insert_fork(
        self, connection: Connection, name: str, of: SessionRow, base: int, tenant_number: int | None
    ) -> SessionRow:
        """Make a session that shares the events of another up to `base`, which exists. See `insert`."""
        parent = of.segment_of(base)
        number: int = value(connection, INSERT_SESSION, (name, name.casefold(), tenant_number, base))
        connection.execute(INSERT_FORK, (number, parent.number, base))
        return SessionRow(number, name, of.tenant, base, _line(connection, number, base))

    def known(self, name: str) -> SessionRow | None:
        """The session `name`, if it is remembered."""
        return self._rows.get(name)

    def remember(self, row: SessionRow) -> None:
        """Keep a row that is committed: a transaction that reads its own rows may yet be rolled back."""
        self._rows[row.name] = row


def require_tenant(connection: Connection, tenant: str) -> None:
    """Raise UnknownReference for a tenant that never had a session."""
    if not fetch(connection, SELECT_ANY_OF, (tenant,)):
        raise UnknownReference("tenant", tenant)


def tenant_of(connection: Connection, number: int) -> str | None:
    """The tenant of the session with this number, removed or not."""
    found: str | None = value(connection, SELECT_TENANT, (number,))
    return found


def _row(connection: Connection, row: tuple[int, str, int | None, int]) -> SessionRow:
    number, name, tenant, base = row
    text = None if tenant is None else value(connection, SELECT_TEXT, (tenant,))
    return SessionRow(number, name, text, base, _line(connection, number, base) if base else ())


def _line(connection: Connection, number: int, base: int) -> tuple[Segment, ...]:
    """What a fork shares, the nearest first. Bases fall along a line, so a changed table cannot hold a circle."""
    found: list[Segment] = []
    before = base + 1
    while base and (forked := fetch(connection, SELECT_PARENT, (number,))):
        ((number, name, base, upto),) = forked
        if not base < upto < before:
            raise StoreCorrupt("fork", f"the session {name!r} does not hold the seq {upto} that a fork names")
        found.append(Segment(number, name, base, upto))
        before = upto
    return tuple(found)


def heirs(connection: Connection, session: int) -> dict[str, int]:
    """The sessions that share events of one, forks of forks among them: the last seq that each shares."""
    found: dict[str, int] = {}
    waiting = [(session, LAST_SEQ)]
    while waiting:
        parent, most = waiting.pop()
        for number, name, base in fetch(connection, SELECT_FORKS, (parent,)):
            if name not in found:
                found[name] = min(base, most)
                waiting.append((number, found[name]))
    return found
