"""Why: which message authorised this action, which evidence changed this plan, what it caused.

The edges are those that envelopes draw (`parent_id`, `call_id`, links); they outlive the content.
"""

from __future__ import annotations

from convlog_sqlite.store import tracing
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.tracing import Trace

DEFAULT_TRACE: int = 1000  # events


class Tracing:
    """The part of a log that answers why. `ConversationLog` is one."""

    reader: Reader

    def why(self, event_id: str, *, forward: bool = False, limit: int = DEFAULT_TRACE) -> Trace:
        """What led to an event, back to the roots; `forward`: what came of it. Nearest first, at most `limit` events.

        Of what another tenant's sessions hold, a log that is bound to one shows nothing but that it is named: see
        `Trace.unknown`. The first 8 or more digits of an id will do where they are unique. Raises UnknownReference.
        """
        if limit < 1:
            raise ValueError("a trace holds 1 event or more")
        reader = self.reader
        walk = tracing.outcomes if forward else tracing.reasons
        return walk(reader.database, reader.opener, reader.event(event_id).id, limit, reader.tenant)
