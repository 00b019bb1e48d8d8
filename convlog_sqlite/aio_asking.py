"""The async twins of asking: an agent waits for a reply, or for a decision, and the event loop does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from convlog_sqlite.events import Event
from convlog_sqlite.follow import Waiter
from convlog_sqlite.threads import Result, Threads
from convlog_sqlite.verbs import Verbs


class Asked(Protocol):
    """The session that is waited for."""

    def reply_by(self, waiter: Waiter, request: Event | str, timeout: float | None) -> Event: ...
    def approval_by(self, waiter: Waiter, proposal: Event | str, timeout: float | None) -> Event: ...


class Making(Protocol):
    """Where blocking calls are made."""

    @property
    def sync(self) -> Any: ...
    async def make(self, call: Callable[[], Result], unmake: Callable[[Result], None]) -> Result: ...


class AsyncAsking(Verbs[Awaitable[Event]]):
    """The part of an async session that asks and waits. `AsyncSession` is one."""

    _log: Making
    _session: Asked

    async def ask(
        self,
        body: str,
        *,
        agent: str,
        to: str,
        task_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 as in `Session.ask`
    ) -> Event:
        """See `Session.ask`."""
        return await self.reply_to(
            await self.request(body, agent=agent, to=to, task_id=task_id), timeout=timeout
        )

    async def reply_to(
        self,
        request: Event | str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 as in `Session.reply_to`
    ) -> Event:
        """See `Session.reply_to`. Has a thread of its own while it waits."""
        waiter = await self._log.make(self._log.sync.waiter, Waiter.close)
        return await self._waiting(waiter, lambda: self._session.reply_by(waiter, request, timeout))

    async def approved(
        self,
        proposal: Event | str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 as in `Session.approved`
    ) -> Event:
        """See `Session.approved`. Has a thread of its own while it waits."""
        waiter = await self._log.make(self._log.sync.waiter, Waiter.close)
        return await self._waiting(waiter, lambda: self._session.approval_by(waiter, proposal, timeout))

    async def _waiting(self, waiter: Waiter, call: Callable[[], Event]) -> Event:
        thread = Threads("asker", 1)
        try:
            return await thread.run(call)
        finally:
            waiter.interrupt()
            # Runs behind the wait that was interrupted, if there was one.
            closed = thread.run(waiter.close)
            thread.stop()
            await asyncio.shield(closed)
