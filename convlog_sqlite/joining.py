"""Taking part in a session: joining, listening, what participants are asked for, and who is known to have read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from convlog_sqlite.database import value
from convlog_sqlite.drafts import Draft, check_name
from convlog_sqlite.errors import InvalidEvent, StateConflict, UnknownReference
from convlog_sqlite.events import Event, Live
from convlog_sqlite.follow import Waiter
from convlog_sqlite.listeners import NEWS_LIMIT, Listener, Slice
from convlog_sqlite.participants import Appending, Conversation, Part, Participant
from convlog_sqlite.recalling import Seen, recall
from convlog_sqlite.store import listening, readings
from convlog_sqlite.store.names import SELECT_NAME
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.reader import Page
from convlog_sqlite.store.readings import Reading
from convlog_sqlite.vocabulary import JOINED_KIND, LISTENING_KEY, LISTENING_KINDS, agent_key

DEFAULT_READINGS: Final = 1000
_ATTEMPTS: Final = 10  # at joining, while others join under the same name


class Whole:
    """The view that shows everything of a session."""

    label = "everything@0"

    def __init__(self, session: Joining) -> None:
        self._session = session

    def tail(self, n: int = 20, *, before: int | None = None, pairs: bool = False) -> Page:
        """See `Session.tail`."""
        return self._session.tail(n, before=before, pairs=pairs)

    def read(self, *, after: int = 0, before: int | None = None, limit: int = NEWS_LIMIT) -> Page:
        """See `Session.read`."""
        return self._session.read(after=after, before=before, limit=limit)


class Joining(Conversation):
    """The part of a session that knows who takes part in it. `Session` is one."""

    _log: Appending

    @abstractmethod
    def tail(self, n: int = 20, *, before: int | None = None, pairs: bool = False) -> Page: ...
    @abstractmethod
    def reply_by(self, waiter: Waiter, request: Event | str, timeout: float | None) -> Event: ...
    @abstractmethod
    def approval_by(self, waiter: Waiter, proposal: Event | str, timeout: float | None) -> Event: ...
    @abstractmethod
    def read(self, *, after: int = 0, before: int | None = None, limit: int = NEWS_LIMIT) -> Page: ...

    def join(
        self,
        agent: str,
        *,
        role: str | None = None,
        view: str | None = None,
        purpose: str | None = None,
        sensitivity: str | None = None,
        purposes: Sequence[str] | None = None,
        subjects: Sequence[str] | None = None,
    ) -> Participant:
        """Take part in the session as `agent`: what it does from now on says what it had heard.

        That it joined is recorded once, and again only with another role or view; without them, it goes on in
        those that it has. `purpose` is what it reads for. `sensitivity`, `purposes` and `subjects` (names of
        people) stand in each event that does not say otherwise. Raises InvalidEvent, UnknownReference for a view
        that does not exist, StoreReadOnly, and what `append` raises.
        """
        before = self._attendance(agent)
        if before is not None:
            role, view = role or before.role, view or before.view
        part = Part(
            agent, {"role": role, "sensitivity": sensitivity, "purposes": purposes, "subjects": subjects}
        )
        shown = self._shown(agent, role, view, purpose)
        participant = Participant(self._log, self, part, shown, purpose=purpose)
        standing = [] if before is None else [before.id]
        for attempt in range(_ATTEMPTS):
            if before is not None and before.is_as(role, shown.label):
                break
            try:
                participant.say_joined(standing)
                break
            except StateConflict as conflict:  # another process joined under the same name
                if attempt + 1 == _ATTEMPTS:
                    raise
                before, standing = self._attendance(agent), list(conflict.heads)
        return participant

    def participant(self, agent: str) -> Participant | None:
        """An agent that takes part already, as another handle or process let it join; None where it does not."""
        found = self._attendance(agent)
        return self.join(agent) if found is not None and found.is_there else None

    def listener(
        self, agent: str, *, role: str | None = None, view: str | None = None, purpose: str | None = None
    ) -> Listener:
        """An agent that reads the session, and writes nothing: that it was shown something is noted under its name.

        Raises InvalidEvent, UnknownReference for a view that does not exist.
        """
        check_name(agent, "/agent")
        found = self._attendance(agent)
        if found is not None:
            role, view = role or found.role, view or found.view
        shown = self._shown(agent, role, view, purpose)
        return Listener(self._log, self.id, agent, shown, role=role, purpose=purpose)

    def listening(self, mode: str, *, by: str) -> Event:
        """Say what participants are asked for from now on: `require`, `warn` or `off`, as at first. Raises InvalidEvent.

        With `require`, an append of an agent that has joined, and has not listened since another wrote what it was
        to see, is refused (StaleContext), whichever way it comes in. With `warn` it is recorded, and `seen.stale` is
        the seq of the oldest event that it had not heard. What reports on something done is never refused: a
        result, an effect that took place or was undone, joining and leaving.
        """
        if mode not in LISTENING_KINDS:
            raise InvalidEvent("/listening", "one of " + ", ".join(LISTENING_KINDS))
        kind = LISTENING_KINDS[mode]
        return self.append(Draft(type="mutation", agent=by, kind=kind, state_key=LISTENING_KEY))

    def listening_mode(self) -> str:
        """What participants are asked for: `require`, `warn` or `off`."""
        with self._reader.database.read() as connection:
            row = self._reader.row(connection, self.id)
            kind = listening.OFF if row is None else listening.mode_of(connection, row)
        return next(mode for mode, named in LISTENING_KINDS.items() if named == kind)

    def readings(
        self, agent: str | None = None, *, after: int = 0, limit: int = DEFAULT_READINGS
    ) -> list[Reading]:
        """What is known to have been read in this session (by one agent), behind reading number `after`."""
        if limit < 1:
            raise ValueError("a number of readings is 1 or more")
        with self._reader.database.read() as connection:
            row = self._reader.row(connection, self.id)
            reader = None if agent is None else value(connection, SELECT_NAME, (agent,))
            if row is None or (agent is not None and reader is None):
                return []
            return readings.page(connection, row.number, reader, after, limit)

    def seen(self, agent: str, at: Point | None = None) -> Seen:
        """What an agent had in front of it when it wrote the event at a point, or at that point; by default, now.

        A point is as in `at`. Raises UnknownReference for an agent that the log does not know, and what `at` raises.
        """
        return recall(self._reader, self.id, agent, at, self._again)

    def _again(self, reading: Reading) -> Slice:
        return self._shown(reading.reader, reading.role, reading.view, reading.purpose)

    def _attendance(self, agent: str) -> Attendance | None:
        with self._reader.database.read() as connection:
            row = self._reader.row(connection, self.id)
            found = None if row is None else listening.part_of(connection, row, agent_key(agent))
        return None if found is None else Attendance.of(found)

    def _shown(self, agent: str, role: str | None, view: str | None, purpose: str | None) -> Slice:
        check_name(agent, "/agent")
        for key, name in (("/role", role), ("/purpose", purpose)):
            if name is not None:
                check_name(name, key)
        if view not in (None, "everything"):
            raise UnknownReference("view", str(view))
        return Whole(self)


@dataclass(frozen=True, slots=True)
class Attendance:
    """What the log says of an agent's part in a session: the event that says it, its role and view."""

    id: str
    is_there: bool
    role: str | None
    view: str | None

    @classmethod
    def of(cls, part: listening.Part) -> Self:
        """What the newest mutation on it says."""
        said = Event(part.envelope, Live(b"{}"))
        seen = said.seen or {}
        view = str(seen.get("view", "")).rpartition("@")[0] or None
        return cls(part.id, part.kind == JOINED_KIND, said.role, view)

    def is_as(self, role: str | None, label: str) -> bool:
        """Whether the agent takes part in this role, through this view, whatever its version."""
        return self.is_there and self.role == role and self.view == label.rpartition("@")[0]
