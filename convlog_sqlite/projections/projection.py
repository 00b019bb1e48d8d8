"""Projection: a fold over the events of a session, and what a state is rendered with.

    def count(state, event):
        state[event.agent] = state.get(event.agent, 0) + 1

    session.state(Projection("events-by-agent", count))

A state is a JSON value. It is folded once and then brought up to date, here or in another process, so it must
hang on the events alone: not on the clock, not on chance, not on what else the program knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.drafts import check_name
from convlog_sqlite.errors import InvalidEvent
from convlog_sqlite.events import Event
from convlog_sqlite.store import folding
from convlog_sqlite.store.blobs import WHOLE_VALUE
from convlog_sqlite.store.folding import Place, Wanted
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.vocabulary import TYPES

FAMILY: Final = "*"  # at the end of a kind: every kind that begins so
_LAST_IN_KIND: Final = "~"  # sorts behind every character of a kind
MAX_VERSION: Final = 2**62


class Look:
    """What a `render` may look up: single events of the session whose state it shows."""

    def __init__(self, reader: Reader, place: Place | None) -> None:
        self._reader, self._place = reader, place

    def events(self, seqs: Iterable[int]) -> dict[int, Event]:
        """Events by seq, in one read."""
        wanted = dict.fromkeys(seqs)
        if self._place is None or not wanted:
            return {}
        with self._reader.database.read() as connection:
            found = folding.at_seqs(connection, self._place, wanted)
        # By the rows' own seq: an envelope that was changed may say anything.
        return {
            row[0]: event
            for segment, rows in found
            for row, event in zip(rows, self._reader.opener.events(segment.name, rows), strict=True)
        }

    def named(self, event_ids: Iterable[str]) -> dict[str, Event]:
        """Events of the session by id, those that there are."""
        wanted, place = dict.fromkeys(event_ids), self._place
        if place is None or not wanted:
            return {}
        upto = {segment.name: segment.upto for segment in place.segments}
        with self._reader.database.read() as connection:
            found = folding.by_ids(connection, wanted)
        opened = [
            self._reader.opener.events(session, [row])[0]
            for session, row in found
            if row[0] <= upto.get(session, 0)
        ]
        return {event.id: event for event in opened}

    @property
    def now(self) -> int:
        """The clock, in microseconds: a rendering may say what is over by now."""
        return self._reader.clock() // 1000

    def shown(self, event: Event) -> dict[str, Any]:
        """The value of a mutation, whole, as keys of a rendering: `value`, or why there is none to see."""
        if event.redacted:
            return {"redacted": event.redacted}
        if event.unreadable:
            return {"unreadable": event.unreadable}
        if "truncated" in event.content:
            return {"value": strictjson.load(self._reader.blob(event, WHOLE_VALUE))}
        return {"value": event.content["value"]} if "value" in event.content else {}


Fold = Callable[[Any, Event], Any]
Render = Callable[[Any, Look], Any]


@dataclass(frozen=True, eq=False)
class Projection:
    """A state that is computed from the events of a session.

    `fold(state, event)` gives the next state, or changes the one it was given and returns None; `initial` is the
    state before the first event. `render(state, look)` makes of it what callers see (default: a copy of it).
    Raise `version` whenever the fold changes: what an earlier version computed is then not gone on from.

    `types`, `kinds` (a `*` at the end stands for every kind that begins so) and `performatives` say which events
    the fold needs, `keyed` adds those that set a piece of state; none given: all. Without `reads_content` the
    events come with their envelopes alone, which is faster, and erasing content changes nothing in the state.
    """

    name: str
    fold: Fold
    version: int = 1
    initial: Any = field(default_factory=dict)
    render: Render | None = None
    types: Collection[str] = ()
    kinds: Collection[str] = ()
    performatives: Collection[str] = ()
    keyed: bool = False
    reads_content: bool = True

    def __post_init__(self) -> None:
        """Raise InvalidEvent for what is no projection."""
        check_name(self.name, "/name")
        if not callable(self.fold):
            raise InvalidEvent("/fold", "a function of a state and an event")
        if type(self.version) is not int or not 0 <= self.version <= MAX_VERSION:
            raise InvalidEvent("/version", "a whole number, 0 or more")
        for wanted in self.types:
            if wanted not in TYPES:
                raise InvalidEvent("/types", "each one of " + ", ".join(TYPES))
        strictjson.check(self.initial, "/initial")

    @cached_property
    def wanted(self) -> Wanted | None:
        """Which events the fold needs, for the statements that read them; None: all."""
        if not (self.types or self.kinds or self.performatives or self.keyed):
            return None
        kinds, performatives = [_range(kind) for kind in self.kinds], list(self.performatives)
        lists = (strictjson.dump(found).decode() for found in (kinds, performatives))
        return Wanted(sum(1 << TYPES[name] for name in set(self.types)), self.keyed, *lists)

    def needs(self, event: Event) -> bool:
        """Whether the fold needs an event."""
        if self.wanted is None:
            return True
        kind, begins = event.kind or "", [name[:-1] for name in self.kinds if name.endswith(FAMILY)]
        return (
            event.type in self.types
            or (self.keyed and event.state_key is not None)
            or kind in self.kinds
            or (bool(kind) and any(kind.startswith(family) for family in begins))
            or event.performative in self.performatives
        )

    def begin(self) -> Any:
        """The state before the first event, the caller's own."""
        return strictjson.load(strictjson.dump(self.initial))


def _range(kind: str) -> Sequence[str]:
    if kind.endswith(FAMILY):
        return [kind[:-1], kind[:-1] + _LAST_IN_KIND]
    return [kind, kind]


def said_by(event: Event) -> dict[str, Any]:
    """Who wrote an event and where it stands, as a rendering shows it."""
    return {"by": event.agent, "seq": event.seq, "event": event.id}
