"""The part of a session that `tail` shows, gathered over as many bounded reads as it takes.

Through a view, the last events come with what they name by its links; a stream shows what is selected alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from convlog_sqlite import ConversationLog, Event, Filters, Moment, Page, Session

if TYPE_CHECKING:
    from convlog_sqlite import Slice


def last(
    session: Session | Moment | Slice, count: int, *, after: int, before: int | None, filters: Filters
) -> list[Event]:
    """The last `count` events between the seqs `after` and `before`, both exclusive, ascending."""
    found: list[Event] = []
    while count > len(found):
        page = session.tail(count - len(found), before=before, **filters)
        found[:0] = [event for event in page if event.seq > after]
        before = page.next
        if before is None or before <= after + 1:
            break
    return found


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


def with_calls(log: ConversationLog, session: Session | Moment | Slice, events: list[Event]) -> list[Event]:
    """`events` and, in front, the calls whose results stand among them alone."""
    if not isinstance(session, Session | Moment):
        return session.with_calls(Page(events))
    here = {event.id for event in events}
    wanted = {event.call_id for event in events if event.call_id and event.call_id not in here}
    return sorted([*map(log.event, wanted), *events], key=lambda event: event.seq)
