"""Why: which message authorised this action, which evidence changed this plan, what it caused.

The edges are those that envelopes draw (`parent_id`, `call_id`, links); they outlive the content.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from convlog_sqlite.errors import NotAuthorized, UnknownReference
from convlog_sqlite.store import tracing
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.tracing import Trace
from convlog_sqlite.vocabulary import LAST_SEQ

if TYPE_CHECKING:
    from convlog_sqlite.views.definition import View
    from convlog_sqlite.views.slices import Slice

DEFAULT_TRACE: int = 1000  # events


class Tracing(ABC):
    """The part of a log that answers why. `ConversationLog` is one."""

    reader: Reader

    @abstractmethod
    def through(
        self,
        session: str,
        view: View | str | None,
        *,
        reader: str | None,
        role: str | None,
        purpose: str | None,
        upto: int = LAST_SEQ,
    ) -> Slice: ...

    def why(
        self,
        event_id: str,
        *,
        forward: bool = False,
        limit: int = DEFAULT_TRACE,
        view: str | None = None,
        reader: str | None = None,
        purpose: str | None = None,
    ) -> Trace:
        """What led to an event, back to the roots; `forward`: what came of it. Nearest first, at most `limit` events.

        The first 8 or more digits of an id will do where they are unique. With `view` or `reader`, only what that
        view shows in the session of each event; what it does not show is only named, in `unknown`. Raises
        UnknownReference, and NotAuthorized where the event itself is not shown.
        """
        if limit < 1:
            raise ValueError("a trace holds 1 event or more")
        source = self.reader
        walk = tracing.outcomes if forward else tracing.reasons
        found = walk(source.database, source.opener, source.event(event_id).id, limit, source.tenant)
        if view is None and reader is None:
            return found
        slices: dict[str, Slice | None] = {}
        for event in found.events:
            if event.session not in slices:
                slices[event.session] = self._slice(event.session, view, reader, purpose)
        shown = [
            None if (one := slices[event.session]) is None else one.shown(event) for event in found.events
        ]
        if shown[0] is None:
            who = reader or str(view)
            raise NotAuthorized(who, f"what it reads through does not show {found.events[0].id}")
        return tracing.limited(found, shown)

    def _slice(self, session: str, view: str | None, reader: str | None, purpose: str | None) -> Slice | None:
        """A session through the view; None where the view is not for it."""
        try:
            return self.through(session, view, reader=reader, role=None, purpose=purpose)
        except NotAuthorized:
            return None
        except UnknownReference as unknown:
            if unknown.field != "session":  # a view that nobody defined is refused
                raise
            return None
