"""What a rendering of a state may look up where the state is that of a slice: what the slice shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from convlog_sqlite.events import Event
from convlog_sqlite.projections.projection import Look
from convlog_sqlite.store import folding
from convlog_sqlite.store.reader import Reader


class Showing(Protocol):
    """A slice."""

    def event(self, seq: int) -> Event | None: ...
    def shown(self, event: Event) -> Event | None: ...


class Looking(Look):
    """What a rendering may look up in a slice: what the slice shows."""

    def __init__(self, reader: Reader, slice_: Showing) -> None:
        super().__init__(reader, None)
        self._slice = slice_

    def events(self, seqs: Iterable[int]) -> dict[int, Event]:
        """Events by seq, as the slice shows them."""
        found = ((seq, self._slice.event(seq)) for seq in dict.fromkeys(seqs))
        return {seq: event for seq, event in found if event is not None}

    def named(self, event_ids: Iterable[str]) -> dict[str, Event]:
        """Events by id, as the slice shows them."""
        with self._reader.database.read() as connection:
            rows = folding.by_ids(connection, dict.fromkeys(event_ids))
        named = [event for session, row in rows for event in self._reader.opener.events(session, [row])]
        found = [self._slice.shown(event) for event in named]
        return {event.id: event for event in found if event is not None}

    def shown(self, event: Event) -> dict[str, Any]:
        """The value of a mutation as keys of a rendering, or that the view withholds it."""
        if event.withheld and "value" not in event.content:
            return {"withheld": True}
        return super().shown(event)
