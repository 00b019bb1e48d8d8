"""Participants: sessions bound to an agent. What a participant writes says what it had heard.

    worker = session.join("backend-dev", role="worker")
    for event in worker.listen(20):
        ...
    worker.message("Done.", task_id="jwt")

The append verbs are those of a session without `agent=`. Each event gets `seen`: the seq up to which the agent had
read the session, and through which view; the reading is written in the same transaction. Without a `parent_id`
it follows on the agent's own last event or the last one that it was shown, whichever came later; a result on
its call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Unpack

from convlog_sqlite.acting import DEFAULT_EFFECTS, Acting, Attempt
from convlog_sqlite.coordination import Recorded as Answer
from convlog_sqlite.coordination import identity
from convlog_sqlite.drafts import ABSENT, Absent, Draft, check_key, check_name
from convlog_sqlite.effects import CallKeys, Effect, Receipt, Reconciler, Recovery
from convlog_sqlite.errors import InvalidEvent, NotAuthorized, PromotionRefused, UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.listeners import Listener, Recording
from convlog_sqlite.remembering import Claim, PromotedKeys, ProposedKeys, Remembering
from convlog_sqlite.store.listening import Heard, Recorded
from convlog_sqlite.verbs import EventKeys, Verbs
from convlog_sqlite.vocabulary import EFFECT_LEASE, JOINED_KIND, LEFT_KIND, MAX_NAME, agent_key

if TYPE_CHECKING:
    from convlog_sqlite.views.slices import Slice

_DEFAULTS: Final = ("role", "sensitivity", "purposes", "subjects")


class Author(Protocol):
    """Who writes."""

    def append(self, draft: Draft) -> Event: ...
    def append_many(self, drafts: Iterable[Draft]) -> list[Event]: ...


class Conversation(Verbs[Event], Acting, Remembering, ABC):
    """What a participant needs of the session that it takes part in. `Session` is one."""

    @abstractmethod
    def bound(self, author: Author) -> Conversation: ...
    @abstractmethod
    def reply_to(self, request: Event | str, *, timeout: float | None = None) -> Event: ...
    @abstractmethod
    def approved(self, proposal: Event | str, *, timeout: float | None = None) -> Event: ...


class Appending(Recording, Protocol):
    """Where a participant's drafts go."""

    def append_drafts(
        self, session: str, tenant: str | None, drafts: Sequence[Draft], heard: Heard | Recorded | None = None
    ) -> list[Event]: ...


class OwnVerbs(ABC, Generic[Answer]):
    """The append verbs of one agent, as `Session` has them. They give what `append` gives."""

    agent: str
    _verbs: Verbs[Answer]

    def message(self, body: str | Absent = ABSENT, **keys: Unpack[EventKeys]) -> Answer:
        """See `Session.message`."""
        return self._verbs.message(body, agent=self.agent, **keys)

    def tool_call(self, tool: str, args: Any = ABSENT, **keys: Unpack[EventKeys]) -> Answer:
        """See `Session.tool_call`."""
        return self._verbs.tool_call(tool, args, agent=self.agent, **keys)

    def tool_result(
        self, call: Event | str, result: Any = ABSENT, *, status: str = "ok", **keys: Unpack[EventKeys]
    ) -> Answer:
        """See `Session.tool_result`."""
        return self._verbs.tool_result(call, result, agent=self.agent, status=status, **keys)

    def mutation(
        self,
        kind: str,
        value: Any = ABSENT,
        *,
        state_key: str | None = None,
        expect: Event | str | Sequence[str] | Absent | None = ABSENT,
        **keys: Unpack[EventKeys],
    ) -> Answer:
        """See `Session.mutation`."""
        return self._verbs.mutation(kind, value, agent=self.agent, state_key=state_key, expect=expect, **keys)

    def claim(self, task_id: str, *, lease: float | None = None) -> Answer:
        """See `Session.claim`."""
        return self._verbs.claim(task_id, agent=self.agent, lease=lease)

    def release(self, task_id: str) -> Answer:
        """See `Session.release`."""
        return self._verbs.release(task_id, agent=self.agent)

    def depends(self, task_id: str, on: str) -> Answer:
        """See `Session.depends`."""
        return self._verbs.depends(task_id, on, agent=self.agent)

    def grant_role(self, grantee: str, role: str) -> Answer:
        """See `Session.grant_role`."""
        return self._verbs.grant_role(grantee, role, agent=self.agent)

    def revoke_role(self, holder: str, role: str) -> Answer:
        """See `Session.revoke_role`."""
        return self._verbs.revoke_role(holder, role, agent=self.agent)

    def request(self, body: str, *, to: str, task_id: str | None = None) -> Answer:
        """See `Session.request`."""
        return self._verbs.request(body, agent=self.agent, to=to, task_id=task_id)

    def propose(self, body: str, *, approver: str, task_id: str | None = None) -> Answer:
        """See `Session.propose`."""
        return self._verbs.propose(body, agent=self.agent, approver=approver, task_id=task_id)

    def approve(self, proposal: Event | str, body: str = "approved") -> Answer:
        """See `Session.approve`."""
        return self._verbs.approve(proposal, body, agent=self.agent)

    def reject(self, proposal: Event | str, body: str = "rejected") -> Answer:
        """See `Session.reject`."""
        return self._verbs.reject(proposal, body, agent=self.agent)


