"""Acting: a tool that acts on the outside world, called once for each key, and what a crash left of it.

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
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Self, Unpack

from convlog_sqlite.coordination import identity
from convlog_sqlite.drafts import ABSENT, Absent, Draft, check_name, is_event_id
from convlog_sqlite.effects import (
    CallKeys,
    Effect,
    Receipt,
    Reconciler,
    Recovery,
    Settlement,
    is_in_doubt,
    move_draft,
    opened,
)
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
    UnknownReference,
)
from convlog_sqlite.events import Event
from convlog_sqlite.store.effects import Standing
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.vocabulary import EFFECT_LEASE, EFFECT_OUTCOMES, EFFECT_STATES, ROLE_ADDRESS

DEFAULT_EFFECTS: Final = 1000
_SHOWN_OF_AN_ERROR: Final = 4096  # characters
_COMMITTED: Final = "committed"


class Acting(ABC):
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
        check_tool(run)
        try:
            attempt = self.begin_effect(agent, tool, args, idempotency_key, approver, lease, keys)
        except EffectCommitted as known:
            return self.receipt_of(known)
        try:
            result = run(attempt.key)
            if inspect.iscoroutine(result):  # nothing of it has run
                result.close()
                raise NotPerformed("the tool is a coroutine, which AsyncSession.once awaits")
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
        claim = session.append(move_draft(proposal, agent, "attempted", lease=lease))
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
        return opened(self._reader, self.id, [self._standing(identity(effect))])[0]

    def _standing(self, effect_id: str) -> Standing:
        if not is_event_id(effect_id):
            raise UnknownReference("effect/id", effect_id)
        return self._reader.effect(self.id, effect_id)

    def effects(
        self, *, state: str | None = None, after: str | None = None, limit: int = DEFAULT_EFFECTS
    ) -> list[Effect]:
        """At most `limit` effects of this session (in one state), as they were proposed, behind effect `after`."""
        if state is not None and state not in EFFECT_STATES:
            raise InvalidEvent("/state", "one of " + ", ".join(EFFECT_STATES))
        if limit < 1:
            raise ValueError("a number of effects is 1 or more")
        pos = 0 if after is None else self._standing(after).pos
        pages = [
            self._reader.effects(self.id, name, pos, limit)
            for name in (EFFECT_STATES if state is None else (state,))
        ]
        return opened(self._reader, self.id, list(heapq.merge(*pages, key=lambda found: found.pos))[:limit])

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
        return self.append(move_draft(proposal, agent, _COMMITTED, value=result))

    def compensate(self, proposal: Event, agent: str, outcome: str, result: Any = ABSENT) -> None:
        """Record that an effect did not take place or was undone; its call is answered, if it was not."""
        move = move_draft(proposal, agent, "compensated", outcome=outcome)
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
            [found for found in attempted if is_in_doubt(found, agent)],
            never_tried,
            [found for found in attempted if not is_in_doubt(found, agent)],
            opened(self._reader, self.id, sorted(done, key=lambda found: found.pos)[-limit:]),
            settled,
            max(len(never_tried), len(attempted)) < limit,
        )

    def _reconciled(self, agent: str, reconcile: Reconciler, limit: int) -> list[Effect]:
        settled: list[Effect] = []
        after: str | None = None
        while found := self.effects(state="attempted", after=after, limit=limit):
            after = found[-1].id
            for effect in found:
                said = reconcile(effect) if is_in_doubt(effect, agent) else None
                if said is None:
                    continue
                settlement = Settlement(said) if isinstance(said, str) else said
                with suppress(EffectTransitionError, EffectClaimed):  # another was first
                    settled.append(
                        self.settle(effect.id, settlement.outcome, agent=agent, result=settlement.result)
                    )
        return settled


class Attempt:
    """An effect that this worker holds, while the tool is called.

    `key` is what to hand to the tool, `effect` the id of the effect, `fence` the fencing number. A block sets
    `result` to what is recorded.
    """

    def __init__(self, session: Acting, proposal: Event, claim: Event, key: str) -> None:
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


def check_tool(run: Callable[[str], Any]) -> None:
    """Refuse what cannot be called with a key, before an attempt says that it may have been. Raises TypeError."""
    if not callable(run):
        raise TypeError("the tool of an effect is a function of the key")
    try:
        signature = inspect.signature(run)
    except ValueError:  # of some built-in functions nothing is known
        return
    signature.bind("key")
