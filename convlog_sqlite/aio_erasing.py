"""The async twins of erasing. `AsyncConversationLog` has them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from convlog_sqlite.log import ConversationLog
from convlog_sqlite.redaction import Redaction
from convlog_sqlite.store.sessions import RemovedSession

Result = TypeVar("Result")


class AsyncErasing:
    """The part of an async log that erases content."""

    @property
    @abstractmethod
    def sync(self) -> ConversationLog:
        """The log itself."""

    @abstractmethod
    async def run(self, call: Callable[[], Result]) -> Result:
        """The result of a blocking call, made in another thread."""

    async def exports(self) -> list[str]:
        """See `ConversationLog.exports`."""
        return await self.run(self.sync.exports)

    async def forget_export(self, directory: str | Path) -> None:
        """See `ConversationLog.forget_export`."""
        await self.run(lambda: self.sync.forget_export(directory))

    async def removed_sessions(self) -> list[RemovedSession]:
        """See `ConversationLog.removed_sessions`."""
        return await self.run(self.sync.removed_sessions)

    async def redact(
        self,
        *,
        events: Sequence[str] = (),
        session: str | None = None,
        task: str | None = None,
        agent: str | None = None,
        subject: str | None = None,
        reason: str,
        by: str,
        dry_run: bool = False,
        override_hold: str | Sequence[str] = (),
        fence: bool = False,
        verify: bool = False,
        keep_derived: bool = False,
    ) -> Redaction:
        """See `ConversationLog.redact`. Once begun, it goes on to its end though the caller is cancelled."""
        return await self.run(
            lambda: self.sync.redact(
                events=events,
                session=session,
                task=task,
                agent=agent,
                subject=subject,
                reason=reason,
                by=by,
                dry_run=dry_run,
                override_hold=override_hold,
                fence=fence,
                verify=verify,
                keep_derived=keep_derived,
            )
        )
