"""Slice: a session through a view, to be read like the session itself.

What it shows is below every ceiling of the view and selected by it; its events hold the payload keys that the view
shows, and no others. A page of `tail` or `read` also shows what its events name by the links that the view follows,
if it is below the ceilings; a stream (`jsonl`, `follow`) shows what is selected, in order, and nothing twice.

Labels count as of now, also for a slice of an earlier time: what was labelled since is kept back there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.budget import fit
from convlog_sqlite.database import Connection, value
from convlog_sqlite.errors import InvalidEvent, NotAuthorized, UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.instants import id_bytes
from convlog_sqlite.projections.projection import Projection
from convlog_sqlite.store import reading, roles, slicing
from convlog_sqlite.store.blobs import FIRST_ATTACHMENT, WHOLE_VALUE
from convlog_sqlite.store.names import Names
from convlog_sqlite.store.probing import Compiled
from convlog_sqlite.store.reader import Page, Reader
from convlog_sqlite.store.reading import SCAN
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.store.slicing import Sliced
from convlog_sqlite.store.tenures import Tenures
from convlog_sqlite.views import compiling, explaining
from convlog_sqlite.views.compiling import Asked
from convlog_sqlite.views.definition import View
from convlog_sqlite.views.explaining import Explanation
from convlog_sqlite.views.looking import Looking
from convlog_sqlite.vocabulary import ANY_PURPOSE, LAST_SEQ, LINKS

DEFAULT_LIMIT: Final = 1000
MOST_LINKED: Final = 1000  # events that a page shows because its own name them
_WATCHED_AT_ONCE: Final = 64
_MAIN: Final = frozenset({"body", "args", "result", "value"})
_EVERY_KEY: Final = "*"


@dataclass(frozen=True, slots=True)
class Through:
    """Who reads, and by which view. `upto` is the last seq that counts; the tenures are remembered by the log."""

    view: View
    reader: str | None
    role: str | None
    purpose: str | None
    upto: int = LAST_SEQ
    tenures: Tenures = field(default_factory=Tenures)


class Slice:
    """What a reader is shown of a session. Made by `Session.through`; safe to use from several threads."""

    def __init__(
        self, source: Reader, session_id: str, through: Through, projection: Callable[[str], Projection]
    ) -> None:
        """Use `Session.through`. Raises InvalidEvent, NotAuthorized where the view is not for this reader or session."""
        _check(through, session_id)
        self.id = session_id
        self._reader, self._through, self._projection = source, through, projection
        is_unbound = through.view.tenant is None and through.purpose == ANY_PURPOSE
        self._is_whole = through.view.is_whole and is_unbound
        self._followed = [number for number, name in enumerate(LINKS, 1) if name in through.view.links]
        self._known: tuple[tuple[Any, ...], Compiled] | None = None

    @property
    def view(self) -> View:
        """The view, with its version."""
        return self._through.view

    @property
    def label(self) -> str:
        """The view as `seen` names it: `worker@3`."""
        return self.view.label

    @property
    def reader(self) -> str | None:
        """The agent that reads, if it was named."""
        return self._through.reader

    @property
    def role(self) -> str | None:
        """The role in which it reads, if it was named."""
        return self._through.role

    @property
    def purpose(self) -> str | None:
        """What it reads for; `*` for a view that asks for no purpose."""
        return self._through.purpose

    @property
    def head(self) -> int:
        """The seq of the last event of the session, shown or not."""
        return min(self._reader.head(self.id), self._through.upto)

    def tail(
        self,
        n: int = 20,
        *,
        before: int | None = None,
        pairs: bool = False,
        max_chars: int | None = None,
        brief: bool = False,
        max_scan: int = SCAN,
        **filters: Any,
    ) -> Page:
        """See `Session.tail`. With `pairs`, a call that is above a ceiling stays out."""
        page = self._page(slicing.last, 0, before, n, filters, max_scan, self._followed)
        if pairs or max_chars is not None:
            page = self.with_calls(page)
        return page if max_chars is None else fit(page, max_chars, brief=brief)

    def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = DEFAULT_LIMIT,
        max_scan: int = SCAN,
        **filters: Any,
    ) -> Page:
        """See `Session.read`."""
        return self._page(slicing.first, after, before, limit, filters, max_scan, self._followed)

    def selected(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = DEFAULT_LIMIT,
        max_scan: int = SCAN,
        **filters: Any,
    ) -> Page:
        """What `read` gives without what links lead to: page after page, each event once."""
        return self._page(slicing.first, after, before, limit, filters, max_scan, ())

    def newest(self, n: int = 20, *, before: int | None = None, max_scan: int = SCAN, **filters: Any) -> Page:
        """What `tail` gives without what links lead to: page in front of page, each event once."""
        return self._page(slicing.last, 0, before, n, filters, max_scan, ())

    def between(self, first: int, last: int) -> list[Event]:
        """All that it selects from seq `first` to seq `last`, both included."""
        events: list[Event] = []
        after: int | None = first - 1
        while after is not None:
            page = self.selected(after=after, before=last + 1)
            events += page
            after = page.next
        return events

    @property
    def adds(self) -> bool:
        """Whether a page shows more than is selected: what links lead to."""
        return bool(self.view.links)

    def oldest(
        self, connection: Connection, session: SessionRow, after: int, upto: int, agent: int
    ) -> tuple[int, str] | None:
        """(seq, id) of the oldest event that it selects behind seq `after`, up to `upto`, and another than `agent` wrote.

        Asked inside a transaction that writes: behind `after` it may see rows that are rolled back yet, so what it
        learns there it forgets.
        """
        if not self._is_for(session):
            return None
        self._through.tenures.advance(connection, session, after)
        tenures = self._through.tenures.copied()
        tenures.advance(connection, session, upto)
        asked = compiling.compiled(connection, Names(), self._asked(connection, session, tenures), {})
        while after < upto:
            window = after, upto + 1
            found = slicing.first(connection, session, asked, window, _WATCHED_AT_ONCE, SCAN)
            for segment, (seq, _) in found.places:
                if (event_id := slicing.of_another(connection, segment.number, seq, agent)) is not None:
                    return seq, event_id
            last = found.places[-1][1][0] if len(found.places) == _WATCHED_AT_ONCE else found.stopped_at
            after = upto if last is None else last
        return None

    def event(self, seq: int) -> Event | None:
        """The event at `seq`, or None where the slice does not select it."""
        page = self.selected(after=seq - 1, before=seq + 1, limit=1)
        return page[0] if page else None

    def shows(self, event: Event) -> bool:
        """Whether the slice selects an event."""
        return self.shown(event) is not None

    def shown(self, event: Event) -> Event | None:
        """The event as the slice shows it; None where it is not selected."""
        found = self.event(event.seq)
        # By its id: a fork has events of its own at the seqs behind which its parent went on without it.
        return found if found is not None and found.id == event.id else None

    def admitted(self, event: Event) -> Event | None:
        """An event as the slice may show it to who was led to it; None where a ceiling keeps it back.

        So are events shown that others name by a link that the view follows, and claims: whether or not they are
        selected.
        """
        with self._reader.database.read() as connection:
            rows = self._below(connection, _positions(connection, [event.id]))
        return next(iter(self._events(rows)), None)

    def jsonl(self, *, after: int = 0, before: int | None = None, inherited: bool = False) -> Iterator[bytes]:
        """The lines of what the slice selects, in order, in constant memory; of a fork as `Session.jsonl` says."""
        with self._reader.database.read() as connection:
            row = self._row(connection)
        place: int | None = after if inherited or row is None else max(after, row.base)
        while place is not None:
            page = self.selected(after=place, before=before)
            yield from (event.line for event in page)
            place = page.next

    def content(self, event: Event) -> Any:
        """See `Session.content`. Raises NotAuthorized for what the slice does not show."""
        shown = self._require(event)
        payload = shown.require_payload()
        found = next((key for key in ("body", "args", "result", "value") if key in payload), None)
        if found is None and shown.withheld:
            raise NotAuthorized(self.reader or self.label, f"the view {self.label} shows no content of it")
        if "truncated" in payload:
            return strictjson.load(self._reader.blob(shown, WHOLE_VALUE))
        return None if found is None else payload[found]

    def attachment(self, event: Event, index: int = 0) -> bytes:
        """See `Session.attachment`. Raises NotAuthorized for what the slice does not show."""
        shown = self._require(event)
        if shown.withheld and not shown.attachments:
            raise NotAuthorized(self.reader or self.label, f"the view {self.label} shows no attachments")
        if index < 0:
            raise UnknownReference("attachments", str(index))
        return self._reader.blob(shown, FIRST_ATTACHMENT + index)

    def explain(self, event: Event) -> Explanation:
        """Why the slice shows an event, or does not. Raises UnknownReference for an event of another session."""
        with self._reader.database.read() as connection:
            row = self._row(connection)
            segment = None if row is None else row.segment_of(event.seq)
            if row is None or segment is None or segment.name != event.session:
                raise UnknownReference("event", event.id)
            if event.seq > self._through.upto:
                later = f"it came later than seq {self._through.upto}"
                return Explanation(self.label, shown=False, because=(later,))
            withheld = tuple(key for key in event.content if not self._grants(key, event.content))
            asked = self._asked(connection, row)
            return explaining.explain(connection, asked, segment.number, event, withheld)

    def state(self, projection: str | Projection = "state") -> Any:
        """What a projection says of the events that the slice selects, and of no others: folded from the first on."""
        wanted = self._projection(projection) if isinstance(projection, str) else projection
        state = wanted.begin()
        place: int | None = 0
        while place is not None:
            page = self.selected(after=place)
            for event in page:
                if wanted.needs(event):
                    found = wanted.fold(state, event)
                    state = state if found is None else found
            place = page.next
        copied = strictjson.load(strictjson.dump(state))
        return copied if wanted.render is None else wanted.render(copied, Looking(self._reader, self))

    def __repr__(self) -> str:
        return f"<session {self.id} through {self.label}>"

    # What stands behind the calls above.

    def _page(
        self,
        walk: Any,
        after: int,
        before: int | None,
        limit: int,
        filters: Mapping[str, Any],
        scan: int,
        followed: Sequence[int],
    ) -> Page:
        """A page of what is selected, and of what it names by the links `followed`."""
        if limit < 0:
            raise ValueError("a number of events is 0 or more")
        if scan < 1:
            raise ValueError("a read looks at 1 event or more")
        wanted = reading.check_filters(filters)
        end = self._through.upto + 1 if before is None else min(before, self._through.upto + 1)
        if self._is_whole:
            return self._whole_page(walk, after, end, limit, wanted, scan)
        with self._reader.database.read() as connection:
            row = self._row(connection)
            if row is None:
                return Page()
            asked = self._compiled(connection, row, wanted)
            window = (max(min(after, LAST_SEQ), 0), min(end, LAST_SEQ))
            found: Sliced = walk(connection, row, asked, window, min(limit, LAST_SEQ), scan)
            places = found.places
            if followed and places:
                named = slicing.linked(connection, [pos for _, (_, pos) in places], followed, MOST_LINKED)
                below = slicing.below(connection, row, named, asked.ceiling, self._through.upto)
                places = sorted({*places, *below}, key=lambda place: place[1])
            rows = slicing.rows(connection, places)
        page = Page(self._events(rows))
        page.next = _next(
            walk is slicing.last, [seq for _, (seq, _) in found.places], limit, found.stopped_at
        )
        return page

    def _whole_page(
        self, walk: Any, after: int, end: int, limit: int, wanted: Mapping[str, str], scan: int
    ) -> Page:
        if walk is slicing.last:
            return self._reader.tail(self.id, limit, end, wanted, scan)
        page = self._reader.read(self.id, after, end, limit, wanted, scan)
        if page.next is not None and page.next >= self._through.upto:
            page.next = None
        return page

    def _events(self, rows: Iterable[tuple[str, list[reading.Row]]]) -> list[Event]:
        opened = (event for name, some in rows for event in self._reader.opener.events(name, some))
        return [self._limited(event) for event in opened]

    def _limited(self, event: Event) -> Event:
        payload = self.view.payload
        if _EVERY_KEY in payload:
            return event
        return event.showing([key for key in event.content if self._grants(key, event.content)])

    def _grants(self, key: str, content: Mapping[str, Any]) -> bool:
        """Whether a payload key is shown. What says that a value is a preview goes with the value."""
        payload = self.view.payload
        if key == "truncated":
            return any(main in content and self._grants(main, content) for main in _MAIN)
        return _EVERY_KEY in payload or key in payload

    def _row(self, connection: Connection) -> SessionRow | None:
        row = self._reader.row(connection, self.id)
        if row is not None and not self._is_for(row):
            raise UnknownReference("session", self.id)  # it came to be when the slice was there
        return row

    def _is_for(self, row: SessionRow) -> bool:
        return self.view.tenant in (None, row.tenant)

    def _require(self, event: Event) -> Event:
        shown = self.shown(event)
        if shown is None:
            raise NotAuthorized(self.reader or self.label, f"the view {self.label} does not show {event.id}")
        return shown

    def _asked(self, connection: Connection, row: SessionRow, tenures: Tenures | None = None) -> Asked:
        through, view = self._through, self.view
        reader = through.reader
        if reader is None or not view.asks_who_reads:
            return Asked(view, through.purpose, reader, frozenset(), frozenset(), frozenset())
        held = roles.roles_of(connection, row, reader) if through.role is None else [through.role]
        addressed = roles.addresses(reader, held)
        if not view.asks_for_tasks:
            return Asked(view, through.purpose, reader, addressed, frozenset(), frozenset())
        if tenures is None:
            tenures = through.tenures
            tenures.advance(connection, row, through.upto)
        own = tenures.of(reader)
        return Asked(view, through.purpose, reader, addressed, own, tenures.awaited(own))

    def _compiled(self, connection: Connection, row: SessionRow, filters: Mapping[str, str]) -> Compiled:
        asked = self._asked(connection, row)
        key = (
            asked.addressed,
            asked.own,
            asked.awaited,
            tuple(filters.items()),
            self._reader.names.newest(connection),
        )
        if self._known is None or self._known[0] != key:
            self._known = key, compiling.compiled(connection, self._reader.names, asked, filters)
        return self._known[1]

    def with_calls(self, page: Page) -> Page:
        """The page with the calls that its results answer, where they are below the ceilings."""
        there = {event.id for event in page}
        wanted = [event.call_id for event in page if event.call_id and event.call_id not in there]
        if not wanted:
            return page
        with self._reader.database.read() as connection:
            rows = self._below(connection, _positions(connection, wanted))
        return _merged(page, self._events(rows))

    def with_linked(self, page: Page) -> Page:
        """The page with what its events name by the links that the view follows, where it is below the ceilings."""
        if not (page and self._followed):
            return page
        with self._reader.database.read() as connection:
            here = _positions(connection, [event.id for event in page])
            rows = self._below(connection, slicing.linked(connection, here, self._followed, MOST_LINKED))
        return _merged(page, self._events(rows))

    def _below(self, connection: Connection, positions: list[int]) -> list[tuple[str, list[reading.Row]]]:
        """The rows of those of some events that the session has and no ceiling keeps back."""
        row = self._row(connection)
        if row is None:
            return []
        ceiling = compiling.ceiling(connection, self._reader.names, self.view, self.purpose)
        return slicing.rows(
            connection, slicing.below(connection, row, positions, ceiling, self._through.upto)
        )


def _check(through: Through, session_id: str) -> None:
    view, who = through.view, through.reader
    if who is None and view.asks_who_reads:
        raise InvalidEvent("/reader", f"the view {view.label} selects by who reads: name an agent")
    if view.sessions and session_id not in view.sessions:
        raise NotAuthorized(who or view.label, f"the view {view.label} is not for the session {session_id}")
    if view.purpose not in (None, ANY_PURPOSE, through.purpose):
        raise NotAuthorized(who or view.label, f"the view {view.label} is for the purpose {view.purpose}")
    if through.purpose == ANY_PURPOSE != view.purpose:
        raise NotAuthorized(who or view.label, f"the view {view.label} does not show what is for any purpose")


def _positions(connection: Connection, event_ids: Iterable[str]) -> list[int]:
    """The positions of events by id, of those that there are."""
    found = (value(connection, reading.SELECT_POS, (id_bytes(event_id),)) for event_id in event_ids)
    return [pos for pos in found if pos is not None]


def _merged(page: Page, more: Iterable[Event]) -> Page:
    by_seq = {event.seq: event for event in more} | {event.seq: event for event in page}
    whole = Page(by_seq[seq] for seq in sorted(by_seq))
    whole.next = page.next
    return whole


def _next(is_tail: bool, selected: Sequence[int], limit: int, stopped_at: int | None) -> int | None:
    """Where the page behind or in front of the seqs `selected` begins."""
    if is_tail:
        first = selected[0] if len(selected) == limit > 0 else 0
        return first if first > 1 else stopped_at
    return selected[-1] if len(selected) == limit > 0 else stopped_at
