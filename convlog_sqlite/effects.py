"""Effects: a tool that acts on the outside world, called once for each key, and what a crash left of it.

An attempt is in the log before the tool is called, and its result when it returned. Whoever comes back finds
one of four: nothing tried, a result, an attempt that another worker holds, or one that may have happened. The
last is never tried again; `recover` lists it, and `settle` says what somebody found out.

What no log can rule out: a worker that is stopped between the last look at its claim and the call, and goes on
when somebody has settled its attempt as `not_happened`. A tool that honours the key does nothing then; one
that ignores it does it twice, and the worker's result is refused with EffectTransitionError. Settle what you
have looked at outside, and give leases longer than the tool may take. Workers have names of their own:
under one name, each takes the other's attempt for its own, left by a crash.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypedDict, Unpack

from convlog_sqlite.coordination import identity
from convlog_sqlite.drafts import ABSENT, Absent, Attachment, Draft, check_name
from convlog_sqlite.errors import (
    EffectClaimed,
    EffectCommitted,
    EffectLapsed,
    EffectTransitionError,
    EventTooLarge,
    InvalidEvent,
    NotPerformed,
    PairingError,
    PayloadUnreadable,
    Refused,
)
from convlog_sqlite.events import Event
from convlog_sqlite.instants import from_microseconds
from convlog_sqlite.store.effects import Standing
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.vocabulary import EFFECT_LEASE, EFFECT_OUTCOMES, EFFECT_STATES, ROLE_ADDRESS

DEFAULT_EFFECTS: Final = 1000
_SHOWN_OF_AN_ERROR: Final = 4096  # characters
_COMMITTED: Final = "committed"


class CallKeys(TypedDict, total=False):
    """What the tool_call that proposes an effect may say besides."""

    role: str
    to: Sequence[str]
    performative: str
    thread_id: str
    task_id: str
    parent_id: str
    links: Mapping[str, Sequence[str]]
    correlation_id: str
    traceparent: str
    model: str
    sensitivity: str
    purposes: Sequence[str]
    subjects: Sequence[str]
    attachments: Sequence[Attachment]
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect as it stands. `proposed` is the event that proposed it, `last` the one that moved it last.

    `state` is proposed, attempted, committed or compensated. `worker` is who attempted it; `until` (RFC 3339)
    is when its claim runs out or ran out, and `is_held` whether it held when this was read.
    """

    id: str
    state: str
    worker: str | None
    until: str | None
    is_held: bool
    proposed: Event
    last: Event

    @property
    def outcome(self) -> str | None:
        """Of a compensated effect: withdrawn, undone or not_happened."""
        return (self.last.effect or {}).get("outcome")

    @property
    def fence(self) -> int | None:
        """Of an attempted effect: the fencing number, which is the seq of its attempt."""
        return self.last.seq if self.state == "attempted" else None

    def to_dict(self) -> dict[str, Any]:
        """The effect as JSON values, without content."""
        said = {
            "id": self.id,
            "session": self.proposed.session,
            "state": self.state,
            "outcome": self.outcome,
            "tool": self.proposed.tool,
            "agent": self.proposed.agent,
            "worker": self.worker,
            "fence": self.fence,
            "until": self.until,
            "is_held": self.is_held,
            "last": self.last.id,
            "at": self.last.ts,
        }
        return {key: item for key, item in said.items() if item is not None}


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an effect gave. `event` commits it; `is_replay` says that it took place before, and was not repeated.

    `result` is None where the content of `event` cannot be read any more: see `event.answer`.
    """

    effect: str
    event: Event
    result: Any
    is_replay: bool


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of an effect: `outcome` is committed, undone, not_happened or withdrawn.

    `result` is what the tool gave, where that was found out.
    """

    outcome: str
    result: Any = ABSENT


Reconciler = Callable[[Effect], Settlement | str | None]
"""Looks outside what became of an effect in doubt; None when it cannot tell."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The effects of a session as a worker finds them that starts again; each list in the order of proposal.

    `never_tried` may be attempted. `in_doubt` were attempted, and nothing says whether they took place. `held`
    are being attempted by others right now. `done` are those proposed last, of the committed and the
    compensated. `settled` are those that the reconciler settled just now. `is_whole` is False when there are
    more than the limit in doubt, held or never tried.
    """

    in_doubt: list[Effect] = field(default_factory=list)
    never_tried: list[Effect] = field(default_factory=list)
    held: list[Effect] = field(default_factory=list)
    done: list[Effect] = field(default_factory=list)
    settled: list[Effect] = field(default_factory=list)
    is_whole: bool = True


