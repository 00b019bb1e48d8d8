"""Moment: a session as it was once, to be read and not to be written.

Made by `Session.at`. It holds no snapshot: the log is append-only, so what it held up to an event is read
from the log itself. Content is as it is now: what was erased since is erased at every moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from convlog_sqlite.budget import within
from convlog_sqlite.errors import UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.projections.projection import Projection
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.reader import Page, Reader
from convlog_sqlite.store.reading import SCAN

if TYPE_CHECKING:
    from convlog_sqlite.views.definition import View
    from convlog_sqlite.views.slices import Slice

DEFAULT_LIMIT: Final = 1000


class Answering(Protocol):
    """Who computes the state of a session at a seq, and shows it through a view."""

    def state_of(self, session: str, wanted: str | Projection, at: int | None, *, rebuild: bool) -> Any: ...
    def through(
        self,
        session: str,
        view: View | str | None,
        *,
        reader: str | None,
        role: str | None,
        purpose: str | None,
        upto: int,
    ) -> Slice: ...


class Moment:
    """A session when `seq` was its last event. Every read answers as of then; what came later is not there."""

    def __init__(self, reader: Reader, session_id: str, seq: int, log: Answering) -> None:
        """Use `Session.at`."""
        self._reader, self.id, self.seq, self._log = reader, session_id, seq, log

    @classmethod
    def of(cls, reader: Reader, session_id: str, point: Point, log: Answering) -> Moment:
        """The session at a point. Raises UnknownReference and InvalidEvent, see `Session.at`."""
        seq = reader.place(session_id, point)
        if seq == 0:
            raise UnknownReference("at", str(point))
        return cls(reader, session_id, seq, log)

    @property
    def head(self) -> int:
        """The seq of the last event then."""
        return self.seq

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
        """See `Session.tail`. A call may be open that has a result by now."""
        page = self._reader.tail(self.id, n, self._end(before), filters, max_scan)
        return within(self._reader, self.id, page, pairs, max_chars, brief)

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
        page = self._reader.read(self.id, after, self._end(before), limit, filters, max_scan)
        if page.next is not None and page.next >= self.seq:
            page.next = None
        return page

    def jsonl(self, *, after: int = 0, before: int | None = None, inherited: bool = False) -> Iterator[bytes]:
        """See `Session.jsonl`."""
        return self._reader.lines(self.id, after, self._end(before), own=not inherited)

    def event(self, seq: int) -> Event | None:
        """The event at `seq`, or None where there was none then."""
        if not 1 <= seq <= self.seq:
            return None
        page = self._reader.read(self.id, seq - 1, seq + 1, 1, {})
        return page[0] if page else None

    def open_calls(self, *, after: int = 0, limit: int = DEFAULT_LIMIT, max_scan: int = SCAN) -> Page:
        """Tool calls that had no result then, ascending.

        Looks at `max_scan` events at most, and says in `Page.next` where to go on.
        """
        return self._reader.open_calls(self.id, after, limit, self.seq, max_scan)

    def state(self, projection: str | Projection = "state", *, rebuild: bool = False) -> Any:
        """See `Session.state`."""
        return self._log.state_of(self.id, projection, self.seq, rebuild=rebuild)

    def through(
        self,
        view: View | str | None = None,
        *,
        reader: str | None = None,
        role: str | None = None,
        purpose: str | None = None,
    ) -> Slice:
        """See `Session.through`. Roles and labels count as of now, tasks as of then."""
        return self._log.through(self.id, view, reader=reader, role=role, purpose=purpose, upto=self.seq)

    def _end(self, before: int | None) -> int:
        return self.seq + 1 if before is None else min(before, self.seq + 1)

    def __repr__(self) -> str:
        return f"<session {self.id} at {self.seq}>"