class Part:
    """What a participant's drafts are given: its name, and what it said when it joined."""

    def __init__(self, agent: str, defaults: Mapping[str, Any]) -> None:
        check_name(agent, "/agent")
        if len(agent_key(agent)) > MAX_NAME:
            raise InvalidEvent(
                "/agent", f"of a participant, at most {MAX_NAME - len(agent_key(''))} characters"
            )
        self.agent = agent
        self._defaults = {key: item for key, item in defaults.items() if item}
        self.role: str | None = self._defaults.get("role")
        self.has_left = False
        for key in _DEFAULTS:
            if key in self._defaults:
                check_key(key, self._defaults[key])

    def complete(self, draft: Draft) -> Draft:
        """The draft with the defaults where it says nothing. Raises InvalidEvent, NotAuthorized."""
        if self.has_left:
            raise NotAuthorized(self.agent, "it has left the session; join it again")
        if not isinstance(draft, Draft):
            raise InvalidEvent("", "a Draft; Draft.from_dict makes one of a dict")
        if draft.agent != self.agent:
            raise InvalidEvent("/agent", f"a participant writes as itself: {self.agent}")
        missing = {key: item for key, item in self._defaults.items() if not getattr(draft, key)}
        return replace(draft, **missing) if missing else draft

    def joining(self, expect: Sequence[str]) -> Draft:
        """The mutation by which the agent joins, where `expect` is all that was said of its part."""
        return self._said(JOINED_KIND, expect or None)

    def leaving(self) -> Draft:
        """The mutation by which it leaves."""
        return self._said(LEFT_KIND, ABSENT)

    def _said(self, kind: str, expect: Sequence[str] | Absent | None) -> Draft:
        # Only the role: that an agent came or went is about nobody, and for any purpose.
        key, role = agent_key(self.agent), self.role
        return Draft(type="mutation", agent=self.agent, kind=kind, state_key=key, role=role, expect=expect)


class Saying(Verbs[Answer]):
    """The verbs that take an agent, over the `append` of one."""

    def __init__(self, append: Callable[[Draft], Answer]) -> None:
        self._append = append

    def append(self, draft: Draft) -> Answer:
        """Record one draft."""
        return self._append(draft)


