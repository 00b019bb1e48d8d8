"""Which closed sessions retention removes, whole, and the decision to do so.

A session is closed when its newest event is a `session-closed`; redactions that came since do not open it
again. A closed one that a policy says is due goes, unless something needs it: an open call, an effect that is
neither committed nor compensated, a hold or the `min_age` of a policy on any of its events, a fork that is
kept, an erasure that is not done. `_store` never goes.

A session is looked at without any lock. Inside the transaction that writes the intent, whatever can have
changed since is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

from convlog_sqlite.database import Connection, Database, fetch, value
from convlog_sqlite.store import candidates
from convlog_sqlite.store.candidates import Candidate
from convlog_sqlite.store.erasing import insert_intent
from convlog_sqlite.store.reading import Opener
from convlog_sqlite.store.reserved import Standing, standing
from convlog_sqlite.store.sessions import SessionRow, Sessions, insert_removal
from convlog_sqlite.vocabulary import CLOSED_KIND, REDACTION_KIND, STORE_SESSION

SELECT_END: Final = """
SELECT e.seq, e.at, k.text FROM event AS e LEFT JOIN name AS k ON k.id = e.kind
WHERE e.session = ?1 AND e.kind IS NOT coalesce((SELECT id FROM name WHERE text = ?2), 0)
ORDER BY e.seq DESC LIMIT 1"""
SELECT_HEAD: Final = """
SELECT e.seq, v.chain FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ? ORDER BY e.seq DESC LIMIT 1"""
COUNT_UNERASED: Final = """
SELECT count(*) FROM event AS e WHERE e.session = ?
AND NOT EXISTS (SELECT 1 FROM tombstone AS t WHERE t.pos = e.pos)"""
HAS_OPEN_CALL: Final = "SELECT EXISTS (SELECT 1 FROM open_call WHERE session = ?)"
HAS_OPEN_EFFECT: Final = "SELECT EXISTS (SELECT 1 FROM effect WHERE session = ? AND state < 3)"
SELECT_FORKS: Final = """
SELECT f.session FROM fork AS f WHERE f.parent = ?
AND NOT EXISTS (SELECT 1 FROM removal AS r WHERE r.session = f.session)"""
HAS_INTENT: Final = "SELECT EXISTS (SELECT 1 FROM intent WHERE session = ? AND state = 1)"

PAGE: Final = 1000
SCOPE: Final = "session"

Version = tuple[str, int]  # a policy's id and its version

OPEN_CALL: Final = "open-call"
OPEN_EFFECT: Final = "open-effect"
HOLD: Final = "hold"
MIN_AGE: Final = "min-age"
FORK: Final = "fork"
ERASURE: Final = "erasure-pending"


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed session. `at` is when it was closed, in microseconds, as its source says."""

    session: SessionRow
    at: int


