"""Branches of a conversation: sessions that were forked from others, and how two of them differ."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from convlog_sqlite.drafts import Draft, check_name, check_session_id
from convlog_sqlite.errors import InvalidEvent, StoreReadOnly, UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.store import comparing, opening
from convlog_sqlite.store.committing import OneAppend
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.preparing import prepare
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.vocabulary import STORE_SESSION


@dataclass(frozen=True, slots=True)
class StateDifference:
    """A piece of state that stands differently in two sessions: the ids of the mutations that stand in each."""

    state_key: str
    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """How two sessions differ. `seq` is the last that they share and `event` its id; 0 and None: nothing.

    What each has since is what it has behind `seq`, up to its head in `heads`: read it with
    `Session.read(after=seq)`. `open_calls` are the ids of the calls that wait in the one and not in the other.
    """

    a: str
    b: str
    seq: int
    event: str | None
    heads: tuple[int, int]
    open_calls: tuple[tuple[str, ...], tuple[str, ...]]
    states: tuple[StateDifference, ...]

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON values."""
        return asdict(self)


class Branching:
    """The part of a log that makes and compares branches. `ConversationLog` is one."""

    path: Path | None
    reader: Reader
    _store: opening.Store
    _mirror: Mirror | None
    _one_append: OneAppend

    @abstractmethod
    def _only_author(self, drafts: Any) -> str: ...

    def fork_session(self, session: str, new_id: str, at: Point | None, agent: str) -> Event:
        """Make a session that shares the events of another up to a point; its opening. `Session.fork` is this."""
        if self._store.database.read_only:
            raise StoreReadOnly(self.path or ":memory:", "this handle was opened read-only")
        check_session_id(new_id)
        check_name(agent, "/agent")
        if STORE_SESSION in (session, new_id):
            raise InvalidEvent("/session", "_store is convlog's own; it is not forked")
        if self.reader.find_session(session) is None:
            raise UnknownReference("session", session)
        seq = self.reader.head(session) if at is None else self.reader.place(session, at)
        if seq == 0:
            raise UnknownReference("at", str(at))
        with self._one_append:
            event = self._store.writer.record_fork(session, new_id, seq, self._opening(session, seq, agent))
        if self._mirror is not None and self._mirror.enabled:
            self._mirror.after_append(new_id)
        return event

    def _opening(self, session: str, seq: int, agent: str) -> Any:
        (point,) = self.reader.read(session, seq - 1, seq + 1, 1, {})
        draft = Draft(
            type="mutation",
            agent=agent,
            kind="session-opened",
            links={"derived_from": [point.id]},
            value={"parent": point.session, "seq": seq, "event": point.id},
        )
        if self.path is None:
            self._only_author([draft])
        return prepare(draft, self._store.keystore.pepper)

    def diff(self, a: str, b: str) -> Difference:
        """Where two sessions part, and what stands and waits differently in them since.

        Takes as long as what they have since, and holds none of it. Raises UnknownReference.
        """
        reader = self.reader
        for session in (a, b):
            reader.require_session(session)
        seq = comparing.shared(reader.database, a, b)
        shared = reader.read(a, seq - 1, seq + 1, 1, {}) if seq else []
        states = comparing.states_since(reader.database, a, b, seq)
        return Difference(
            a,
            b,
            seq,
            shared[0].id if shared else None,
            (reader.head(a), reader.head(b)),
            self._open_apart(a, b),
            tuple(StateDifference(*one) for one in states),
        )

    def _open_apart(self, a: str, b: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        mine, theirs = self._waiting(a), self._waiting(b)
        return _ids(mine, theirs), _ids(theirs, mine)

    def _waiting(self, session: str) -> dict[str, None]:
        found: dict[str, None] = {}
        after: int | None = 0
        while after is not None:
            page = self.reader.open_calls(session, after, 1000)
            found |= dict.fromkeys(event.id for event in page)
            after = page.next
        return found


def _ids(those: Iterable[str], others: dict[str, None]) -> tuple[str, ...]:
    return tuple(event_id for event_id in those if event_id not in others)