class Participant(Listener, OwnVerbs[Event]):
    """An agent that takes part in a session: it listens, and what it writes says what it had heard.

    Made by `Session.join`. `agent` is its name, `role` and `purpose` what it takes part as and for, `view` the view
    with its version. `session` is the session as this agent writes in it. Safe to use from several threads.
    """

    def __init__(self, log: Appending, session: Conversation, part: Part, shown: Slice) -> None:
        """Use `Session.join`."""
        super().__init__(log, session.id, part.agent, shown, part.role)
        self.id, self.tenant = session.id, session.tenant
        self._appending, self._part = log, part
        self.session = session.bound(self)
        self._verbs = Saying(self.append)

    def append(self, draft: Draft) -> Event:
        """See `Session.append`. Raises InvalidEvent for the draft of another agent, StaleContext."""
        return self.append_many([draft])[0]

    def append_many(self, drafts: Iterable[Draft]) -> list[Event]:
        """See `Session.append_many`. Raises what `append` raises."""
        drafts = self.complete(drafts)
        return self._appended(drafts) if drafts else []

    def complete(self, drafts: Iterable[Draft]) -> list[Draft]:
        """Drafts of its own, with what it said when it joined where they say nothing. Raises InvalidEvent, NotAuthorized."""
        return [self._part.complete(draft) for draft in drafts]

    def _appended(self, drafts: Sequence[Draft], heard: Heard | None = None) -> list[Event]:
        heard = heard or self.hear()
        events = self._appending.append_drafts(self.id, self.tenant, drafts, heard)
        self.wrote(heard, events)
        return events

    def say_joined(self, standing: Sequence[str]) -> None:
        """Record that it takes part, where the mutations `standing` are all that was said of it. Raises StateConflict."""
        heard = self.hear()
        # Through which view it takes part; what it heard through another is of no account here.
        heard = replace(heard, view=self.view, seen=0, reading=None)
        self._appended([self._part.joining(standing)], heard)

    def leave(self) -> Event:
        """Take part no longer, and say so: the event that does. What it was shown is written down with it."""
        event = self._appended([self._part.leaving()])[0]
        self._part.has_left = True
        return event

    def once(
        self,
        tool: str,
        args: Any = ABSENT,
        *,
        idempotency_key: str,
        run: Callable[[str], Any],
        approver: str | None = None,
        lease: float = EFFECT_LEASE,
        **keys: Unpack[CallKeys],
    ) -> Receipt:
        """See `Session.once`."""
        how: Any = {"run": run, "approver": approver, "lease": lease, **keys}
        return self.session.once(self.agent, tool, args, idempotency_key=idempotency_key, **how)

    @contextmanager
    def effect(
        self,
        tool: str,
        args: Any = ABSENT,
        *,
        idempotency_key: str,
        approver: str | None = None,
        lease: float = EFFECT_LEASE,
        **keys: Unpack[CallKeys],
    ) -> Iterator[Attempt]:
        """See `Session.effect`."""
        how: Any = {"approver": approver, "lease": lease, **keys}
        with self.session.effect(self.agent, tool, args, idempotency_key=idempotency_key, **how) as attempt:
            yield attempt

    def settle(self, effect: Event | str, outcome: str, *, result: Any = ABSENT) -> Effect:
        """See `Session.settle`."""
        return self.session.settle(effect, outcome, agent=self.agent, result=result)

    def recover(self, reconcile: Reconciler | None = None, *, limit: int = DEFAULT_EFFECTS) -> Recovery:
        """See `Session.recover`."""
        return self.session.recover(self.agent, reconcile, limit=limit)

    def propose_memory(self, events: Sequence[Event | str], claim: Any, **how: Unpack[ProposedKeys]) -> Event:
        """See `Session.propose_memory`. Evidence is what this agent may read: the rest is unreadable to it."""
        hidden = [event_id for event_id in map(identity, events) if self._is_hidden(event_id)]
        if hidden:
            raise PromotionRefused([("evidence-unreadable", event_id) for event_id in hidden])
        return self.session.propose_memory(events, claim, by=self.agent, **how)

    def _is_hidden(self, event_id: str) -> bool:
        """Whether the view keeps back an event, or what it says; one that is not there is not hidden."""
        with suppress(UnknownReference):
            shown = self._slice.admitted(self._log.reader.event(event_id))
            return shown is None or (shown.withheld and shown.content.keys() <= {"withheld"})
        return False

    def promote(
        self,
        events: Sequence[Event | str] = (),
        claim: Any = ABSENT,
        *,
        approved_by: Event | str | None,
        **how: Unpack[PromotedKeys],
    ) -> Event:
        """See `Session.promote`."""
        return self.session.promote(events, claim, by=self.agent, approved_by=approved_by, **how)

    def retract(self, claim: Event | Claim | str) -> Event:
        """See `Session.retract`."""
        return self.session.retract(claim, by=self.agent)

    def ask(self, body: str, *, to: str, task_id: str | None = None, timeout: float | None = None) -> Event:
        """See `Session.ask`."""
        return self.reply_to(self.request(body, to=to, task_id=task_id), timeout=timeout)

    def reply_to(self, request: Event | str, *, timeout: float | None = None) -> Event:
        """See `Session.reply_to`. What it gives is not heard by that: `listen` is."""
        return self.session.reply_to(request, timeout=timeout)

    def approved(self, proposal: Event | str, *, timeout: float | None = None) -> Event:
        """See `Session.approved`."""
        return self.session.approved(proposal, timeout=timeout)
