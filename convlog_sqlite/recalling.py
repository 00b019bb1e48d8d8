"""Recalling: what an agent had in front of it when it acted, read again through the view that it read through.

The log keeps of a reading where it began and ended and a digest of the ids. So the slice is shown as it is now, and
it is known whether it is the one that was read: content that was erased since is erased in it, and where the view
does not show the same events any more, as after a label that made one more sensitive, the digest says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.errors import UnknownReference
from convlog_sqlite.events import Erased, Event, Live
from convlog_sqlite.listeners import Slice
from convlog_sqlite.store import points, readings
from convlog_sqlite.store.names import SELECT_NAME
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.readings import Reading, digest_of
from convlog_sqlite.store.sessions import SessionRow

SELECT_EVENT: Final = """
SELECT e.pos, v.bytes FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos WHERE e.session = ? AND e.seq = ?"""

UNREAD: Final = "unread"
LAPSED: Final = "lapsed"
_AT_ONCE: Final = 1000


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
        number = value(connection, SELECT_NAME, (agent,))
        if row is None or number is None:
            raise UnknownReference("session" if row is None else "agent", session if row is None else agent)
        seq = (
            reader.head_of(connection, row)
            if at is None
            else points.place(connection, row, at, reader.tenant)
        )
        found = _find(connection, row, number, agent, seq)
    if found.reading is None:
        return Seen(agent, found.at, found.event, None, missing=found.missing)
    shown = again(found.reading)
    events = _read(shown, found.reading)
    matches = len(events) == found.reading.count and digest_of(events) == found.reading.digest
    if found.reading.pairs and events:
        events = _with_calls(shown, events)
    erased = [event.id for event in events if _erased_since(event, found.reading.at)]
    return Seen(agent, found.at, found.event, found.reading, events, erased, matches)


def _find(connection: Connection, row: SessionRow, number: int, agent: str, seq: int) -> _Found:
    found = _Found(seq)
    place = row.segment_of(seq).number, seq
    for pos, envelope in fetch(connection, SELECT_EVENT, place):
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


def _read(shown: Slice, reading: Reading) -> list[Event]:
    events: list[Event] = []
    after: int | None = reading.first - 1
    while after is not None and reading.count:
        page = shown.read(after=after, before=reading.last + 1, limit=_AT_ONCE)
        events += page
        after = page.next
    return events


def _with_calls(shown: Slice, events: Sequence[Event]) -> list[Event]:
    return list(shown.tail(len(events), before=events[-1].seq + 1, pairs=True))


def _erased_since(event: Event, at: str) -> bool:
    return isinstance(event.payload, Erased) and event.payload.at >= at
