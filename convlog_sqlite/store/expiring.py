"""Retention inside the store: the events that are due, page by page, become intents to erase them.

A page is looked at first without any lock. Where something is due there, policies, holds and the page are
read again inside the transaction that writes the intents: what was placed or set meanwhile counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from convlog_sqlite.database import Connection, Database
from convlog_sqlite.store import candidates
from convlog_sqlite.store.candidates import Candidate
from convlog_sqlite.store.erasing import insert_events, insert_intent
from convlog_sqlite.store.reading import Opener
from convlog_sqlite.store.reserved import Standing, standing
from convlog_sqlite.store.sessions import SessionRow, Sessions
from convlog_sqlite.vocabulary import STORE_SESSION

PAGE: Final = 1000  # narrow rows: a few milliseconds under the write lock
SCOPE: Final = "policy"

Version = tuple[str, int]  # a policy's id and its version


class Judge(Protocol):
    """What retention says of an event: the policy by which it is due, and whether a hold keeps it."""

    @property
    def subjects(self) -> frozenset[str]:
        """The digests that a candidate must be looked up under."""

    @property
    def counts(self) -> frozenset[int]:
        """How many of the newest events are spared, by any policy."""

    def due(self, candidate: Candidate, newest: Mapping[int, int]) -> tuple[Version, bool] | None:
        """(policy, held), or None when it stays anyway."""


@dataclass(slots=True)
class Due:
    """Numbers of events: due by each policy, and due but held."""

    policies: Counter[Version] = field(default_factory=Counter)
    held: int = 0


@dataclass(slots=True)
class _Page:
    due: list[tuple[int, Version]]
    held: int
    last: int | None


class Expiry:
    """Finds what is due in one store, at one moment. `judge` makes the judge of the policies as they stand."""

    def __init__(self, database: Database, opener: Opener, judge: Callable[[Standing], Judge]) -> None:
        self._database, self._opener, self._judge = database, opener, judge
        self._sessions = Sessions()

    def look(self, leaving: Collection[str] = ()) -> Due:
        """What would be erased now, once the sessions `leaving` are removed."""
        found = Due()
        for session, _, page in self._pages():
            if session.name not in leaving:
                _count(found, page)
        return found

    def intend(self, agent: str, reason: str, nanoseconds: int) -> Due:
        """Commit the intents to erase what is due: one for each session and policy. For the lock's holder."""
        found, intents = Due(), dict[tuple[int, Version], bytes]()
        for session, after, page in self._pages():
            if page.due:
                with self._database.write() as connection:
                    judge = self._judge(standing(connection, self._opener))
                    settled = _read(connection, judge, session, after)
                    for pos, version in settled.due:
                        key = session.number, version
                        if key not in intents:
                            detail = {"policy": {"id": version[0], "version": version[1]}}
                            intents[key] = insert_intent(
                                connection, session.number, agent, reason, SCOPE, nanoseconds, detail
                            )
                        insert_events(connection, intents[key], [pos])
                _count(found, settled)
            else:
                _count(found, page)
        return found

    def _pages(self) -> Iterator[tuple[SessionRow, int, _Page]]:
        with self._database.read() as connection:
            judge = self._judge(standing(connection, self._opener))
            sessions = [row for row in self._sessions.all(connection) if row.name != STORE_SESSION]
        for session in sessions:
            after: int | None = session.base
            while after is not None:
                with self._database.read() as connection:
                    page = _read(connection, judge, session, after)
                yield session, after, page
                after = page.last


def _read(connection: Connection, judge: Judge, session: SessionRow, after: int) -> _Page:
    rows: Sequence[Candidate] = candidates.page(connection, session, after, PAGE, judge.subjects)
    newest = candidates.newest(connection, session, judge.counts) if rows else {}
    page = _Page([], 0, rows[-1].seq if len(rows) == PAGE else None)
    for candidate in rows:
        ruling = judge.due(candidate, newest)
        if ruling is not None:
            version, held = ruling
            if held:
                page.held += 1
            else:
                page.due.append((candidate.pos, version))
    return page


def _count(found: Due, page: _Page) -> None:
    found.policies.update(version for _, version in page.due)
    found.held += page.held
