"""`tail` for a reader: through its view, noting what it was shown, and from where it was the last time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import typer

from convlog_sqlite import ConversationLog, Event, Filters, LeftOut, Listener, Page
from convlog_sqlite.cli import render, window
from convlog_sqlite.cli.options import existing, point, put, reading, say, usage_error, writing
from convlog_sqlite.cli.view_options import Through
from convlog_sqlite.cli.window import Shown

_TAIL: Final = 20
_NEWS: Final = 1000


class Printer:
    """Prints events one after the other, and knows the seq of the last."""

    def __init__(self, on: render.Screen | None, *, brief: bool = False) -> None:
        self.seq = 0
        self._on, self._day, self._brief = on, "", brief

    def show(self, events: Iterable[Event], *, flush: bool = False) -> None:
        if isinstance(events, Page) and events.left_out is not None:
            self._say_left_out(events.left_out)
        for event in events:
            self.seq = event.seq
            if self._on is None:
                put(event.brief_line if self._brief else event.line)
            elif self._brief:
                say(render.compact(event, self._on))
            else:
                for line in render.brief(event, self._on, day_before=self._day):
                    say(line)
                self._day = render.day_of(event)
            if flush:
                sys.stdout.flush()

    def _say_left_out(self, left_out: LeftOut) -> None:
        if self._on is None:
            put(left_out.line)
        else:
            say(render.left_out(left_out, self._on))


@dataclass(frozen=True, slots=True)
class Look:
    """What the options of `tail` say of who reads, and how. `number` is how many events."""

    reader: str | None
    view: str | None
    purpose: str | None
    number: int | None
    how: Shown
    since_last: bool
    follow: bool

    @property
    def is_of_a_reader(self) -> bool:
        """Whether it is no plain look at the whole session."""
        return self.since_last or not (self.reader is self.view is self.purpose is None)

    def show(
        self,
        context: typer.Context,
        session: str,
        store: str | None,
        out: Printer,
        filters: Filters,
        place: Mapping[str, Any],
    ) -> None:
        """Print what the reader is shown. `place` are --after, --before and --at."""
        narrowed = [option for option, said in place.items() if said is not None]
        narrowed += [f"a filter ({key})" for key, said in filters.items() if said is not None]
        if self.since_last and self.reader is None:
            raise usage_error("says whose last time: give --as", "--since-last")
        if self.since_last and narrowed:
            raise usage_error(f"gives all that is new, so not with {narrowed[0]}", "--since-last")
        if self.since_last and self.how.pairs:
            raise usage_error("gives all that is new, in order, so not with --pairs", "--since-last")
        if self.since_last and self.how.max_chars is not None:
            raise usage_error("gives all that is new, so not with --max-chars; -n limits it", "--since-last")
        if self.number == 0:
            raise usage_error("who reads through a view reads 1 event or more", "-n")
        if self.reader is None or narrowed:
            with reading(context, store) as log:
                self._show_slice(log, session, out, filters, place)
            return
        with writing(context, store, create=False) as log:
            if not self.follow:
                existing(log, session)
            listener = log.session(session).listener(self.reader, view=self.view, purpose=self.purpose)
            self._listen(log, listener, out)

    def _show_slice(
        self, log: ConversationLog, session: str, out: Printer, filters: Filters, place: Mapping[str, Any]
    ) -> None:
        """A look that is not noted: of nobody, or at a part that somebody chose."""
        whole, at = log.session(session) if self.follow else existing(log, session), place["--at"]
        shown = Through(self.view, self.reader, self.purpose).slice_of(
            whole if at is None else whole.at(point(at))
        )
        after, before, head = place["--after"], place["--before"], shown.head
        if self.number is None and after is not None:
            out.show(window.everything(shown, after=after, before=before, filters=filters))
        else:
            count = _TAIL if self.number is None else self.number
            events = window.last(shown, count, after=after or 0, before=before, filters=filters)
            out.show(window.within(log, shown, events, self.how))
        if self.follow:
            sys.stdout.flush()
            out.show(whole.follow(max(head, after or 0), through=shown, **filters), flush=True)

    def _listen(self, log: ConversationLog, listener: Listener, out: Printer) -> None:
        if self.since_last:
            self._show_news(listener, out, self.number)
        else:
            count, how = _TAIL if self.number is None else self.number, self.how
            page = listener.listen(count, pairs=how.pairs, max_chars=how.max_chars, brief=how.brief)
            out.show(page)
            sys.stdout.flush()
            listener.flush()
        if not self.follow:
            return
        waiter = log.waiter()
        try:
            while waiter.wait(None):
                self._show_news(listener, out, None)
        finally:
            waiter.close()

    def _show_news(self, listener: Listener, out: Printer, limit: int | None) -> None:
        """Print what is new, page by page; the agent has a page once it was written to standard output."""
        left = limit
        while left is None or left > 0:
            news = listener.news(_NEWS if left is None else min(left, _NEWS))
            out.show(news)
            sys.stdout.flush()
            listener.acknowledge(news)
            if news.next is None:
                return
            left = None if left is None else left - len(news.selected)
