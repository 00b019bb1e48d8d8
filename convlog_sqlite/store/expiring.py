"""Retention inside the store: the events that are due, page by page, become intents to erase them.

A page is looked at first without any lock. Where something is due there, policies, holds and the page are
read again inside the transaction that writes the intents: what was placed or set meanwhile counts.

A claim goes with the evidence that it is derived from, by the policy that erases the evidence, unless a hold or a
`min_age` keeps the claim: then it stays, and shows that its evidence is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from convlog_sqlite.database import Connection, Database
from convlog_sqlite.store import candidates, deriving
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

    def keeps(self, candidate: Candidate) -> str | None:
        """Why an event stays though what it is derived from goes, or None."""


@dataclass(slots=True)
class Due:
    """Numbers of events: due by each policy, and due but held.

    `derived` of those due are claims that go with their evidence, `kept` are the positions of
    claims that stay though it goes.
    """

    policies: Counter[Version] = field(default_factory=Counter)
    held: int = 0
    derived: int = 0
    kept: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Page:
    due: list[tuple[int, Version]]
    held: int
    last: int | None
    derived: list[tuple[int, int, Version]] = field(default_factory=list)  # pos, session, policy
    kept: set[int] = field(default_factory=set)


class Expiry:
    """Finds what is due in one store, at one moment. `judge` makes the judge of the policies as they stand."""

    def __init__(self, database: Database, opener: Opener, judge: Callable[[Standing], Judge]) -> None:
        self._database, self._opener, self._judge = database, opener, judge
        self._sessions = Sessions()

    def look(self, leaving: Collection[str] = (), *, keep_derived: bool = False) -> Due:
        """What would be erased now, once the sessions `leaving` are removed."""
        found, taken = Due(), set[int]()
        for session, _, page in self._pages():
            if session.name in leaving:
                continue
            page.due = [one for one in page.due if one[0] not in taken]
            if page.due:
                with self._database.read() as connection:
                    judge = self._judge(standing(connection, self._opener))
                    self._derive(connection, judge, page, keep=keep_derived, taken=taken)
            taken.update(pos for pos, _ in page.due)
            taken.update(pos for pos, *_ in page.derived)
            _count(found, page)
        return found

    def intend(self, agent: str, reason: str, nanoseconds: int, *, keep_derived: bool = False) -> Due:
        """Commit the intents to erase what is due: one for each session and policy. For the lock's holder."""
        found, intents = Due(), dict[tuple[int, Version], bytes]()
        for session, after, page in self._pages():
            if not page.due:
                _count(found, page)
                continue
            with self._database.write() as connection:
                judge = self._judge(standing(connection, self._opener))
                settled = _read(connection, judge, session, after)
                self._derive(connection, judge, settled, keep=keep_derived)
                due = [(pos, session.number, version) for pos, version in settled.due]
                for pos, number, version in due + settled.derived:
                    key = number, version
                    if key not in intents:
                        detail = {"policy": {"id": version[0], "version": version[1]}}
                        intents[key] = insert_intent(
                            connection, number, agent, reason, SCOPE, nanoseconds, detail
                        )
                    insert_events(connection, intents[key], [pos])
            _count(found, settled)
        return found

    def _derive(
        self,
        connection: Connection,
        judge: Judge,
        page: _Page,
        *,
        keep: bool,
        taken: Collection[int] = (),
    ) -> None:
        """Find the claims that go with what is due on a page."""
        whole = deriving.reach(connection, [pos for pos, _ in page.due], keep=keep, same=False)
        page.kept = set(whole.kept)
        left = whole.derived.difference(taken)
        sessions = {row.number: row for row in self._sessions.all(connection)} if left else {}
        for pos, version in page.due if left else ():
            going = left & deriving.reach(connection, [pos], keep=keep, same=False).derived
            left -= going
            for other in sorted(going):
                candidate = candidates.at_position(connection, sessions, other, judge.subjects)
                if candidate.erased:
                    continue
                if judge.keeps(candidate) is not None:
                    page.kept.add(other)
                else:
                    number = _number_of(sessions.values(), candidate.session)
                    page.derived.append((other, number, version))

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
    found.policies.update(version for *_, version in page.derived)
    found.held += page.held
    found.derived += len(page.derived)
    found.kept |= page.kept


def _number_of(sessions: Iterable[SessionRow], name: str) -> int:
    """The number of the session `name`, which is among them."""
    return next(row.number for row in sessions if row.name == name)
