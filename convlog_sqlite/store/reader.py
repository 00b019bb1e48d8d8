"""Reader: the read half of a store. Events and lines, page by page; it cannot write.

Whatever is derived from the log (mirror, verify, projections) gets a Reader and nothing more. One that is bound to
a tenant reads that tenant's sessions: to it the others, and those of no tenant, do not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, Database, fetch, value
from convlog_sqlite.errors import PayloadCorrupt, SessionRemoved, UnknownReference
from convlog_sqlite.events import Event, Live, Payload, canonical_line
from convlog_sqlite.instants import from_microseconds, id_bytes
from convlog_sqlite.store import blobs, calls, crossing, effects, points, reading
from convlog_sqlite.store.committing import Writer
from convlog_sqlite.store.crossing import Found
from convlog_sqlite.store.effects import Standing
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.reading import SCAN, Opener
from convlog_sqlite.store.sessions import (
    RemovedSession,
    SessionRow,
    removed,
    require_tenant,
    require_there,
)
from convlog_sqlite.vocabulary import LAST_SEQ

LINES_AT_ONCE: Final = 500  # rows fetched in one snapshot while a session is walked


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a budget left out: `events`, the seqs of the `first` and `last` of them, and how many of the others are cut.

    Between the two, a call may stand that is there with its result.
    """

    events: int
    first: int | None
    last: int | None
    cut: int

    def to_dict(self) -> dict[str, int]:
        """`{"events", "from", "to", "cut"}`, without `from` and `to` where only content was cut."""
        said = {"events": self.events, "from": self.first, "to": self.last, "cut": self.cut}
        return {key: number for key, number in said.items() if number is not None}

    @property
    def line(self) -> bytes:
        """`{"left_out": …}` as one line of JSON, with its newline."""
        return strictjson.dump({"left_out": self.to_dict()}) + b"\n"