class Effects(ABC):
    """The part of a session that makes things happen once. `Session` is one."""

    id: str
    tenant: str | None
    _reader: Reader

    @abstractmethod
    def append(self, draft: Draft) -> Event: ...
    @abstractmethod
    def append_many(self, drafts: Sequence[Draft]) -> list[Event]: ...
    @abstractmethod
    def content(self, event: Event) -> Any: ...
    @abstractmethod
    def _other(self, session_id: str) -> Self: ...

    def once(
        self,
        agent: str,
        tool: str,
        args: Any = ABSENT,
        *,
        idempotency_key: str,
        run: Callable[[str], Any],
        approver: str | None = None,
        lease: float = EFFECT_LEASE,
        **keys: Unpack[CallKeys],
    ) -> Receipt:
        """Make an effect happen once: what is recorded for its key, or else what `run` gives, recorded.

        `run` is called with the key, to be handed to the tool, while this worker holds the effect for `lease`
        seconds. It gives a JSON value. When it raises NotPerformed the key is free again; when it raises
        anything else the effect stays in doubt, and the exception comes through. The key counts in every
        session (of one tenant). With `approver`, a holder of that role must have accepted the effect.

        Raises EffectInDoubt where it may have happened already, EffectClaimed where another worker is about
        it, EffectLapsed, NotAuthorized, IdempotencyConflict when the key is that of another call, and what
        `append` raises. What `run` gave and the log cannot keep raises InvalidEvent or EventTooLarge, behind
        the commit.
        """
        try:
            attempt = self.begin_effect(agent, tool, args, idempotency_key, approver, lease, keys)
        except EffectCommitted as known:
            return self.receipt_of(known)
        try:
            result = run(attempt.key)
        except BaseException as error:
            attempt.failed(error)
            raise
        return attempt.committed(result)

    @contextmanager
    def effect(
        self,
        agent: str,
        tool: str,
        args: Any = ABSENT,
        *,
        idempotency_key: str,
        approver: str | None = None,
        lease: float = EFFECT_LEASE,
        **keys: Unpack[CallKeys],
    ) -> Iterator[Attempt]:
        """What `once` does, around a block: it gets the Attempt, with `key`, and may set its `result`.

        Raises EffectCommitted where it took place already, besides what `once` raises: the block never runs
        for an effect that may have happened.
        """
        attempt = self.begin_effect(agent, tool, args, idempotency_key, approver, lease, keys)
        try:
            yield attempt
        except BaseException as error:
            attempt.failed(error)
            raise
        attempt.committed(attempt.result)

    def begin_effect(
        self,
        agent: str,
        tool: str,
        args: Any,
        key: str,
        approver: str | None,
        lease: float,
        keys: CallKeys,
    ) -> Attempt:
        """Propose an effect unless it is, attempt it, and look whether the claim holds, right before the call."""
        if approver is not None:
            check_name(approver, "/approver")
            keys = keys | CallKeys(performative="propose", to=(ROLE_ADDRESS + approver,))
        if key is None:
            raise InvalidEvent("/idempotency_key", "an effect needs it")
        proposed: Mapping[str, str] = {"state": "proposed"}
        proposal = self.append(
            Draft(
                type="tool_call",
                agent=agent,
                tool=tool,
                args=args,
                effect=proposed,
                idempotency_key=key,
                **keys,
            )
        )
        session = self if proposal.session == self.id else self._other(proposal.session)
        claim = session.append(_move(proposal, agent, "attempted", lease=lease))
        attempt = Attempt(session, proposal, claim, key)
        attempt.check()
        return attempt

    def receipt_of(self, known: EffectCommitted) -> Receipt:
        """The receipt of an effect that took place before."""
        return self.receipt(known.effect, self._reader.event(known.committed), is_replay=True)

    def receipt(self, effect_id: str, event: Event, *, is_replay: bool) -> Receipt:
        """The receipt of an effect that `event` commits."""
        result = None
        with suppress(PayloadUnreadable):
            result = self.content(event)
        return Receipt(effect_id, event, result, is_replay)

    def find_effect(self, effect: Event | str) -> Effect:
        """One effect of this session, by the id of the event that proposed it. Raises UnknownReference."""
        return self._opened([self._reader.effect(self.id, identity(effect))])[0]

    def effects(
        self, *, state: str | None = None, after: str | None = None, limit: int = DEFAULT_EFFECTS
    ) -> list[Effect]:
        """At most `limit` effects of this session (in one state), as they were proposed, behind effect `after`."""
        if state is not None and state not in EFFECT_STATES:
            raise InvalidEvent("/state", "one of " + ", ".join(EFFECT_STATES))
        if limit < 1:
            raise ValueError("a number of effects is 1 or more")
        pos = 0 if after is None else self._reader.effect(self.id, after).pos
        pages = [
            self._reader.effects(self.id, name, pos, limit)
            for name in (EFFECT_STATES if state is None else (state,))
        ]
        return self._opened(list(heapq.merge(*pages, key=lambda found: found.pos))[:limit])

    def settle(self, effect: Event | str, outcome: str, *, agent: str, result: Any = ABSENT) -> Effect:
        """Say what became of an effect: `committed` (with the `result`), `undone`, `not_happened` or `withdrawn`.

        Its call is answered too, if it was not. Raises EffectTransitionError, EffectClaimed while another
        worker holds it, UnknownReference.
        """
        if outcome not in (_COMMITTED, *EFFECT_OUTCOMES):
            raise InvalidEvent("/outcome", "one of " + ", ".join((_COMMITTED, *EFFECT_OUTCOMES)))
        found = self.find_effect(effect)
        if outcome == _COMMITTED:
            self.commit_effect(found.proposed, agent, result)
        else:
            self.compensate(found.proposed, agent, outcome)
        return self.find_effect(effect)

    def commit_effect(self, proposal: Event, agent: str, result: Any) -> Event:
        """Record that an effect took place: as the result of its call, else as a mutation."""
        effect = {"id": proposal.id, "state": _COMMITTED}
        if proposal.type == "tool_call":
            with suppress(
                PairingError
            ):  # the call was answered, as by the error that left the effect in doubt
                return self.append(
                    Draft(type="tool_result", agent=agent, call_id=proposal.id, result=result, effect=effect)
                )
        return self.append(_move(proposal, agent, _COMMITTED, value=result))

    def compensate(self, proposal: Event, agent: str, outcome: str, result: Any = ABSENT) -> None:
        """Record that an effect did not take place or was undone; its call is answered, if it was not."""
        move = _move(proposal, agent, "compensated", outcome=outcome)
        status = (
            "error"
            if not isinstance(result, Absent)
            else "denied"
            if outcome == "withdrawn"
            else "interrupted"
        )
        if proposal.type == "tool_call":
            answer = Draft(type="tool_result", agent=agent, call_id=proposal.id, result=result, status=status)
            with suppress(PairingError):
                self.append_many([move, answer])
                return
        self.append(move)

    def recover(
        self, agent: str, reconcile: Reconciler | None = None, *, limit: int = DEFAULT_EFFECTS
    ) -> Recovery:
        """What a worker that starts again must know, at most `limit` of each: see Recovery.

        `agent` is that worker: attempts under its own name are in doubt, those of others while they hold them
        are not. `reconcile` is asked about each effect in doubt, all of them, and what it says is settled.
        """
        if limit < 1:
            raise ValueError("a number of effects is 1 or more")
        check_name(agent, "/agent")
        settled = [] if reconcile is None else self._reconciled(agent, reconcile, limit)
        never_tried = self.effects(state="proposed", limit=limit)
        attempted = self.effects(state="attempted", limit=limit)
        done = [
            found
            for state in (_COMMITTED, "compensated")
            for found in self._reader.newest_effects(self.id, state, limit)
        ]
        return Recovery(
            [found for found in attempted if _is_in_doubt(found, agent)],
            never_tried,
            [found for found in attempted if not _is_in_doubt(found, agent)],
            self._opened(sorted(done, key=lambda found: found.pos)[-limit:]),
            settled,
            max(len(never_tried), len(attempted)) < limit,
        )

    def _reconciled(self, agent: str, reconcile: Reconciler, limit: int) -> list[Effect]:
        settled: list[Effect] = []
        after: str | None = None
        while found := self.effects(state="attempted", after=after, limit=limit):
            after = found[-1].id
            for effect in found:
                said = reconcile(effect) if _is_in_doubt(effect, agent) else None
                if said is None:
                    continue
                settlement = Settlement(said) if isinstance(said, str) else said
                with suppress(EffectTransitionError, EffectClaimed):  # another was first
                    settled.append(
                        self.settle(effect.id, settlement.outcome, agent=agent, result=settlement.result)
                    )
        return settled

    def _opened(self, found: Sequence[Standing]) -> list[Effect]:
        opener, now = self._reader.opener, self._reader.clock() // 1000
        proposed = opener.events(self.id, [one.proposed for one in found])
        last = opener.events(self.id, [one.last for one in found])
        return [
            Effect(
                proposal.id,
                one.state,
                one.worker,
                None if one.until is None else from_microseconds(one.until),
                one.until is not None and one.until > now,
                proposal,
                moved,
            )
            for one, proposal, moved in zip(found, proposed, last, strict=True)
        ]


