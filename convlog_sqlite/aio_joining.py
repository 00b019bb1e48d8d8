"""The async twins of taking part: `AsyncListener` and `AsyncParticipant`, made by an async session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, Unpack

from convlog_sqlite.acting import DEFAULT_EFFECTS, Attempt
from convlog_sqlite.aio_acting import AsyncActing, Running
from convlog_sqlite.aio_asking import AsyncAsking, Making
from convlog_sqlite.drafts import ABSENT, Draft
from convlog_sqlite.effects import CallKeys, Effect, Receipt, Reconciler, Recovery
from convlog_sqlite.events import Event
from convlog_sqlite.joining import DEFAULT_READINGS, Joining
from convlog_sqlite.listeners import NEWS_LIMIT, Listener, News
from convlog_sqlite.participants import OwnVerbs, Participant, Saying
from convlog_sqlite.recalling import Seen
from convlog_sqlite.remembering import Claim, PromotedKeys, ProposedKeys
from convlog_sqlite.store.listening import Hears
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.reader import Page
from convlog_sqlite.store.readings import Reading
from convlog_sqlite.vocabulary import EFFECT_LEASE


class Appending(Running, Making, Protocol):
    """Where drafts are recorded, and blocking calls made: the async log."""

    async def append_drafts(
        self, session: str, tenant: str | None, drafts: Sequence[Draft], heard: Hears = None
    ) -> list[Event]: ...


class Asking(Protocol):
    """The async session: what waits for others."""

    def reply_to(self, request: Event | str, *, timeout: float | None = None) -> Awaitable[Event]: ...
    def approved(self, proposal: Event | str, *, timeout: float | None = None) -> Awaitable[Event]: ...


class AsyncListener:
    """The twin of Listener: the same calls, awaited. Made by `AsyncSession.listener`."""

    def __init__(self, log: Running, listener: Listener) -> None:
        self._running, self._listener = log, listener
        self.agent, self.role, self.purpose = listener.agent, listener.role, listener.purpose
        self.view = listener.view

    @property
    def heard_upto(self) -> int:
        """See `Listener.heard_upto`."""
        return self._listener.heard_upto

    async def listen(
        self, n: int = 20, *, pairs: bool = False, max_chars: int | None = None, brief: bool = False
    ) -> Page:
        """See `Listener.listen`."""
        how: Any = {"pairs": pairs, "max_chars": max_chars, "brief": brief}
        return await self._running.run(lambda: self._listener.listen(n, **how))

    async def news(self, limit: int = NEWS_LIMIT) -> News:
        """See `Listener.news`."""
        return await self._running.run(lambda: self._listener.news(limit))

    async def acknowledge(self, news: News) -> None:
        """See `Listener.acknowledge`."""
        await self._running.to_its_end(lambda: self._listener.acknowledge(news))

    async def flush(self) -> None:
        """See `Listener.flush`."""
        await self._running.to_its_end(self._listener.flush)

    def __repr__(self) -> str:
        return f"<async {self._listener!r}>"


class _Acting(AsyncActing):
    def __init__(self, log: Running, participant: Participant) -> None:
        self._log, self._session = log, participant.session


class AsyncParticipant(AsyncListener, OwnVerbs[Awaitable[Event]]):
    """The twin of Participant: the same verbs, awaited. Made by `AsyncSession.join`."""

    def __init__(self, log: Appending, session: Asking, participant: Participant) -> None:
        super().__init__(log, participant)
        self.id, self.tenant = participant.id, participant.tenant
        self._log, self._session, self._participant = log, session, participant
        self._verbs, self._acting = Saying(self.append), _Acting(log, participant)

    async def append(self, draft: Draft) -> Event:
        """See `Participant.append`. Once called it is committed, even if the caller is cancelled."""
        return (await self.append_many([draft]))[0]

    async def append_many(self, drafts: Iterable[Draft]) -> list[Event]:
        """See `Participant.append_many`."""
        drafts, participant = self._participant.complete(drafts), self._participant
        if not drafts:
            return []
        heard = participant.hear()
        events = await self._log.append_drafts(self.id, self.tenant, drafts, heard)
        participant.wrote(heard, events)
        return events

    async def leave(self) -> Event:
        """See `Participant.leave`."""
        return await self._log.to_its_end(self._participant.leave)

    async def once(
        self,
        tool: str,
        args: Any = ABSENT,
        *,
        idempotency_key: str,
        run: Callable[[str], Awaitable[Any]],
        approver: str | None = None,
        lease: float = EFFECT_LEASE,
        **keys: Unpack[CallKeys],
    ) -> Receipt:
        """See `Participant.once`; what `run` gives is awaited."""
        how: Any = {"run": run, "approver": approver, "lease": lease, **keys}
        return await self._acting.once(self.agent, tool, args, idempotency_key=idempotency_key, **how)

    @asynccontextmanager
    async def effect(
        self,
        tool: str,
        args: Any = ABSENT,
        *,
        idempotency_key: str,
        approver: str | None = None,
        lease: float = EFFECT_LEASE,
        **keys: Unpack[CallKeys],
    ) -> AsyncIterator[Attempt]:
        """See `Participant.effect`."""
        how: Any = {"approver": approver, "lease": lease, **keys}
        async with self._acting.effect(
            self.agent, tool, args, idempotency_key=idempotency_key, **how
        ) as attempt:
            yield attempt

    async def settle(self, effect: Event | str, outcome: str, *, result: Any = ABSENT) -> Effect:
        """See `Participant.settle`."""
        return await self._acting.settle(effect, outcome, agent=self.agent, result=result)

    async def recover(self, reconcile: Reconciler | None = None, *, limit: int = DEFAULT_EFFECTS) -> Recovery:
        """See `Participant.recover`."""
        return await self._acting.recover(self.agent, reconcile, limit=limit)

    async def propose_memory(
        self, events: Sequence[Event | str], claim: Any, **how: Unpack[ProposedKeys]
    ) -> Event:
        """See `Participant.propose_memory`."""
        participant = self._participant
        return await self._log.to_its_end(lambda: participant.propose_memory(events, claim, **how))

    async def promote(
        self,
        events: Sequence[Event | str] = (),
        claim: Any = ABSENT,
        *,
        approved_by: Event | str | None,
        **how: Unpack[PromotedKeys],
    ) -> Event:
        """See `Participant.promote`."""
        participant = self._participant
        return await self._log.to_its_end(
            lambda: participant.promote(events, claim, approved_by=approved_by, **how)
        )

    async def retract(self, claim: Event | Claim | str) -> Event:
        """See `Participant.retract`."""
        return await self._log.to_its_end(lambda: self._participant.retract(claim))

    async def ask(
        self,
        body: str,
        *,
        to: str,
        task_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 as in `Participant.ask`
    ) -> Event:
        """See `Participant.ask`."""
        request = await self.request(body, to=to, task_id=task_id)
        return await self._session.reply_to(request, timeout=timeout)

    async def reply_to(
        self,
        request: Event | str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 as in `Participant.reply_to`
    ) -> Event:
        """See `Participant.reply_to`."""
        return await self._session.reply_to(request, timeout=timeout)

    async def approved(
        self,
        proposal: Event | str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 as in `Participant.approved`
    ) -> Event:
        """See `Participant.approved`."""
        return await self._session.approved(proposal, timeout=timeout)


class AsyncJoining(AsyncAsking):
    """The part of an async session that knows who takes part in it. `AsyncSession` is one."""

    _log: Appending
    _session: Joining

    async def join(
        self,
        agent: str,
        *,
        role: str | None = None,
        view: str | None = None,
        purpose: str | None = None,
        sensitivity: str | None = None,
        purposes: Sequence[str] | None = None,
        subjects: Sequence[str] | None = None,
    ) -> AsyncParticipant:
        """See `Session.join`."""
        how: Any = {"role": role, "view": view, "purpose": purpose, "sensitivity": sensitivity}
        how |= {"purposes": purposes, "subjects": subjects}
        joined = await self._log.to_its_end(lambda: self._session.join(agent, **how))
        return AsyncParticipant(self._log, self, joined)

    async def participant(self, agent: str) -> AsyncParticipant | None:
        """See `Session.participant`."""
        found = await self._log.run(lambda: self._session.participant(agent))
        return None if found is None else AsyncParticipant(self._log, self, found)

    async def listener(
        self, agent: str, *, role: str | None = None, view: str | None = None, purpose: str | None = None
    ) -> AsyncListener:
        """See `Session.listener`."""
        how: Any = {"role": role, "view": view, "purpose": purpose}
        return AsyncListener(self._log, await self._log.run(lambda: self._session.listener(agent, **how)))

    async def listening(self, mode: str, *, by: str) -> Event:
        """See `Session.listening`."""
        return await self._log.to_its_end(lambda: self._session.listening(mode, by=by))

    async def listening_mode(self) -> str:
        """See `Session.listening_mode`."""
        return await self._log.run(self._session.listening_mode)

    async def readings(
        self, agent: str | None = None, *, after: int = 0, limit: int = DEFAULT_READINGS
    ) -> list[Reading]:
        """See `Session.readings`."""
        return await self._log.run(lambda: self._session.readings(agent, after=after, limit=limit))

    async def seen(self, agent: str, at: Point | None = None) -> Seen:
        """See `Session.seen`."""
        return await self._log.run(lambda: self._session.seen(agent, at))