class Page(list[Event]):
    """Events of one bounded read, ascending. `next` says where to go on, None at the end.

    From `read` it is the `after` of the next page; from `tail` the `before` of the page in front. `left_out` is what
    did not fit where a budget was given, None where everything did.
    """

    next: int | None = None
    left_out: LeftOut | None = None

    def lines(self, *, brief: bool = False) -> Iterator[bytes]:
        """The lines that `convlog tail` prints, each with its newline; what was left out is said in the first."""
        if self.left_out is not None:
            yield self.left_out.line
        yield from (event.brief_line if brief else event.line for event in self)


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session as a list shows it. `events` counts what the session holds.

    `first_ts` and `last_ts` are RFC 3339: when its first and last event happened, as their source says. A
    fork shares the events of the session `parent` up to seq `base`; they are not counted here, nor are
    their calls.
    """

    id: str
    tenant: str | None
    events: int
    first_ts: str | None
    last_ts: str | None
    open_calls: int
    parent: str | None = None
    base: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """An event that exists: its session, whether it is a call without a result, and whether it was removed."""

    session: str
    is_open: bool
    is_removed: bool


class Reader:
    """Reads one store. Safe to use from several threads; holds no snapshot between calls."""

    def __init__(self, database: Database, writer: Writer, tenant: str | None = None) -> None:
        self.database, self.tenant = database, tenant
        self.opener: Opener = writer.opener
        self.store_id, self.clock = writer.store_id, writer.clock
        self.names, self._sessions = writer.names, writer.sessions.of(tenant)

    def _find(self, connection: Connection, session: str) -> SessionRow | None:
        row = self._sessions.find(connection, session)
        if row is not None:
            self._sessions.remember(row)
        return row

    def require_session(self, session: str) -> SessionRow:
        """The session, removed or not. Raises UnknownReference where there is none."""
        with self.database.read() as connection:
            return self._sessions.require(connection, session)

    def row(self, connection: Connection, session: str) -> SessionRow | None:
        """The session as this transaction has it, or None while nothing was appended to it."""
        return self._find(connection, session)

    def find_session(self, session: str) -> SessionRow | None:
        """The session, or None while nothing was appended to it. Raises SessionRemoved."""
        with self.database.read() as connection:
            row = self._find(connection, session)
            if row is not None:
                require_there(connection, row.number)
            return row

    def head(self, session: str) -> int:
        """The seq of the last event, 0 while there is none."""
        with self.database.read() as connection:
            row = self._find(connection, session)
            return 0 if row is None else self.head_of(connection, row)

    def head_of(self, connection: Connection, row: SessionRow) -> int:
        """The seq of the last event of a session as this transaction has it. Raises SessionRemoved."""
        head: int | None = value(connection, reading.SELECT_HEAD, (row.number,))
        if head is None:
            require_there(connection, row.number)
        return row.base if head is None else head

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
        found = self._find_rows(crossing.first, session, (after, _end(before), limit), filters, scan)
        page = Page(self._events(found))
        page.next = found.rows[-1][0] if len(page) == limit > 0 else found.stopped_at
        return page

    def tail(
        self,
        session: str,
        count: int,
        before: int | None,
        filters: Mapping[str, Any],
        scan: int = SCAN,
    ) -> Page:
        """The last `count` events before `before`."""
        found = self._find_rows(crossing.last, session, (0, _end(before), count), filters, scan)
        page = Page(self._events(found))
        first = found.rows[0][0] if len(page) == count > 0 else 0
        page.next = first if first > 1 else found.stopped_at
        return page

    def _events(self, found: Found) -> list[Event]:
        if len(found.parts) == 1:
            return self.opener.events(*found.parts[0])
        return [event for session, rows in found.parts for event in self.opener.events(session, rows)]

    def _find_rows(
        self,
        select: Any,
        session: str,
        place: tuple[int, int, int],
        filters: Mapping[str, Any],
        scan: int,
        *,
        own: bool = False,
    ) -> Found:
        """The rows of one read; with `own`, without those that the session shares with what it was forked from."""
        if place[2] < 0:
            raise ValueError("a number of events is 0 or more")  # to SQLite a negative limit is none
        wanted = reading.check_filters(filters)
        if wanted and scan < 1:
            raise ValueError("a filtered read looks at 1 event or more")  # else it never gets further
        with self.database.read() as connection:
            row = self._find(connection, session)
            if row is None:
                return crossing.NOTHING
            where = reading.look_up(connection, self.names, wanted) if wanted else None
            if wanted and where is None:
                require_there(connection, row.number)
                return crossing.NOTHING
            after, before, limit = (min(number, LAST_SEQ) for number in place)
            found: Found = select(connection, row.alone() if own else row, after, before, limit, where, scan)
            if not found.rows:  # it may have been removed: asked only here, so that a read costs no more
                require_there(connection, row.number)
            return found

    def calls_of(self, session: str, page: Page) -> Page:
        """`page` with the calls that its results answer, so that no pair is parted."""
        there = {event.seq for event in page}
        results = [event.seq for event in page if event.type == "tool_result"]
        with self.database.read() as connection:
            row = self._sessions.require(connection, session)
            calls = {
                value(connection, reading.SELECT_ANSWERED, (row.segment_of(seq).number, seq))
                for seq in results
            }
            found = _at(connection, row, sorted(seq for seq in calls if seq is not None and seq not in there))
        whole = Page(sorted([*self._events(found), *page], key=lambda event: event.seq))
        whole.next = page.next
        return whole

    def open_calls(
        self, session: str, after: int, limit: int, upto: int = LAST_SEQ, scan: int = SCAN
    ) -> Page:
        """Calls that had no result when the last event was `upto`, ascending."""
        if limit < 0:
            raise ValueError("a number of events is 0 or more")
        if scan < 1:
            raise ValueError("a read looks at 1 event or more")
        with self.database.read() as connection:
            row = self._find(connection, session)
            if row is None:
                return Page()
            place = (max(min(after, LAST_SEQ), 0), upto, min(limit, LAST_SEQ))
            waiting, go_on = calls.waiting(connection, row, *place, scan)
            if not waiting:
                require_there(connection, row.number)
            found = _at(connection, row, waiting)
        page = Page(self._events(found))
        page.next = go_on
        return page

    def place(self, session: str, point: Point, *, earlier: bool = False) -> int:
        """The seq that a point stands for, 0 for an instant before the first event. See `store.points`."""
        with self.database.read() as connection:
            row = self._sessions.require(connection, session)
            return points.place(connection, row, point, self.tenant, earlier=earlier)

    def answered(self, session: str, seqs: Collection[int], upto: int) -> set[int]:
        """Those of the calls at `seqs` that had a result when the last event was `upto`."""
        with self.database.read() as connection:
            row = self._sessions.require(connection, session)
            return {seq for seq in seqs if calls.is_answered(connection, row, seq, upto)}

    def event(self, event_id: str) -> Event:
        """The event with this id. Raises UnknownReference, SessionRemoved."""
        return reading.event_by_id(self.database, self.opener, event_id, self.tenant)

    def lines(
        self, session: str, after: int = 0, before: int | None = None, *, own: bool = True
    ) -> Iterator[bytes]:
        """The canonical lines of a session, in order. Memory is constant, snapshots are short.

        Its own, unless `own` is False: then those too that it shares with what it was forked from.
        """
        for block in self.blocks(session, after, before, own=own):
            yield from (canonical_line(envelope, payload) for _, envelope, payload in block)

    def blocks(
        self, session: str, after: int = 0, before: int | None = None, *, own: bool = True
    ) -> Iterator[list[tuple[int, bytes, Payload]]]:
        """(seq, envelope, payload answer) of a session, some hundreds at a time. `own` is as in `lines`."""
        while True:
            place = (after, _end(before), LINES_AT_ONCE)
            found = self._find_rows(crossing.first, session, place, {}, 0, own=own)
            block = [
                (row[0], row[2], payload)
                for name, rows in found.parts
                for row, payload in zip(rows, self.opener.payloads(name, rows), strict=True)
            ]
            if not block:
                return
            yield block
            after = block[-1][0]

    def session_ids(self) -> list[str]:
        """Every session that is not removed, by id. Raises UnknownReference for a tenant that never had one."""
        self.require_tenant()
        with self.database.read() as connection:
            return list(self._sessions.names(connection).values())

    def require_tenant(self) -> None:
        """Raise UnknownReference where this reader is bound to a tenant that never had a session."""
        if self.tenant is not None:
            with self.database.read() as connection:
                require_tenant(connection, self.tenant)

    def summaries(self) -> list[SessionSummary]:
        """Every session that is not removed with its extent, by id. Raises what `session_ids` raises."""
        self.require_tenant()
        with self.database.read() as connection:
            found = []
            for row in self._sessions.all(connection):
                head = value(connection, reading.SELECT_HEAD, (row.number,)) or row.base
                first = value(connection, reading.SELECT_FIRST, (row.number, row.base))
                last = value(connection, reading.SELECT_LAST, (row.number, head))
                waiting = value(connection, reading.COUNT_OPEN, (row.number,))
                extent = (_instant(first), _instant(last))
                fork = (row.inherited[0].name, row.base) if row.inherited else (None, None)
                found.append(SessionSummary(row.name, row.tenant, head - row.base, *extent, waiting, *fork))
            return found

    def removed_sessions(self) -> list[RemovedSession]:
        """The sessions that retention removed, by id."""
        with self.database.read() as connection:
            found = removed(connection)
            return [one for one in found if self._sessions.find(connection, one.id) is not None]

    def is_removed(self, session: str) -> bool:
        """Whether retention removed a session."""
        try:
            self.find_session(session)
        except SessionRemoved:
            return True
        return False

    def store_head(self) -> tuple[int, bytes]:
        """(pos, store chain) of the newest event; (0, empty) in an empty store."""
        with self.database.read() as connection:
            rows = fetch(connection, reading.SELECT_STORE_HEAD)
        return rows[0] if rows else (0, b"")

    def changed_sessions(self, after_pos: int) -> list[str]:
        """The sessions that got events after `after_pos` and are not removed, by id."""
        with self.database.read() as connection:
            numbers = {number for (number,) in fetch(connection, reading.SELECT_CHANGED, (after_pos,))}
            names = self._sessions.names(connection)
            return [name for number, name in names.items() if number in numbers]

    def blob(self, event: Event, part: int) -> bytes:
        """The content of one blob of an event. Raises UnknownReference, PayloadUnreadable."""
        event.require_payload()
        if self.tenant is not None and not self.known([event.id]):  # an event can be made by hand
            raise UnknownReference("id", event.id)
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

    def effects(self, session: str, state: str, after: int, limit: int) -> list[Standing]:
        """Effects in a state, by position, behind position `after`."""
        with self.database.read() as connection:
            row = self._find(connection, session)
            return [] if row is None else effects.page(connection, row.number, state, after, limit)

    def newest_effects(self, session: str, state: str, limit: int) -> list[Standing]:
        """The effects in a state that were proposed last, by position."""
        with self.database.read() as connection:
            row = self._find(connection, session)
            return [] if row is None else effects.newest(connection, row.number, state, limit)

    def effect(self, session: str, effect_id: str) -> Standing:
        """One effect of a session. Raises UnknownReference."""
        with self.database.read() as connection:
            return effects.one(connection, self._sessions.require(connection, session).number, effect_id)

    def known(self, event_ids: Collection[str]) -> dict[str, Known]:
        """Where those of `event_ids` are that exist."""
        found = {}
        with self.database.read() as connection:
            for event_id in event_ids:
                for session, *said in fetch(connection, reading.SELECT_KNOWN, (id_bytes(event_id),)):
                    if self.tenant is None or self._sessions.find(connection, session) is not None:
                        found[event_id] = Known(session, *map(bool, said))
        return found


def _at(connection: Connection, session: SessionRow, seqs: Iterable[int]) -> Found:
    """The rows at `seqs`, ascending; none where a changed index points to nothing."""
    parts: list[tuple[str, list[reading.Row]]] = []
    for seq in seqs:
        part = session.segment_of(seq)
        if not parts or parts[-1][0] != part.name:
            parts.append((part.name, []))
        parts[-1][1].extend(fetch(connection, reading.READ_PLAIN, (part.number, seq - 1, seq + 1, 1)))
    return Found(parts, None)


def _end(before: int | None) -> int:
    return LAST_SEQ if before is None else min(before, LAST_SEQ)


def _instant(microseconds: int | None) -> str | None:
    try:
        return None if microseconds is None else from_microseconds(microseconds)
    except OverflowError:  # a changed row may say anything
        return None
