"""The async twins of state and projections: parts of `AsyncSession` and of `AsyncConversationLog`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from convlog_sqlite.log import ConversationLog
from convlog_sqlite.projections.differences import Discrepancy
from convlog_sqlite.projections.projection import Projection
from convlog_sqlite.session import Session
from convlog_sqlite.store.points import Point
from convlog_sqlite.threads import Result, Runner


class AsyncStates:
    """The part of an async session that computes its state."""

    _log: Runner
    _session: Session

    async def state(
        self, projection: str | Projection = "state", *, at: Point | None = None, rebuild: bool = False
    ) -> Any:
        """See `Session.state`."""
        return await self._log.run(lambda: self._session.state(projection, at=at, rebuild=rebuild))

    async def against(self, given: Mapping[str, Any], *, at: Point | None = None) -> list[Discrepancy]:
        """See `Session.against`."""
        return await self._log.run(lambda: self._session.against(given, at=at))


class AsyncProjecting:
    """The part of an async log that knows projections."""

    @property
    @abstractmethod
    def sync(self) -> ConversationLog:
        """The log itself."""

    @abstractmethod
    async def run(self, call: Callable[[], Result]) -> Result:
        """The result of a blocking call, made in another thread."""

    async def projections(self) -> list[str]:
        """See `ConversationLog.projections`."""
        return await self.run(self.sync.projections)

    async def register(self, projection: Projection) -> None:
        """See `ConversationLog.register`."""
        await self.run(lambda: self.sync.register(projection))