class Attempt:
    """An effect that this worker holds, while the tool is called.

    `key` is what to hand to the tool, `effect` the id of the effect, `fence` the fencing number. A block sets
    `result` to what is recorded.
    """

    def __init__(self, session: Effects, proposal: Event, claim: Event, key: str) -> None:
        """Made by `Session.effect`."""
        self._session, self._proposal, self._claim = session, proposal, claim
        self.key, self.effect, self.fence = key, proposal.id, claim.seq
        self.result: Any = ABSENT

    def check(self) -> None:
        """Look whether the claim still holds. Raises EffectLapsed when it does not; then nothing was done."""
        found = self._session.find_effect(self.effect)
        if found.last.id == self._claim.id and found.is_held:
            return
        if found.last.id == self._claim.id:
            self.abandon()
        raise EffectLapsed(self.effect, found.state)

    def abandon(self) -> None:
        """Record that the tool was not called."""
        with suppress(EffectTransitionError, EffectClaimed):  # somebody settled it
            self._session.compensate(self._proposal, self._claim.agent, "not_happened")

    def committed(self, result: Any) -> Receipt:
        """Record that the tool did it, and what it gave.

        Raises EffectTransitionError when somebody settled the effect otherwise meanwhile.
        """
        session, agent = self._session, self._claim.agent
        try:
            event = session.commit_effect(self._proposal, agent, result)
        except (InvalidEvent, EventTooLarge):
            session.commit_effect(self._proposal, agent, ABSENT)  # it took place, whatever it gave
            raise
        return session.receipt(self.effect, event, is_replay=False)

    def failed(self, error: BaseException) -> None:
        """Record what the tool raised: the effect is in doubt, unless it is NotPerformed."""
        session, agent = self._session, self._claim.agent
        message = str(error)[:_SHOWN_OF_AN_ERROR].encode("utf-8", "replace").decode()
        result = {"error": type(error).__name__, "message": message}
        status = "error" if isinstance(error, Exception) else "interrupted"
        with suppress(
            Refused
        ):  # the call was answered, or the effect settled: what the tool raised matters more
            if isinstance(error, NotPerformed):
                session.compensate(self._proposal, agent, "not_happened", result)
            else:
                session.append(
                    Draft(type="tool_result", agent=agent, call_id=self.effect, result=result, status=status)
                )

    def __repr__(self) -> str:
        return f"<attempt {self.fence} of effect {self.effect}>"


def _move(
    proposal: Event,
    agent: str,
    state: str,
    *,
    outcome: str | None = None,
    lease: float | None = None,
    value: Any = ABSENT,
) -> Draft:
    """The mutation that moves an effect."""
    effect = {"id": proposal.id, "state": state}
    return Draft(
        type="mutation",
        agent=agent,
        kind=f"effect-{state}",
        effect=effect if outcome is None else effect | {"outcome": outcome},
        parent_id=proposal.id,
        task_id=proposal.task_id,
        thread_id=proposal.thread_id,
        lease=lease,
        value=value,
    )


def _is_in_doubt(effect: Effect, agent: str) -> bool:
    return effect.worker == agent or not effect.is_held