class SessionJudge(Protocol):
    """What retention says of a closed session and of its events."""

    @property
    def subjects(self) -> frozenset[str]:
        """The digests that a candidate must be looked up under."""

    @property
    def asks_events(self) -> bool:
        """Whether a single event can keep its session: there is a hold, or a min_age."""

    def removal(self, closed: Closed) -> Version | None:
        """The policy by which the session is due, or None."""

    def keeps(self, candidate: Candidate) -> str | None:
        """HOLD or MIN_AGE where an event keeps its session, else None."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """A session that is due by `policy`. `kept` says why it stays all the same; `erasing` counts its events with content."""

    policy: Version
    kept: str | None
    erasing: int
    events: int


def closed(connection: Connection, session: SessionRow) -> Closed | None:
    """The session, if it is closed."""
    if session.name == STORE_SESSION:
        return None
    for _, at, kind in fetch(connection, SELECT_END, (session.number, REDACTION_KIND)):
        if kind == CLOSED_KIND:
            return Closed(session, at)
    return None


def _rule(
    connection: Connection, session: SessionRow, judge: SessionJudge, leaving: Collection[int] = ()
) -> Ruling | None:
    found = closed(connection, session)
    policy = None if found is None else judge.removal(found)
    if policy is None:
        return None
    head, _ = _head(connection, session)
    erasing: int = value(connection, COUNT_UNERASED, (session.number,))
    return Ruling(policy, kept(connection, session, judge, leaving), erasing, head - session.base)


def _head(connection: Connection, session: SessionRow) -> tuple[int, bytes]:
    head: tuple[int, bytes] = fetch(connection, SELECT_HEAD, (session.number,))[0]
    return head


def kept(
    connection: Connection, session: SessionRow, judge: SessionJudge, leaving: Collection[int] = ()
) -> str | None:
    """Why a closed session that is due stays, once the sessions of the numbers `leaving` are removed, or None."""
    why = _needed(connection, session, leaving)
    return _kept_by_an_event(connection, session, judge) if why is None and judge.asks_events else why


def _needed(connection: Connection, session: SessionRow, leaving: Collection[int] = ()) -> str | None:
    for sql, why in (
        (HAS_OPEN_CALL, OPEN_CALL),
        (HAS_OPEN_EFFECT, OPEN_EFFECT),
        (HAS_INTENT, ERASURE),
    ):
        if value(connection, sql, (session.number,)):
            return why
    forks = {number for (number,) in fetch(connection, SELECT_FORKS, (session.number,))}
    return FORK if forks.difference(leaving) else None


def _kept_by_an_event(connection: Connection, session: SessionRow, judge: SessionJudge) -> str | None:
    after = session.base
    while page := candidates.page(connection, session, after, PAGE, judge.subjects):
        for candidate in page:
            if why := judge.keeps(candidate):
                return why
        after = page[-1].seq
    return None


class Removals:
    """Finds and decides what goes, in one store at one moment. `judge` makes the judge of what stands."""

    def __init__(self, database: Database, opener: Opener, judge: Callable[[Standing], SessionJudge]) -> None:
        self._database, self._opener, self._judge = database, opener, judge

    def look(self) -> dict[str, Ruling]:
        """The sessions that are due now, by id."""
        found = {}
        leaving: set[int] = set()
        for session, _, ruling in self._due(leaving):
            found[session.name] = ruling
            if ruling.kept is None:
                leaving.add(session.number)
        return found

    def intend(self, agent: str, reason: str, nanoseconds: int) -> dict[str, Ruling]:
        """Commit the intents to remove what is due: one for each session. For the lock's holder."""
        found = {}
        for session, seen, ruling in self._due(()):
            settled: Ruling | None = ruling
            if ruling.kept is None:
                with self._database.write() as connection:
                    settled = self._decide(connection, session, seen, ruling, agent, reason, nanoseconds)
            if settled is not None:
                found[session.name] = settled
        return found

    def _due(self, leaving: Collection[int]) -> Iterator[tuple[SessionRow, Standing, Ruling]]:
        with self._database.read() as connection:
            found = standing(connection, self._opener)
            sessions = Sessions().all(connection)
        judge = self._judge(found)
        # A fork before what it was forked from: then both may go at once.
        for session in sorted(sessions, key=lambda row: -row.number):
            with self._database.read() as connection:
                ruling = _rule(connection, session, judge, leaving)
            if ruling is not None:
                yield session, found, ruling

    def _decide(
        self,
        connection: Connection,
        session: SessionRow,
        seen: Standing,
        ruling: Ruling,
        agent: str,
        reason: str,
        nanoseconds: int,
    ) -> Ruling | None:
        found = standing(connection, self._opener)
        head, chain = _head(connection, session)
        # Events never change: where none came and nothing else was decided, what was seen of them stands.
        if found != seen or head - session.base != ruling.events:
            again = _rule(connection, session, self._judge(found))
            if again is None or again.kept is not None:
                return again
            ruling = again
        elif why := _needed(connection, session):
            return replace(ruling, kept=why)
        policy, version = ruling.policy
        detail = {"policy": {"id": policy, "version": version}}
        intent_id = insert_intent(connection, session.number, agent, reason, SCOPE, nanoseconds, detail)
        end = ruling.events, chain
        insert_removal(connection, session.number, intent_id, ruling.policy, nanoseconds // 1000, end)
        return ruling
