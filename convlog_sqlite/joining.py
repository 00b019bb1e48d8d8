"""Taking part in a session: joining, listening, what participants are asked for, and who is known to have read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from convlog_sqlite.database import value
from convlog_sqlite.drafts import Draft, check_name
from convlog_sqlite.errors import InvalidEvent, Refused, StateConflict
from convlog_sqlite.events import Event
from convlog_sqlite.follow import Waiter
from convlog_sqlite.listeners import Listener
from convlog_sqlite.moment import Moment
from convlog_sqlite.participants import Appending, Conversation, Part, Participant
from convlog_sqlite.recalling import Seen, recall
from convlog_sqlite.store import listening, readings, roles
from convlog_sqlite.store.listening import Part as Attendance
from convlog_sqlite.store.names import SELECT_NAME
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.readings import Reading
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.vocabulary import LISTENING_KEY, LISTENING_KINDS, agent_key

if TYPE_CHECKING:
    from convlog_sqlite.views.definition import View
    from convlog_sqlite.views.slices import Slice

DEFAULT_READINGS: Final = 1000
_ATTEMPTS: Final = 10  # at joining, while others join under the same name


class Joining(Conversation):
    """The part of a session that knows who takes part in it. `Session` is one."""

    _log: Appending

    @abstractmethod
    def reply_by(self, waiter: Waiter, request: Event | str, timeout: float | None) -> Event: ...
    @abstractmethod
    def approval_by(self, waiter: Waiter, proposal: Event | str, timeout: float | None) -> Event: ...
    @abstractmethod
    def through(
        self,
        view: View | str | None = None,
        *,
        reader: str | None = None,
        role: str | None = None,
        purpose: str | None = None,
    ) -> Slice: ...
    @abstractmethod
    def at(self, point: Point) -> Moment: ...

    def join(
        self,
        agent: str,
        *,
        role: str | None = None,
        view: View | str | None = None,
        purpose: str | None = None,
        sensitivity: str | None = None,
        purposes: Sequence[str] | None = None,
        subjects: Sequence[str] | None = None,
    ) -> Participant:
        """Take part in the session as `agent`: what it does from now on says what it had heard.

        That it joined is recorded once, and again only with another role or view; without them, it goes on in
        those that it has. A role that was granted to it counts as given, and a role has a view. `purpose` is what it
        reads for, `view` one that the store keeps. `sensitivity`, `purposes` and `subjects` (names of people) stand in each event that does not say
        otherwise. Raises StoreReadOnly, and what `through` and `append` raise.
        """
        before = self._attendance(agent)
        role, shown = self._shown(agent, before, role, view, purpose)
        part = Part(
            agent, {"role": role, "sensitivity": sensitivity, "purposes": purposes, "subjects": subjects}
        )
        participant = Participant(self._log, self, part, shown)
        standing = [] if before is None else [before.id]
        for attempt in range(_ATTEMPTS):
            if before is not None and _is_as(before, role, shown.label):
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
        self,
        agent: str,
        *,
        role: str | None = None,
        view: View | str | None = None,
        purpose: str | None = None,
    ) -> Listener:
        """An agent that reads the session, and writes nothing: that it was shown something is noted under its name.

        `view` is one that the store keeps. Without, it is the one that the agent joined with, else that of its role.
        Raises what `through` raises, InvalidEvent for a View that is not what stands under its label.
        """
        role, shown = self._shown(agent, self._attendance(agent), role, view, purpose)
        return Listener(self._log, self.id, agent, shown, role)

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
        who = {"reader": reading.reader, "role": reading.role, "purpose": reading.purpose}
        return self.at(reading.upto).through(reading.label, **who)

    def _attendance(self, agent: str) -> Attendance | None:
        with self._reader.database.read() as connection:
            row = self._reader.row(connection, self.id)
            return None if row is None else listening.part_of(connection, row, agent_key(agent))

    def _shown(
        self,
        agent: str,
        before: Attendance | None,
        role: str | None,
        view: View | str | None,
        purpose: str | None,
    ) -> tuple[str | None, Slice]:
        """The role that an agent reads in, and what it is shown; `before` is the part that it has."""
        check_name(agent, "/agent")
        if before is not None and view is None and role in (None, before.role):
            view = self._chosen(agent, before)
        shown = self.through(view, reader=agent, role=role, purpose=purpose)
        if view is not None and not isinstance(view, str):
            # By its label alone is it known what was read.
            kept = self.through(shown.label, reader=agent, role=role, purpose=purpose).view
            if kept != shown.view:
                raise InvalidEvent("/view", f"the store keeps another view as {shown.label}: define this one")
        if role is None:
            held = self._held(agent)
            role = held[0] if len(held) == 1 else None
        return role, shown

    def _chosen(self, agent: str, before: Attendance) -> str | None:
        """The view that an agent asked for when it joined; None where it took that of its role."""
        name = before.view.rpartition("@")[0]
        if before.role is None:
            return name
        try:
            of_role = self.through(reader=agent, role=before.role).view.name
        except Refused:  # no view is that of the role
            return name
        return None if of_role == name else name

    def _held(self, agent: str) -> list[str]:
        with self._reader.database.read() as connection:
            row = self._reader.row(connection, self.id) or SessionRow(0, self.id, None, 0)
            return roles.roles_of(connection, row, agent)


def _is_as(part: Attendance, role: str | None, label: str) -> bool:
    """Whether an agent takes part in a role, through a view, whatever its version."""
    return part.is_there and part.role == role and part.view.rpartition("@")[0] == label.rpartition("@")[0]
