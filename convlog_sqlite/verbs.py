"""The append verbs: message, tool call, result and mutation, each one draft over one `append`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from convlog_sqlite.coordination import Coordinating, Recorded, identity
from convlog_sqlite.drafts import ABSENT, Absent, Attachment, Draft
from convlog_sqlite.events import Event


class EventKeys(TypedDict, total=False):
    """The keys that every append verb takes besides its own."""

    role: str
    to: Sequence[str]
    performative: str
    thread_id: str
    task_id: str
    parent_id: str
    links: Mapping[str, Sequence[str]]
    correlation_id: str
    traceparent: str
    content_type: str
    model: str
    sensitivity: str
    purposes: Sequence[str]
    subjects: Sequence[str]
    source: Mapping[str, str]
    attachments: Sequence[Attachment]
    usage: Mapping[str, Any]
    meta: Mapping[str, Any]
    idempotency_key: str
    effect: Mapping[str, str]
    lease: float


class Filters(TypedDict, total=False):
    """What a read can be narrowed to. All given ones must hold. None is as good as not given.

    `agent`, `task_id`, `thread_id` and `to` (a recipient) have an index; a read with others looks at a
    bounded number of events and says in `Page.next` where to go on.
    """

    agent: str | None
    type: str | None
    task_id: str | None
    thread_id: str | None
    tool: str | None
    kind: str | None
    to: str | None
    performative: str | None
    correlation_id: str | None


class Verbs(Coordinating[Recorded]):
    """The append verbs, over one `append`. They give what it gives: an Event, or an awaitable of one."""

    def message(self, body: str | Absent = ABSENT, *, agent: str, **keys: Unpack[EventKeys]) -> Recorded:
        """Record what an agent said."""
        return self.append(Draft(type="message", agent=agent, body=body, **keys))

    def tool_call(self, tool: str, args: Any = ABSENT, *, agent: str, **keys: Unpack[EventKeys]) -> Recorded:
        """Record that an agent calls a tool, before the tool runs."""
        return self.append(Draft(type="tool_call", agent=agent, tool=tool, args=args, **keys))

    def tool_result(
        self,
        call: Event | str,
        result: Any = ABSENT,
        *,
        agent: str,
        status: str = "ok",
        **keys: Unpack[EventKeys],
    ) -> Recorded:
        """Record what a tool gave. `call` is the tool_call or its id; tool, task and thread come from it.

        Raises UnknownReference, and PairingError when the call has a result already.
        """
        call_id = identity(call)
        draft = Draft(type="tool_result", agent=agent, call_id=call_id, result=result, status=status, **keys)
        return self.append(draft)

    def mutation(
        self,
        kind: str,
        value: Any = ABSENT,
        *,
        agent: str,
        state_key: str | None = None,
        expect: Event | str | Sequence[str] | Absent | None = ABSENT,
        **keys: Unpack[EventKeys],
    ) -> Recorded:
        """Record a change of state. `kind` is kebab-case.

        With `expect`, it is recorded only if what stands for its state key is that mutation (or those, where
        agents disagreed; None: nothing), and replaces it. Raises StateConflict, which names what stands.
        """
        return self.append(
            Draft(
                type="mutation",
                agent=agent,
                kind=kind,
                value=value,
                state_key=state_key,
                expect=expect.id if isinstance(expect, Event) else expect,
                **keys,
            )
        )
