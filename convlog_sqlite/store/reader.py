"""Reader: the read half of a store. Events and lines, page by page; it cannot write.

Whatever is derived from the log (mirror, verify, projections) gets a Reader and nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite.database import Connection, Database, fetch, value
from convlog_sqlite.errors import PayloadCorrupt, UnknownReference
from convlog_sqlite.events import Event, Live, Payload, canonical_line
from convlog_sqlite.instants import from_microseconds, id_bytes
from convlog_sqlite.store import blobs, reading
from convlog_sqlite.store.committing import Writer
from convlog_sqlite.store.reading import SCAN, Opener, Rows
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.vocabulary import LAST_SEQ

LINES_AT_ONCE: Final = 500  # rows fetched in one snapshot while a session is walked


class Page(list[Event]):
    """Events of one bounded read, ascending. `next` says where to go on, None at the end.

    From `read` it is the `after` of the next page; from `tail` the `before` of the page in front.
    """

    next: int | None = None


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session as a list shows it. `events` counts what the session holds.

    `first_ts` and `last_ts` are RFC 3339: when its first and last event happened, as their source says.
    """

    id: str
    tenant: str | None
    events: int
    first_ts: str | None
    last_ts: str | None
    open_calls: int


@dataclass(frozen=True, slots=True)
class Known:
    """An event that exists: its session, and whether it is a call without a result."""

    session: str
    is_open: bool


