"""The part of a session that `tail` shows, gathered over as many bounded reads as it takes.

Through a view, the last events come with what they name by its links; a stream shows what is selected alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from convlog_sqlite import ConversationLog, Event, Filters, Moment, Page, Session, fit
from convlog_sqlite.cli.options import usage_error

if TYPE_CHECKING:
    from convlog_sqlite import Slice


@dataclass(frozen=True, slots=True)
class Shown:
    """How events are to be shown: with the calls of results, in how many characters, in brief."""

    pairs: bool
    max_chars: int | None
    brief: bool

    def check(self, number: int | None, after: int | None, *, follow: bool) -> None:
        """Refuse what does not go together. `number`, `after` and `follow` are what else was said."""
        budgeted = self.max_chars is not None
        option = "--max-chars" if budgeted else "--pairs"
        if (self.pairs or budgeted) and number is None and after is not None:
            raise usage_error("needs -n beside --after", option)
        if self.max_chars == 0:
            raise usage_error("is 1 or more", option)
        if budgeted and follow:
            raise usage_error("counts what there is, so not with --follow", option)


def last(
    session: Session | Moment | Slice, count: int, *, after: int, before: int | None, filters: Filters
) -> list[Event]:
    """The last `count` events between the seqs `after` and `before`, both exclusive, ascending."""
    found: list[Event] = []
    read = session.tail if isinstance(session, Session | Moment) else session.newest
    while count > len(found):
        page = read(count - len(found), before=before, **filters)
        found[:0] = [event for event in page if event.seq > after]
        before = page.next
        if before is None or before <= after + 1:
            break
    if isinstance(session, Session | Moment):
        return found
    return [event for event in session.with_linked(Page(found)) if event.seq > after]


def everything(
    session: Session | Moment | Slice, *, after: int, before: int | None, filters: Filters
) -> Iterator[Event]:
    """All events between the seqs `after` and `before`, both exclusive, page by page."""
    place: int | None = after
    while place is not None:
        read = session.read if isinstance(session, Session | Moment) else session.selected
        page = read(after=place, before=before, **filters)
        yield from page
        place = page.next


def within(
    log: ConversationLog, session: Session | Moment | Slice, events: list[Event], how: Shown
) -> list[Event]:
    """`events` as they are to be shown: with the calls that their results answer, and cut to a budget."""
    if how.pairs or how.max_chars is not None:
        events = with_calls(log, session, events)
    return events if how.max_chars is None else fit(events, how.max_chars, brief=how.brief)


def with_calls(log: ConversationLog, session: Session | Moment | Slice, events: list[Event]) -> list[Event]:
    """`events` and, in front, the calls whose results stand among them alone."""
    if not isinstance(session, Session | Moment):
        return session.with_calls(Page(events))
    here = {event.id for event in events}
    wanted = {event.call_id for event in events if event.call_id and event.call_id not in here}
    return sorted([*map(log.event, wanted), *events], key=lambda event: event.seq)
