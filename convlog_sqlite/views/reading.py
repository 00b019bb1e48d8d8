"""SlicedReader: a reader of whole sessions that gives what a view shows of them, to what writes lines out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from convlog_sqlite.errors import NotAuthorized, UnknownReference
from convlog_sqlite.events import Payload
from convlog_sqlite.store.committing import Writer
from convlog_sqlite.store.reader import LINES_AT_ONCE, Reader
from convlog_sqlite.views.slices import Slice


class SlicedReader(Reader):
    """Gives the lines of slices, and only the sessions that the view is for. `through` gives the slice of one."""

    def __init__(self, source: Reader, writer: Writer, through: Callable[[str], Slice]) -> None:
        super().__init__(source.database, writer, source.tenant)
        self._through = through

    def blocks(
        self, session: str, after: int = 0, before: int | None = None, *, own: bool = True
    ) -> Iterator[list[tuple[int, bytes, Payload]]]:
        """See `Reader.blocks`: full but for the last, of what the view selects."""
        row = self.find_session(session)
        if row is None:
            return
        found, place = self._through(session), max(after, row.base) if own else after
        while True:
            block: list[tuple[int, bytes, Payload]] = []
            go_on: int | None = place
            while go_on is not None and len(block) < LINES_AT_ONCE:
                page = found.selected(after=go_on, before=before, limit=LINES_AT_ONCE - len(block))
                block += [(event.seq, event.envelope_bytes, event.payload) for event in page]
                go_on = page.next
            if block:
                yield block
            if go_on is None:
                return
            place = go_on

    def session_ids(self) -> list[str]:
        """Those sessions that the view is for, by id."""
        return [session for session in super().session_ids() if self._is_for(session)]

    def changed_sessions(self, after_pos: int) -> list[str]:
        """See `Reader.changed_sessions`, of those that the view is for."""
        return [session for session in super().changed_sessions(after_pos) if self._is_for(session)]

    def _is_for(self, session: str) -> bool:
        try:
            self._through(session)
        except NotAuthorized:
            return False
        except UnknownReference as unknown:
            if unknown.field != "session":  # a view that nobody defined is refused
                raise
            return False
        return True