class Reader:
    """Reads one store. Safe to use from several threads; holds no snapshot between calls."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self.database = database
        self.opener: Opener = writer.opener
        self.store_id = writer.store_id
        self._names, self._sessions = writer.names, writer.sessions

    def _find(self, connection: Connection, session: str) -> SessionRow | None:
        row = self._sessions.find(connection, session)
        if row is not None:
            self._sessions.remember(row)
        return row

    def row(self, connection: Connection, session: str) -> SessionRow | None:
        """The session as this transaction has it, or None while nothing was appended to it."""
        return self._find(connection, session)

    def find_session(self, session: str) -> SessionRow | None:
        """The session, or None while nothing was appended to it."""
        with self.database.read() as connection:
            return self._find(connection, session)

    def head(self, session: str) -> int:
        """The seq of the last event, 0 while there is none."""
        with self.database.read() as connection:
            row = self._find(connection, session)
            return 0 if row is None else value(connection, reading.SELECT_HEAD, (row.number,)) or row.base

    def read(
        self,
        session: str,
        after: int,
        before: int | None,
        limit: int,
        filters: Mapping[str, Any],
        scan: int = SCAN,
    ) -> Page:
        """The first `limit` events after `after`."""
        rows = self._rows(reading.select, session, (after, _end(before), limit), filters, scan)
        page = Page(self.opener.events(session, rows.rows))
        page.next = rows.rows[-1][0] if len(rows.rows) == limit > 0 else rows.stopped_at
        return page

    def tail(
        self, session: str, count: int, before: int | None, filters: Mapping[str, Any], scan: int = SCAN
    ) -> Page:
        """The last `count` events before `before`."""
        rows = self._rows(reading.select_last, session, (0, _end(before), count), filters, scan)
        page = Page(self.opener.events(session, rows.rows))
        full = len(rows.rows) == count > 0
        page.next = rows.rows[0][0] if full and rows.rows[0][0] > 1 else rows.stopped_at
        return page

    def _rows(
        self, select: Any, session: str, place: tuple[int, int, int], filters: Mapping[str, Any], scan: int
    ) -> Rows:
        if place[2] < 0:
            raise ValueError("a number of events is 0 or more")  # to SQLite a negative limit is none
        wanted = reading.check_filters(filters)
        if wanted and scan < 1:
            raise ValueError("a filtered read looks at 1 event or more")  # else it never gets further
        with self.database.read() as connection:
            row = self._find(connection, session)
            if row is None:
                return Rows([], None)
            where = reading.look_up(connection, self._names, wanted) if wanted else None
            if wanted and where is None:
                return Rows([], None)
            after, before, limit = (min(number, LAST_SEQ) for number in place)
            rows: Rows = select(connection, row, max(after, row.base), before, limit, where, scan)
            return rows

    def calls_of(self, session: str, page: Page) -> Page:
        """`page` with the calls that its results answer, so that no pair is parted."""
        there = {event.seq for event in page}
        results = [event.seq for event in page if event.type == "tool_result"]
        with self.database.read() as connection:
            row = self._sessions.require(connection, session)
            calls = {value(connection, reading.SELECT_ANSWERED, (row.number, seq)) for seq in results}
            wanted = sorted(seq for seq in calls if seq is not None and seq not in there)
            rows = [found for seq in wanted for found in _at(connection, row.number, seq)]
        whole = Page(sorted([*self.opener.events(session, rows), *page], key=lambda event: event.seq))
        whole.next = page.next
        return whole

    def open_calls(self, session: str, after: int, limit: int) -> Page:
        """Calls that have no result yet, ascending."""
        if limit < 0:
            raise ValueError("a number of events is 0 or more")
        with self.database.read() as connection:
            row = self._find(connection, session)
            if row is None:
                return Page()
            place = (row.number, min(after, LAST_SEQ), min(limit, LAST_SEQ))
            open_now = fetch(connection, reading.SELECT_OPEN, place)
            rows = [found for (seq,) in open_now for found in _at(connection, row.number, seq)]
        page = Page(self.opener.events(session, rows))
        page.next = open_now[-1][0] if len(open_now) == limit > 0 else None
        return page

    def event(self, event_id: str) -> Event:
        """The event with this id. Raises UnknownReference."""
        return reading.event_by_id(self.database, self.opener, event_id)

    def lines(self, session: str, after: int = 0, before: int | None = None) -> Iterator[bytes]:
        """The canonical lines of a session, in order. Memory is constant, snapshots are short."""
        for block in self.blocks(session, after, before):
            yield from (canonical_line(envelope, payload) for _, envelope, payload in block)

    def blocks(
        self, session: str, after: int = 0, before: int | None = None
    ) -> Iterator[list[tuple[int, bytes, Payload]]]:
        """(seq, envelope, payload answer) of a session, some hundreds at a time."""
        while True:
            rows = self._rows(reading.select, session, (after, _end(before), LINES_AT_ONCE), {}, 0).rows
            if not rows:
                return
            payloads = self.opener.payloads(session, rows)
            yield [(row[0], row[2], payload) for row, payload in zip(rows, payloads, strict=True)]
            after = rows[-1][0]

    def session_ids(self) -> list[str]:
        """Every session, by id."""
        with self.database.read() as connection:
            return [row.name for row in self._sessions.all(connection)]

    def summaries(self) -> list[SessionSummary]:
        """Every session with its extent, by id."""
        with self.database.read() as connection:
            found = []
            for row in self._sessions.all(connection):
                head = value(connection, reading.SELECT_HEAD, (row.number,)) or row.base
                first = value(connection, reading.SELECT_FIRST, (row.number, row.base))
                last = value(connection, reading.SELECT_LAST, (row.number, head))
                waiting = value(connection, reading.COUNT_OPEN, (row.number,))
                extent = (_instant(first), _instant(last))
                found.append(SessionSummary(row.name, row.tenant, head - row.base, *extent, waiting))
            return found

    def store_head(self) -> tuple[int, bytes]:
        """(pos, store chain) of the newest event; (0, empty) in an empty store."""
        with self.database.read() as connection:
            rows = fetch(connection, reading.SELECT_STORE_HEAD)
        return rows[0] if rows else (0, b"")

    def changed_sessions(self, after_pos: int) -> list[str]:
        """The sessions that got events after `after_pos`, by id."""
        with self.database.read() as connection:
            numbers = {number for (number,) in fetch(connection, reading.SELECT_CHANGED, (after_pos,))}
            return [row.name for row in self._sessions.all(connection) if row.number in numbers]

    def blob(self, event: Event, part: int) -> bytes:
        """The content of one blob of an event. Raises UnknownReference, PayloadUnreadable."""
        event.require_payload()
        with self.database.read() as connection:
            pos = value(connection, reading.SELECT_POS, (id_bytes(event.id),))
            row = next((row for row in blobs.rows_of(connection, pos) if row.part == part), None)
            chunks = [] if row is None else blobs.sealed_chunks(connection, row)
        if row is None:
            self.event(event.id).require_payload()  # the caller's event may be older than its erasure
            raise UnknownReference("attachments", f"part {part} of {event.id}")
        place = (self.store_id, id_bytes(event.id), event.session, event.seq)
        answer = blobs.unseal(self.opener.keystore, row, chunks, place)
        if not isinstance(answer, Live):
            Event(event.envelope_bytes, answer).require_payload()
            raise PayloadCorrupt(event.id)
        return answer.data

    def known(self, event_ids: Collection[str]) -> dict[str, Known]:
        """Where those of `event_ids` are that exist."""
        found = {}
        with self.database.read() as connection:
            for event_id in event_ids:
                for session, is_open in fetch(connection, reading.SELECT_KNOWN, (id_bytes(event_id),)):
                    found[event_id] = Known(session, bool(is_open))
        return found


def _at(connection: Connection, session: int, seq: int) -> list[reading.Row]:
    """The row at `seq`; none where a changed index points to nothing."""
    return fetch(connection, reading.READ_PLAIN, (session, seq - 1, seq + 1, 1))


def _end(before: int | None) -> int:
    return LAST_SEQ if before is None else min(before, LAST_SEQ)


def _instant(microseconds: int | None) -> str | None:
    try:
        return None if microseconds is None else from_microseconds(microseconds)
    except OverflowError:  # a changed row may say anything
        return None
