"""The async twins of `acting`: the tool is awaited, and no cancellation leaves its outcome unsaid.

A call that is cancelled before its tool began is recorded as `not_happened`; one that is cancelled in the middle
of it leaves the effect in doubt; what the tool gave is recorded though nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar, Unpack

from convlog_sqlite.acting import DEFAULT_EFFECTS, Acting, Attempt, check_tool
from convlog_sqlite.drafts import ABSENT
from convlog_sqlite.effects import CallKeys, Effect, Receipt, Reconciler, Recovery
from convlog_sqlite.errors import ConvlogError, EffectCommitted
from convlog_sqlite.events import Event
from convlog_sqlite.vocabulary import EFFECT_LEASE

Result = TypeVar("Result")


class Running(Protocol):
    """Where blocking calls are made: see `AsyncConversationLog.run` and `to_its_end`."""

    async def run(self, call: Callable[[], Result]) -> Result: ...
    async def to_its_end(self, call: Callable[[], Result]) -> Result: ...


class AsyncActing:
    """The part of an async session that makes things happen once. `AsyncSession` is one."""

    _log: Running
    _session: Acting

    async def once(
        self,
        agent: str,
        tool: str,
        args: Any = ABSENT,
        *,
        idempotency_key: str,
        run: Callable[[str], Awaitable[Any]],
        approver: str | None = None,
        lease: float = EFFECT_LEASE,
        **keys: Unpack[CallKeys],
    ) -> Receipt:
        """See `Session.once`; what `run` gives is awaited."""
        check_tool(run)
        try:
            attempt = await self._begun(agent, tool, args, idempotency_key, approver, lease, keys)
        except EffectCommitted as known:
            done = known
            return await self._log.run(lambda: self._session.receipt_of(done))
        try:
            result: Any = run(attempt.key)
            if inspect.isawaitable(result):  # a plain function has done it by now
                result = await result
        except BaseException as error:
            await self._failed(attempt, error)
            raise
        return await self._log.to_its_end(lambda: attempt.committed(result))

    @asynccontextmanager
    async def effect(
        self,
        agent: str,
        tool: str,
        args: Any = ABSENT,
        *,
        idempotency_key: str,
        approver: str | None = None,
        lease: float = EFFECT_LEASE,
        **keys: Unpack[CallKeys],
    ) -> AsyncIterator[Attempt]:
        """See `Session.effect`."""
        attempt = await self._begun(agent, tool, args, idempotency_key, approver, lease, keys)
        try:
            yield attempt
        except BaseException as error:
            await self._failed(attempt, error)
            raise
        await self._log.to_its_end(lambda: attempt.committed(attempt.result))

    async def _begun(
        self,
        agent: str,
        tool: str,
        args: Any,
        idempotency_key: str,
        approver: str | None,
        lease: float,
        keys: CallKeys,
    ) -> Attempt:
        session = self._session
        begun = asyncio.ensure_future(
            self._log.to_its_end(
                lambda: session.begin_effect(agent, tool, args, idempotency_key, approver, lease, keys)
            )
        )
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            # The claim may be on its way: it is waited for, so that it can be said that nothing came of it.
            with suppress(ConvlogError):
                attempt = await begun
                await self._log.to_its_end(attempt.abandon)
            raise

    async def _failed(self, attempt: Attempt, error: BaseException) -> None:
        await self._log.to_its_end(lambda: attempt.failed(error))

    async def effects(
        self, *, state: str | None = None, after: str | None = None, limit: int = DEFAULT_EFFECTS
    ) -> list[Effect]:
        """See `Session.effects`."""
        return await self._log.run(lambda: self._session.effects(state=state, after=after, limit=limit))

    async def find_effect(self, effect: Event | str) -> Effect:
        """See `Session.find_effect`."""
        return await self._log.run(lambda: self._session.find_effect(effect))

    async def settle(self, effect: Event | str, outcome: str, *, agent: str, result: Any = ABSENT) -> Effect:
        """See `Session.settle`."""
        return await self._log.to_its_end(
            lambda: self._session.settle(effect, outcome, agent=agent, result=result)
        )

    async def recover(
        self, agent: str, reconcile: Reconciler | None = None, *, limit: int = DEFAULT_EFFECTS
    ) -> Recovery:
        """See `Session.recover`; `reconcile` is called in another thread."""
        return await self._log.run(lambda: self._session.recover(agent, reconcile, limit=limit))
