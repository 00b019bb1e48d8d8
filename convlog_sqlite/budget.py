"""Budget: the newest events of a page that fit in a number of characters.

Characters are Unicode code points of what is printed: of canonical lines, or of brief ones, with their line ends and
with the line that says what was left out. The newest event is always there, events are left out from the oldest on,
and a call and its result are kept or left out together. An event whose content is long is cut: in the event that
stands for it, the beginning and the end of its main content are text, with a mark in between, and `cut` says so;
what else the payload holds (`attachments`, `usage`, `meta`) is left out of it. Envelopes are never cut.

A long event gets a quarter of the budget, or what 100 characters of its content take, if that is more, so that others
are there beside it. The oldest that is there gets what is left; and room that nothing else takes goes to what was
cut, the newest first.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.errors import BudgetTooSmall
from convlog_sqlite.events import BRIEF_CONTENT, Event, Live
from convlog_sqlite.store.reader import LeftOut, Page, Reader

_PARTS: Final = 4  # of the budget for a long event, so that there are several
_WORTH_READING: Final = 100  # characters of a long content: with less of it an event is left out
_SAID_OF_CONTENT: Final = frozenset({"truncated", "withheld", "cut"})
_JOINER: Final = "\u200d"
_SKIN_TONES: Final = ("\U0001f3fb", "\U0001f3ff")
_LONGEST_JOINED: Final = 32  # what is joined to more than that is cut all the same

Measure = Callable[[Event], int]


def fit(events: Sequence[Event], max_chars: int, *, brief: bool = False) -> Page:
    """The newest of some events, ascending, that take at most `max_chars` characters as printed.

    With `brief` those of brief lines are counted. `Page.left_out` says what was left out, or is None where nothing
    was; `Page.lines` gives what was counted, and `Page.next` is the `before` of what was left out. Raises
    BudgetTooSmall, with the smallest that works, and ValueError for a budget below 1.
    """
    if max_chars < 1:
        raise ValueError("a budget is 1 character or more")
    whole = Page(events)
    whole.next = events.next if isinstance(events, Page) else None
    measure = _brief_characters if brief else _characters
    total = sum(map(measure, whole))
    if total <= max_chars:
        return whole
    reserved = len(LeftOut(len(whole), whole[-1].seq, whole[-1].seq, len(whole)).line)
    chosen = _Chosen(measure, max_chars // _PARTS, max_chars - reserved)
    groups = _groups(whole)
    least = chosen.begin(groups[0])
    if least is not None:
        raise BudgetTooSmall(max_chars, min(total, least + reserved))
    kept = 1
    while kept < len(groups) and chosen.add(groups[kept]):
        kept += 1
    chosen.give_back()
    return _page(whole, chosen.shown, groups[kept - 1][0].seq)


def within(reader: Reader, session: str, page: Page, pairs: bool, max_chars: int | None, brief: bool) -> Page:
    """A page of a tail, with the calls that its results answer and cut to a budget, where that was asked for."""
    if page and (pairs or max_chars is not None):
        page = reader.calls_of(session, page)
    return page if max_chars is None else fit(page, max_chars, brief=brief)


def cut(event: Event, room: int, measure: Measure) -> Event:
    """The event, cut so that it takes at most `room`; where that cannot be, as small as it can be made."""
    if measure(event) <= room:
        return event
    content = event.content
    extras = [key for key in content if key not in BRIEF_CONTENT and key not in _SAID_OF_CONTENT]
    bare = _without(event, extras, {}) if extras else event
    if measure(bare) <= room:
        return bare
    main = next((key for key in BRIEF_CONTENT if key in content), None)
    if main is None:
        return min((event, bare), key=measure)
    value = content[main]
    text = value if isinstance(value, str) else strictjson.dump(value).decode()

    def keeping(count: int) -> Event:
        short, kept = shortened(text, count)
        return _without(event, extras, {main: short, "cut": {"characters": len(text), "kept": kept}})

    smallest = keeping(0)
    if measure(smallest) > room:
        return min((event, bare, smallest), key=measure)
    low, high = 0, min(len(text), room)  # what keeps `low` fits
    while high - low > 1:
        middle = (low + high) // 2
        if measure(keeping(middle)) <= room:
            low = middle
        else:
            high = middle
    return keeping(low)


def shortened(text: str, count: int) -> tuple[str, int]:
    """At most `count` characters of a text, three in four of its beginning, with the mark; and how many they are.

    It is cut at code points, and not inside what they are joined to: an accent, a skin tone, an emoji of several.
    """
    end = _apart(text, count * 3 // 4, -1)
    start = _apart(text, len(text) - (count - count * 3 // 4), 1)
    kept = end + len(text) - start
    parts = (text[:end], f"[… {len(text) - kept:,} characters left out …]", text[start:])
    return "\n".join(part for part in parts if part), kept


@dataclass(frozen=True, slots=True)
class _Place:
    """An event and what stands for it."""

    event: Event
    shown: Event


class _Chosen:
    """What was chosen so far, newest first, and the room that is left."""

    def __init__(self, measure: Measure, share: int, room: int) -> None:
        self._measure, self._share, self._room = measure, share, room
        self._places: list[_Place] = []

    def begin(self, group: Sequence[Event]) -> int | None:
        """Take the newest, cut as far as it must be. Else the least that it takes."""
        if self.add(group) or self._add(group, [self._room // len(group)] * len(group)):
            return None
        least = [self._least(event) for event in group]
        return None if self._add(group, least) else sum(least)

    def add(self, group: Sequence[Event]) -> bool:
        """Take an event, or a result with its call, where there is room for it."""
        if self._add(group, [self._room_of(event) for event in group]):
            return True
        even = self._room // len(group)
        return even >= _WORTH_READING + max(map(self._least, group)) and self._add(group, [even] * len(group))

    def give_back(self) -> None:
        """Let what was cut take the room that is left, the newest first."""
        for number, place in enumerate(self._places):
            if place.shown is not place.event:
                before = self._measure(place.shown)
                shown = cut(place.event, before + self._room, self._measure)
                self._room -= self._measure(shown) - before
                self._places[number] = _Place(place.event, shown)

    @property
    def shown(self) -> list[_Place]:
        """All that was chosen, ascending."""
        return sorted(self._places, key=lambda place: place.event.seq)

    def _room_of(self, event: Event) -> int:
        if self._measure(event) <= self._share:
            return self._share
        return max(self._share, self._least(event) + _WORTH_READING)

    def _least(self, event: Event) -> int:
        return self._measure(cut(event, 0, self._measure))

    def _add(self, group: Sequence[Event], rooms: Sequence[int]) -> bool:
        places = [
            _Place(event, cut(event, room, self._measure)) for event, room in zip(group, rooms, strict=True)
        ]
        size = sum(self._measure(place.shown) for place in places)
        if size > self._room:
            return False
        self._room -= size
        self._places += places
        return True


def _groups(events: Sequence[Event]) -> list[list[Event]]:
    """What is kept or left out together, each with its newest first, the newest in front."""
    by_id = {event.id: event for event in events}
    groups = {event.id: [event] for event in events}
    for event in events:
        if event.call_id in by_id and event.call_id in groups:
            groups[event.id] += groups.pop(event.call_id)
    return sorted(groups.values(), key=lambda group: -group[0].seq)


def _page(whole: Page, places: Sequence[_Place], since: int) -> Page:
    page = Page(place.shown for place in places)
    there = {place.event.seq for place in places}
    gone = [event.seq for event in whole if event.seq not in there]
    page.next = since if gone else whole.next
    first, last = (gone[0], gone[-1]) if gone else (None, None)
    page.left_out = LeftOut(len(gone), first, last, sum(place.shown is not place.event for place in places))
    return page


def _without(event: Event, extras: Sequence[str], said: dict[str, Any]) -> Event:
    """The event without some payload keys, and with others in place of its own."""
    content = {key: item for key, item in event.content.items() if key not in extras} | said
    if extras:
        content["cut"] = content.get("cut", {}) | {"without": list(extras)}
    return Event(event.envelope_bytes, Live(strictjson.dump(content)))


def _characters(event: Event) -> int:
    return len(event.line.decode())


def _brief_characters(event: Event) -> int:
    return len(event.brief_line.decode())


def _apart(text: str, place: int, step: int) -> int:
    """The place, or one near it in the direction of `step`, where two characters are not joined."""
    for near in range(place, place + step * _LONGEST_JOINED, step):
        if not (0 < near < len(text)):
            return min(max(near, 0), len(text))
        if not _are_joined(text[near - 1], text[near]):
            return near
    return place


def _are_joined(one: str, other: str) -> bool:
    return (
        _JOINER in (one, other)
        or unicodedata.category(other).startswith("M")
        or _SKIN_TONES[0] <= other <= _SKIN_TONES[1]
        or one + other == "\r\n"
    )
