"""The async twins of labels and fences. `AsyncConversationLog` has them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from convlog_sqlite.events import Event
from convlog_sqlite.log import ConversationLog
from convlog_sqlite.store.fences import Fence

Result = TypeVar("Result")


class AsyncLabelling:
    """The part of an async log that says more of what was recorded."""

    @property
    @abstractmethod
    def sync(self) -> ConversationLog:
        """The log itself."""

    @abstractmethod
    async def run(self, call: Callable[[], Result]) -> Result:
        """The result of a blocking call, made in another thread."""

    @property
    def scrubbed(self) -> dict[str, int]:
        """See `ConversationLog.scrubbed`."""
        return self.sync.scrubbed

    async def label(
        self, event_id: str, *, subjects: Sequence[str] = (), sensitivity: str | None = None, by: str
    ) -> Event:
        """See `ConversationLog.label`."""
        return await self.run(
            lambda: self.sync.label(event_id, subjects=subjects, sensitivity=sensitivity, by=by)
        )

    async def lift_fence(self, subject: str, *, by: str) -> Fence:
        """See `ConversationLog.lift_fence`."""
        return await self.run(lambda: self.sync.lift_fence(subject, by=by))

    async def fences(self) -> list[Fence]:
        """See `ConversationLog.fences`."""
        return await self.run(self.sync.fences)
