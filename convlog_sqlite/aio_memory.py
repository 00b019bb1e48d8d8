"""The async twins of memory: parts of `AsyncSession` and of `AsyncConversationLog`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from convlog_sqlite.drafts import ABSENT
from convlog_sqlite.events import Event
from convlog_sqlite.log import ConversationLog
from convlog_sqlite.remembering import Claim
from convlog_sqlite.session import Session
from convlog_sqlite.threads import Result, Runner


class AsyncRemembering:
    """The part of an async session that makes memory of history."""

    _log: Runner
    _session: Session

    async def propose_memory(
        self,
        events: Sequence[Event | str],
        claim: Any,
        *,
        scope: str = "session",
        key: str | None = None,
        by: str,
        approver: str | None = None,
        purposes: Sequence[str] = (),
        sensitivity: str | None = None,
        expires: datetime | str | None = None,
        supersedes: Sequence[Event | Claim | str] = (),
        contested: bool = False,
    ) -> Event:
        """See `Session.propose_memory`."""
        return await self._log.run(
            lambda: self._session.propose_memory(
                events,
                claim,
                scope=scope,
                key=key,
                by=by,
                approver=approver,
                purposes=purposes,
                sensitivity=sensitivity,
                expires=expires,
                supersedes=supersedes,
                contested=contested,
            )
        )

    async def promote(
        self,
        events: Sequence[Event | str] = (),
        claim: Any = ABSENT,
        *,
        scope: str | None = None,
        key: str | None = None,
        by: str,
        approved_by: Event | str | None,
        purposes: Sequence[str] = (),
        expires: datetime | str | None = None,
    ) -> Event:
        """See `Session.promote`."""
        return await self._log.run(
            lambda: self._session.promote(
                events,
                claim,
                scope=scope,
                key=key,
                by=by,
                approved_by=approved_by,
                purposes=purposes,
                expires=expires,
            )
        )

    async def retract(self, claim: Event | Claim | str, *, by: str) -> Event:
        """See `Session.retract`."""
        return await self._log.run(lambda: self._session.retract(claim, by=by))

    async def memory(self, scope: str | None = None, *, whole: bool = False) -> list[Claim]:
        """See `Session.memory`."""
        return await self._log.run(lambda: self._session.memory(scope, whole=whole))


class AsyncRecollecting:
    """The part of an async log that knows its memory."""

    @property
    @abstractmethod
    def sync(self) -> ConversationLog:
        """The log itself."""

    @abstractmethod
    async def run(self, call: Callable[[], Result]) -> Result:
        """The result of a blocking call, made in another thread."""

    async def memory(
        self,
        scope: str | None = None,
        *,
        session: str | None = None,
        reader: str | None = None,
        purpose: str | None = None,
        whole: bool = False,
    ) -> list[Claim]:
        """See `ConversationLog.memory`."""
        return await self.run(
            lambda: self.sync.memory(scope, session=session, reader=reader, purpose=purpose, whole=whole)
        )

    async def claim(self, event_id: str) -> Claim:
        """See `ConversationLog.claim`."""
        return await self.run(lambda: self.sync.claim(event_id))

    async def retract(self, claim: Claim | str, *, by: str) -> Event:
        """See `ConversationLog.retract`."""
        return await self.run(lambda: self.sync.retract(claim, by=by))

    async def memory_ceiling(self) -> str:
        """See `ConversationLog.memory_ceiling`."""
        return await self.run(lambda: self.sync.memory_ceiling)

    async def set_memory_ceiling(self, sensitivity: str, *, by: str) -> None:
        """See `ConversationLog.set_memory_ceiling`."""
        await self.run(lambda: self.sync.set_memory_ceiling(sensitivity, by=by))
