"""Replay: the events of a session again, in order, each marked as intent or as fact, at a chosen speed.

For a simulator, and for a worker that recovers. The mark says whether the log knows that something is so,
or only that somebody meant it to be:

    message      what asks, proposes or undertakes is an intent, what tells or declines is a fact (`MARKS`)
    tool_call    an intent while it has no result in what is replayed, then a fact
    tool_result  a fact
    mutation     a fact
    effect       whatever carries it: proposed and attempted are intents, committed and compensated are facts

Intent is not effect: an intent is never to be taken for something that took place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from convlog_sqlite.errors import InvalidEvent
from convlog_sqlite.events import Event
from convlog_sqlite.instants import to_microseconds
from convlog_sqlite.store.points import Point, instant
from convlog_sqlite.store.reader import Page, Reader

INTENT: Final = "intent"
FACT: Final = "fact"

# By performative. A message without one tells something.
MARKS: Final = {
    "accept-proposal": INTENT, "agree": INTENT, "cancel": INTENT, "cfp": INTENT, "confirm": FACT,
    "disconfirm": FACT, "failure": FACT, "inform": FACT, "inform-if": FACT, "inform-ref": FACT,
    "not-understood": FACT, "propagate": INTENT, "propose": INTENT, "proxy": INTENT, "query-if": INTENT,
    "query-ref": INTENT, "refuse": FACT, "reject-proposal": FACT, "request": INTENT,
    "request-when": INTENT, "request-whenever": INTENT, "subscribe": INTENT,
}  # fmt: skip
EFFECT_MARKS: Final = {"proposed": INTENT, "attempted": INTENT, "committed": FACT, "compensated": FACT}

_AT_ONCE: Final = 500
_LONGEST_SLEEP: Final = 86_400.0  # in one go: more than some systems can count is taken in parts


class Replayed(NamedTuple):
    """An event again. `mark` is `intent` or `fact`."""

    event: Event
    mark: str

    @property
    def line(self) -> bytes:
        """The event's canonical line with the mark in front, as `"mark"`."""
        return b'{"mark":"%s",' % self.mark.encode() + self.event.line[1:]


class Pace:
    """How long to wait before each event, so that they come as far apart as they happened, `speed` times as fast.

    Times are those that the events' source says, or else those of recording. Where they go back nothing is
    waited, and a consumer that takes its time makes up for it later. None is as fast as it goes.
    """

    def __init__(self, speed: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        if speed is not None and not (math.isfinite(speed) and speed > 0):
            raise ValueError("a speed is a number above 0, or None for as fast as it goes")
        self._speed, self._clock = speed, clock
        self._latest: int | None = None
        self._due = 0.0

    def wait(self, event: Event) -> float:
        """Seconds from now until an event is due."""
        if self._speed is None:
            return 0.0
        at = to_microseconds((event.source or {}).get("at", event.ts))
        if self._latest is None:
            self._latest, self._due = at, self._clock()
        if at > self._latest:
            self._due += (at - self._latest) / 1_000_000 / self._speed
            self._latest = at
        return max(0.0, self._due - self._clock())


def borders(reader: Reader, session: str, start: Point | None, end: Point | None) -> tuple[int, int]:
    """(after, upto): the seqs that a replay lies between. Both points belong to it.

    An instant as `start` stands for what follows the last event that was recorded before it.
    Raises UnknownReference and InvalidEvent, as `Session.at`, and InvalidEvent where the end stands in front
    of the start.
    """
    upto = reader.head(session) if end is None else reader.place(session, end)
    if start is None:
        return 0, upto
    if instant(start) is None:
        after = reader.place(session, start) - 1
        is_turned = after >= upto
    else:
        after = reader.place(session, start, earlier=True)
        is_turned = after > upto
    if is_turned:
        raise InvalidEvent("/end", "stands in front of the start")
    return after, upto


def marked(reader: Reader, session: str, after: int, upto: int) -> Iterator[Replayed]:
    """The events behind `after` up to `upto`, in order. Nothing stays open while the caller's code runs."""
    while after < upto:
        page = reader.read(session, after, upto + 1, _AT_ONCE, {})
        if not page:
            return
        yield from _marked(reader, session, page, upto)
        after = page[-1].seq


def _marked(reader: Reader, session: str, page: Page, upto: int) -> list[Replayed]:
    answered = reader.answered(session, [event.seq for event in page if event.type == "tool_call"], upto)
    return [Replayed(event, mark_of(event, is_answered=event.seq in answered)) for event in page]


def mark_of(event: Event, *, is_answered: bool) -> str:
    """`intent` or `fact`. `is_answered` counts for a tool call only."""
    if event.effect is not None:
        return EFFECT_MARKS[event.effect["state"]]
    if event.type == "tool_call":
        return FACT if is_answered else INTENT
    if event.type == "message" and event.performative is not None:
        return MARKS[event.performative]
    return FACT


def parts(seconds: float) -> Iterator[float]:
    """A time to sleep, in parts where it is long."""
    while seconds > 0:
        yield min(seconds, _LONGEST_SLEEP)
        seconds -= _LONGEST_SLEEP
