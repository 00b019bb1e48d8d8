"""Retention of readings: what is known to have been read goes when a policy says so, by its age alone.

First it is decided, in one transaction with the `readings-expired` events that say how many go and by which policy;
then the rows go, block by block, and what a crash left of them goes the next time. Of each reader in each view the
reading with which it got furthest stays: from there it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from convlog_sqlite.database import Connection, Database, fetch, value
from convlog_sqlite.drafts import Draft
from convlog_sqlite.store.committing import Writer
from convlog_sqlite.store.preparing import prepare
from convlog_sqlite.store.reading import Opener
from convlog_sqlite.store.reserved import Standing, standing
from convlog_sqlite.store.sessions import SessionRow, Sessions
from convlog_sqlite.vocabulary import EXPIRED_KIND, STORE_SESSION

BLOCK: Final = 1000

SELECT_READERS: Final = """
SELECT DISTINCT r.reader, a.text FROM reading AS r CROSS JOIN name AS a ON a.id = r.reader WHERE r.session = ?"""
# ?1 session  ?2 reader  ?3 before, in microseconds
COUNT_DUE: Final = """
SELECT count(*) FROM reading AS r WHERE r.session = ?1 AND r.reader = ?2 AND r.at < ?3
AND EXISTS (SELECT 1 FROM reading AS n WHERE n.session = r.session AND n.reader = r.reader AND n.upto >= r.upto
            AND n.view = r.view AND (n.upto > r.upto OR n.id > r.id))"""
SELECT_DUE: Final = """
SELECT r.id FROM reading AS r WHERE r.session = ?1 AND r.reader = ?2 AND r.at < ?3
AND EXISTS (SELECT 1 FROM reading AS n WHERE n.session = r.session AND n.reader = r.reader AND n.upto >= r.upto
            AND n.view = r.view AND (n.upto > r.upto OR n.id > r.id)) LIMIT ?4"""
UPSERT_LAPSE: Final = """
INSERT INTO lapse VALUES (?, ?, ?) ON CONFLICT (session, reader) DO UPDATE SET before = max(before, excluded.before)"""
SELECT_LAPSES: Final = "SELECT session, reader, before FROM lapse"
DELETE_READING: Final = "DELETE FROM reading WHERE id = ?"
DELETE_INFORMED: Final = "DELETE FROM informed WHERE reading = ?"
# Of a session that is removed: ?1 session  ?2 how many
SELECT_OF_SESSION: Final = "SELECT id FROM reading WHERE session = ?1 LIMIT ?2"
DELETE_LAPSES: Final = "DELETE FROM lapse WHERE session = ?"

Version = tuple[str, int]


class ReadingJudge(Protocol):
    """What retention says of readings."""

    def lapse(self, session: SessionRow, reader: str) -> tuple[Version, int, bool] | None:
        """(policy, the moment before which readings go, held) of a reader's in a session, None where they stay."""


@dataclass(slots=True)
class Lapsed:
    """Numbers of readings: gone by each policy, and due but held by a hold on their session or reader."""

    policies: Counter[Version] = field(default_factory=Counter)
    held: int = 0


class _Due(NamedTuple):
    session: int
    reader: int
    before: int
    version: Version
    held: bool
    number: int


class Lapsing:
    """Lets readings go in one store, at one moment. `judge` makes the judge of the policies as they stand."""

    def __init__(self, database: Database, opener: Opener, judge: Callable[[Standing], ReadingJudge]) -> None:
        self._database, self._opener, self._judge = database, opener, judge

    def look(self) -> Lapsed:
        """What would go now."""
        with self._database.read() as connection:
            return _counted(self._due(connection))

    def let_go(self, writer: Writer, agent: str) -> Lapsed:
        """Let what is due go, and say so. For the holder of the erasure lock."""
        try:
            with self._database.write() as connection:
                due = list(self._due(connection))
                found = _counted(due)
                for one in due:
                    if not one.held:
                        connection.execute(UPSERT_LAPSE, (one.session, one.reader, one.before))
                for (policy, version), count in sorted(found.policies.items()):
                    said = {"policy": {"id": policy, "version": version}, "readings": count}
                    draft = Draft(type="mutation", agent=agent, kind=EXPIRED_KIND, value=said)
                    writer.record_inside(connection, STORE_SESSION, prepare(draft, writer.keystore.pepper))
        finally:
            writer.forget_heads()
        with self._database.read() as connection:
            lapses = fetch(connection, SELECT_LAPSES)
        for place in lapses:
            while self._delete(place):
                pass
        return found

    def _delete(self, place: tuple[int, int, int]) -> bool:
        with self._database.write() as connection:
            numbers = fetch(connection, SELECT_DUE, (*place, BLOCK))
            delete(connection, numbers)
        return bool(numbers)

    def _due(self, connection: Connection) -> Iterator[_Due]:
        judge = self._judge(standing(connection, self._opener))
        for session in Sessions().all(connection):
            for reader, name in fetch(connection, SELECT_READERS, (session.number,)):
                ruling = judge.lapse(session, name)
                if ruling is not None:
                    version, before, held = ruling
                    count = value(connection, COUNT_DUE, (session.number, reader, before))
                    if count:
                        yield _Due(session.number, reader, before, version, held, count)


def _counted(due: Iterator[_Due] | list[_Due]) -> Lapsed:
    found = Lapsed()
    for one in due:
        if one.held:
            found.held += one.number
        else:
            found.policies[one.version] += one.number
    return found


def delete(connection: Connection, numbers: list[tuple[int]]) -> None:
    """Delete readings, and what says which events were written on them."""
    for sql in (DELETE_READING, DELETE_INFORMED):
        connection.executemany(sql, numbers)


def remove_some(connection: Connection, session: int) -> bool:
    """Delete some readings of a session that is being removed. False when there were none any more."""
    numbers = fetch(connection, SELECT_OF_SESSION, (session, BLOCK))
    delete(connection, numbers)
    if not numbers:
        connection.execute(DELETE_LAPSES, (session,))
    return bool(numbers)
