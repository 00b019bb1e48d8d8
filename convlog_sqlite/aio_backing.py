"""The async twin of making backups. `AsyncConversationLog` has it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from convlog_sqlite.log import ConversationLog

if TYPE_CHECKING:
    from convlog_sqlite.backing import Backup
    from convlog_sqlite.copying import Progress

Result = TypeVar("Result")


class AsyncBacking:
    """The part of an async log that makes backups."""

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
        """See `ConversationLog.backup`. `progress` is called in another thread. Once called it goes on to its end."""
        return await self.run(
            lambda: self.sync.backup(destination, with_keys=with_keys, bare_keys=bare_keys, progress=progress)
        )
