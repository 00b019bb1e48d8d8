"""Appends that wait for their commit, and what they left behind when it came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from convlog_sqlite.events import Event
from convlog_sqlite.store.listening import Heard, Recorded
from convlog_sqlite.store.preparing import Prepared
from convlog_sqlite.store.writing import Appended, Batch


@dataclass(slots=True, eq=False)
class Request:
    """One append that waits for its commit."""

    session: str
    tenant: str | None
    prepared: Sequence[Prepared]
    slots: Iterator[tuple[int, bytes]]
    heard: Heard | Recorded | None = None
    settled: bool = False
    appended: list[Appended] = field(default_factory=list)
    error: BaseException | None = None
    batch: Batch | None = None
    last: int = 0  # seq of its last event
    together: Sequence[Request] = ()  # those that were handed over with it
    turn: SimpleQueue[None] | None = None  # something in it wakes who waits for this request
    used: Sequence[int] = ()  # slots of their payloads

    def outcome(self) -> list[Appended]:
        """What was recorded. Raises what refused it."""
        if self.error is not None:
            raise self.error
        return self.appended

    def end(self, *, committed: bool) -> None:
        """Say how it ended to who waits for it, and to the readings that it brought."""
        if isinstance(self.heard, Heard) and not (committed and self.error is not None):
            for noted in (*self.heard.pending, *filter(None, [self.heard.reading])):
                noted.settle(committed=committed)
        self.settled = True
        if self.turn is not None:
            self.turn.put(None)

    def fresh(self) -> Fresh | None:
        """What a committed append put behind the other events; None where some of it stood there before."""
        events = [event for event, new in self.appended if new]
        if len(events) < len(self.appended) or not events:
            return None
        return Fresh(self.last - len(events) + 1, events, self.used)


@dataclass(frozen=True, slots=True)
class Fresh:
    """Committed events of one session as their append left them, in order from seq `first`."""

    first: int
    events: Sequence[Event]
    slots: Sequence[int]

    @property
    def last(self) -> int:
        """The seq of the last of them."""
        return self.first + len(self.events) - 1

    def followed_by(self, other: Fresh | None) -> Fresh | None:
        """Both, if the one follows on the other."""
        if other is None or other.first != self.last + 1:
            return None
        return Fresh(self.first, [*self.events, *other.events], [*self.slots, *other.slots])
