"""The async twin of taking backups: a part of `AsyncConversationLog`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

from convlog_sqlite.backup import Backup, Progress
from convlog_sqlite.log import ConversationLog
from convlog_sqlite.threads import Result


class AsyncBackingUp:
    """The part of an async log that takes backups."""

    @property
    @abstractmethod
    def sync(self) -> ConversationLog:
        """The log itself."""

    @abstractmethod
    async def run(self, call: Callable[[], Result]) -> Result:
        """The result of a blocking call, made in another thread."""

    async def backup(
        self,
        destination: str | Path,
        *,
        with_keys: bool = False,
        bare_keys: bool = False,
        progress: Progress | None = None,
    ) -> Backup:
        """See `ConversationLog.backup`. Once begun, it goes on to its end though the caller is cancelled.

        `progress` is called in another thread.
        """
        log = self.sync
        return await self.run(
            lambda: log.backup(destination, with_keys=with_keys, bare_keys=bare_keys, progress=progress)
        )

    async def record_erasures(self, *, by: str) -> int:
        """See `ConversationLog.record_erasures`."""
        return await self.run(lambda: self.sync.record_erasures(by=by))
