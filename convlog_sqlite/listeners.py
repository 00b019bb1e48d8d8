"""Listeners: agents that read a session through a view, and what is known of how far they have heard it.

What a listener is shown is noted as a reading. It costs no commit: readings wait in the listener until the next
append of its agent takes them along, in the same transaction, so that no reading is lost that an event was
written on. Those that informed nothing are written now and then, and when the log is closed; a crash may lose them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from convlog_sqlite.errors import StoreError
from convlog_sqlite.events import Event
from convlog_sqlite.instants import from_microseconds
from convlog_sqlite.store.listening import Heard, last_own
from convlog_sqlite.store.listening import recall as recalled
from convlog_sqlite.store.reader import Page, Reader
from convlog_sqlite.store.readings import Noted, Reading, digest_of, heard_through
from convlog_sqlite.vocabulary import ANY_PURPOSE

if TYPE_CHECKING:
    from convlog_sqlite.views.slices import Slice

_AT_ONCE: Final = 64  # readings that wait for an append before a transaction of their own
_MOST_WAITING: Final = 1024  # where they cannot be written
NEWS_LIMIT: Final = 1000


class Recording(Protocol):
    """Where readings are written."""

    reader: Reader

    def record_readings(self, session: str, noted: Sequence[Noted]) -> None: ...
    def await_close(self, listener: Any) -> None: ...


class News(Page):
    """What is new to a listener, oldest first. Heard up to `upto`, once it is acknowledged.

    `next` is None where this is all that is new. `selected` are those that the view selects, without what their links
    lead to.
    """

    upto: int = 0
    selected: Sequence[Event] = ()


class Listener:
    """An agent that reads a session, and need not take part in it. Made by `Session.listener`.

    `agent` is its name, `role` and `purpose` what it reads as and for, `view` the view with its version. Safe to
    use from several threads.
    """

    def __init__(
        self,
        log: Recording,
        session: str,
        agent: str,
        shown: Slice,
        role: str | None,
    ) -> None:
        """Use `Session.listener`."""
        self.agent, self.role, self.view = agent, role, shown.label
        self.purpose = None if shown.purpose == ANY_PURPOSE else shown.purpose
        self._log, self._session_id, self._slice = log, session, shown
        self._state = threading.Lock()
        self._newest: Noted | None = None
        self._waiting: list[Noted] = []
        self._heard = self._clear = self._last = (
            0  # heard through this view; clear of others; last own or shown
        )
        self._cause: str | None = None
        self._go_on_from_log()

    def _go_on_from_log(self) -> None:
        reader = self._log.reader
        with reader.database.read() as connection:
            row = reader.row(connection, self._session_id)
            if row is None:
                return
            found = recalled(connection, row, self.agent, lambda _: self._slice)
            own = last_own(connection, row, self.agent)
            here = heard_through(connection, row.number, self.agent, self.view.rpartition("@")[0])
        self._last, self._cause = own or (0, None)
        if found is not None and found.reading is not None:
            self._newest, self._clear, self._heard = found.reading, found.clear, here
            if found.reading.reading.last > self._last:
                self._last, self._cause = found.reading.reading.last, found.parent

    @property
    def heard_upto(self) -> int:
        """The seq up to which the agent has heard the session through this view, 0 while it has heard nothing."""
        return self._heard

    def listen(
        self, n: int = 20, *, pairs: bool = False, max_chars: int | None = None, brief: bool = False
    ) -> Page:
        """The last `n` events that the view shows, ascending; that they were read is noted.

        What the view's links lead to is added, and with `pairs` the calls whose results stand among them. With
        `max_chars`, it is what `Session.tail` gives with it: what was left out is not noted as read, what was cut is.
        Raises what `Slice.tail` raises.
        """
        if n < 1:
            raise ValueError("who listens reads 1 event or more")
        head = self._log.reader.head(self._session_id)
        selected = self._slice.newest(n)
        if selected and max_chars is not None:
            before = selected[-1].seq + 1
            page = self._slice.tail(n, before=before, max_chars=max_chars, brief=brief)
            since = page.next if page.left_out and page.left_out.events else None
            read = [event for event in selected if since is None or event.seq >= since]
            self._note(read, head, pairs=True)
            return page
        self._note(selected, head, pairs=pairs)
        if not selected or not (pairs or self._slice.adds):
            return selected
        return self._slice.tail(n, before=selected[-1].seq + 1, pairs=pairs)

    def news(self, limit: int = NEWS_LIMIT) -> News:
        """At most `limit` events behind what the agent has heard through this view, oldest first.

        They are new until `acknowledge` says that the agent has them: then, and not before, it goes on from there.
        """
        if limit < 1:
            raise ValueError("news are 1 event or more")
        head = self._log.reader.head(self._session_id)
        selected = self._slice.selected(after=self._heard, limit=limit)
        page = selected
        if selected and self._slice.adds:
            page = self._slice.read(after=self._heard, before=selected[-1].seq + 1, limit=limit)
        news = News(page)
        news.next, news.selected = selected.next, selected
        last = selected[-1].seq if selected else 0
        news.upto = max(head, last) if selected.next is None else selected.next
        return news

    def acknowledge(self, news: News) -> None:
        """Say that the agent has what `news` gave: it is written down as heard, now. Raises StoreError."""
        if news or news.upto > self._heard:
            self._note(news.selected, news.upto)
            self.flush()

    def _note(self, page: Sequence[Event], upto: int, *, pairs: bool = False) -> None:
        """Take note of a reading; of one like the last there is nothing new to note."""
        first, last = (page[0].seq, page[-1].seq) if page else (0, 0)
        upto = max(upto, last)
        digest = digest_of(page)
        with self._state:
            before = None if self._newest is None else self._newest.reading
            if last > self._last:
                self._last, self._cause = last, page[-1].id
            extent = first, last, upto, len(page), pairs, digest
            if before is not None and self.view == before.label and extent == _extent(before):
                return
            microseconds = self._log.reader.clock() // 1000
            view, _, version = self.view.rpartition("@")
            reading = Reading(
                reader=self.agent, role=self.role, purpose=self.purpose, view=view, version=int(version),
                first=first, last=last, upto=upto, count=len(page), pairs=pairs, digest=digest,
                at=from_microseconds(microseconds),
            )  # fmt: skip
            self._newest = Noted(reading, microseconds)
            self._waiting.append(self._newest)
            self._heard, self._clear = max(self._heard, upto), max(self._clear, upto)
            is_many = len(self._waiting) >= _AT_ONCE
            is_first = len(self._waiting) == 1
        if is_first:
            self._log.await_close(self)
        if is_many:
            with suppress(StoreError):  # what was read is shown all the same
                self.flush()

    def flush(self) -> None:
        """Write the readings that wait. Raises StoreError, SessionRemoved."""
        with self._state:
            waiting = self._unsettled()
        if waiting:
            self._log.record_readings(self._session_id, waiting)
        with self._state:
            self._unsettled()

    def _unsettled(self) -> list[Noted]:
        self._waiting = [noted for noted in self._waiting if not noted.is_settled][-_MOST_WAITING:]
        return list(self._waiting)

    def hear(self) -> Heard:
        """What the agent had heard, to go with an append of it."""
        with self._state:
            newest = self._newest
            return Heard(
                agent=self.agent,
                view=self.view if newest is None else newest.reading.label,
                seen=0 if newest is None else newest.reading.upto,
                reading=newest,
                pending=self._unsettled(),
                clear=self._clear,
                parent=self._cause,
                watch=self._slice,
            )

    def wrote(self, heard: Heard, events: Sequence[Event]) -> None:
        """Take note of an append that was committed with `heard`."""
        with self._state:
            own = [event for event in events if event.agent == self.agent]
            if own and own[-1].seq > self._last:
                self._last, self._cause = own[-1].seq, own[-1].id
            self._clear = max(self._clear, heard.cleared)

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.agent} in {self._session_id}>"


def _extent(reading: Reading) -> tuple[Any, ...]:
    return reading.first, reading.last, reading.upto, reading.count, reading.pairs, reading.digest
