"""Recalling: what an agent had in front of it when it acted, read again through the view that it read through.

The log keeps of a reading where it began and ended and a digest of the ids. So the slice is shown as it is now, and
it is known whether it is the one that was read: content that was erased since is erased in it, and where the view
does not show the same events any more, as after a label that made one more sensitive, the digest says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from convlog_sqlite.database import Connection, value
from convlog_sqlite.errors import UnknownReference
from convlog_sqlite.events import Erased, Event, Live
from convlog_sqlite.store import points, readings
from convlog_sqlite.store.names import SELECT_NAME
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.readings import Reading, digest_of
from convlog_sqlite.store.sessions import SessionRow

if TYPE_CHECKING:
    from convlog_sqlite.views.slices import Slice

UNREAD: Final = "unread"
LAPSED: Final = "lapsed"

_MILLISECONDS: Final = len("2026-01-31T12:00:00.000")


@dataclass(frozen=True, slots=True)
class Seen:
    """What `agent` had in front of it at seq `at`; `event` is the id of what it wrote there, None where it wrote nothing.

    `reading` is what is known of it, and `events` are that slice as it is now, ascending; content that was erased is
    erased in it, and `erased` are the ids of those that were erased after they were read. `matches` says whether
    they are the events that were read; where they are not, a view or a label changed what is shown. Where nothing
    is known, `reading` and `matches` are None and `missing` says why: `unread`, the agent had read nothing that was
    recorded, or `lapsed`, a retention policy removed it.
    """

    agent: str
    at: int
    event: str | None
    reading: Reading | None
    events: Sequence[Event] = ()
    erased: Sequence[str] = ()
    matches: bool | None = None
    missing: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """All but the events, as JSON values, without what it does not say."""
        said: dict[str, Any] = {"agent": self.agent, "at": self.at, "event": self.event}
        said["reading"] = None if self.reading is None else self.reading.to_dict()
        said |= {"matches": self.matches, "erased": list(self.erased) or None, "missing": self.missing}
        return {key: item for key, item in said.items() if item is not None}


@dataclass(slots=True)
class _Found:
    """Where the agent was, and the reading that it had."""

    at: int
    event: str | None = None
    reading: Reading | None = None
    missing: str | None = field(default=None)


def recall(
    reader: Reader, session: str, agent: str, at: Point | None, again: Callable[[Reading], Slice]
) -> Seen:
    """What an agent had in front of it at a point of a session. `again` gives the slice that a reading was made of.

    Raises UnknownReference for a session, point or agent that the log does not know, and what `Session.at` raises.
    """
    with reader.database.read() as connection:
        row = reader.row(connection, session)
        if row is None:
            raise UnknownReference("session", session)
        number = value(connection, SELECT_NAME, (agent,))
        if number is None or not any(readings.knows(connection, part.number, number) for part in row.line):
            raise UnknownReference("agent", agent)
        seq = reader.head_of(connection, row)
        if at is not None:
            seq = points.place(connection, row, at, reader.tenant)
        found = _find(connection, row, number, agent, seq)
    if found.reading is None:
        return Seen(agent, found.at, found.event, None, missing=found.missing)
    shown = again(found.reading) if found.reading.count else None
    events = [] if shown is None else shown.between(found.reading.first, found.reading.last)
    matches = len(events) == found.reading.count and digest_of(events) == found.reading.digest
    if shown is not None and events and (found.reading.pairs or shown.adds):
        last = events[-1].seq
        events = list(shown.tail(len(events), before=last + 1, pairs=found.reading.pairs))
    with reader.database.read() as connection:
        erased = [event.id for event in events if _is_erased_since(connection, row, event, found.reading)]
    return Seen(agent, found.at, found.event, found.reading, events, erased, matches)


def _find(connection: Connection, row: SessionRow, number: int, agent: str, seq: int) -> _Found:
    found = _Found(seq)
    place = row.segment_of(seq).number, seq
    for pos, envelope in readings.event_at(connection, *place):
        event = Event(envelope, Live(b"{}"))
        if event.agent == agent:
            found.event = event.id
            seq -= 1
            if event.seen is not None:
                found.reading = readings.informing(connection, pos, event.seen["seq"])
                if found.reading is None:
                    found.missing = LAPSED if event.seen["seq"] else UNREAD
                return found
    for part in row.line:
        if found.reading is None:
            upto = min(seq, part.upto)
            found.reading = readings.furthest(connection, part.number, number, upto)
    if found.reading is None:
        lapsed = readings.has_lapsed(connection, row.number, number)
        found.missing = LAPSED if lapsed else UNREAD
    return found


def _is_erased_since(connection: Connection, row: SessionRow, event: Event, read: Reading) -> bool:
    """Whether an event was erased after it was read: by the order of the log, and not by clocks, where it tells."""
    if not isinstance(event.payload, Erased):
        return False
    for session, seq in readings.place_of(connection, event.payload.by):
        if row.segment_of(seq).number == session:
            return seq > read.upto
    # The redaction of what a fork shares stands in the parent, behind the fork: a clock has to do, to the millisecond.
    return event.payload.at >= read.at[:_MILLISECONDS]
