"""The async twins of views: AsyncSlice, and what AsyncConversationLog says of views."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

from convlog_sqlite.events import Event
from convlog_sqlite.log import ConversationLog
from convlog_sqlite.moment import DEFAULT_LIMIT, Moment
from convlog_sqlite.projections.projection import Projection
from convlog_sqlite.session import Session
from convlog_sqlite.store.reader import Page
from convlog_sqlite.store.reading import SCAN
from convlog_sqlite.threads import Runner
from convlog_sqlite.views.definition import View
from convlog_sqlite.views.explaining import Explanation
from convlog_sqlite.views.slices import Slice

Result = TypeVar("Result")
LINES_AT_ONCE: Final = 1000


class AsyncSlice:
    """What a reader is shown of a session: the same reads as `Slice`, awaited."""

    def __init__(self, log: Runner, slice_: Slice) -> None:
        self._log, self._slice = log, slice_
        self.id, self.view, self.label = slice_.id, slice_.view, slice_.label
        self.reader, self.role, self.purpose = slice_.reader, slice_.role, slice_.purpose

    @property
    def sync(self) -> Slice:
        """The slice itself."""
        return self._slice

    async def head(self) -> int:
        """See `Slice.head`."""
        return await self._log.run(lambda: self._slice.head)

    async def tail(
        self,
        n: int = 20,
        *,
        before: int | None = None,
        pairs: bool = False,
        max_chars: int | None = None,
        brief: bool = False,
        max_scan: int = SCAN,
        **filters: Any,
    ) -> Page:
        """See `Slice.tail`."""
        found = self._slice
        budget: Any = {"max_chars": max_chars, "brief": brief}
        return await self._log.run(
            lambda: found.tail(n, before=before, pairs=pairs, max_scan=max_scan, **budget, **filters)
        )

    async def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = DEFAULT_LIMIT,
        max_scan: int = SCAN,
        **filters: Any,
    ) -> Page:
        """See `Slice.read`."""
        found = self._slice
        return await self._log.run(
            lambda: found.read(after=after, before=before, limit=limit, max_scan=max_scan, **filters)
        )

    async def selected(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = DEFAULT_LIMIT,
        max_scan: int = SCAN,
        **filters: Any,
    ) -> Page:
        """See `Slice.selected`."""
        found = self._slice
        return await self._log.run(
            lambda: found.selected(after=after, before=before, limit=limit, max_scan=max_scan, **filters)
        )

    async def with_calls(self, page: Page) -> Page:
        """See `Slice.with_calls`."""
        return await self._log.run(lambda: self._slice.with_calls(page))

    async def with_linked(self, page: Page) -> Page:
        """See `Slice.with_linked`."""
        return await self._log.run(lambda: self._slice.with_linked(page))

    async def event(self, seq: int) -> Event | None:
        """See `Slice.event`."""
        return await self._log.run(lambda: self._slice.event(seq))

    async def shows(self, event: Event) -> bool:
        """See `Slice.shows`."""
        return await self._log.run(lambda: self._slice.shows(event))

    async def shown(self, event: Event) -> Event | None:
        """See `Slice.shown`."""
        return await self._log.run(lambda: self._slice.shown(event))

    async def content(self, event: Event) -> Any:
        """See `Slice.content`."""
        return await self._log.run(lambda: self._slice.content(event))

    async def attachment(self, event: Event, index: int = 0) -> bytes:
        """See `Slice.attachment`."""
        return await self._log.run(lambda: self._slice.attachment(event, index))

    async def explain(self, event: Event) -> Explanation:
        """See `Slice.explain`."""
        return await self._log.run(lambda: self._slice.explain(event))

    async def state(self, projection: str | Projection = "state") -> Any:
        """See `Slice.state`."""
        return await self._log.run(lambda: self._slice.state(projection))

    async def jsonl(
        self, *, after: int = 0, before: int | None = None, inherited: bool = False
    ) -> AsyncIterator[bytes]:
        """See `Slice.jsonl`."""
        lines = self._slice.jsonl(after=after, before=before, inherited=inherited)
        while block := await self._log.run(lambda: list(itertools.islice(lines, LINES_AT_ONCE))):
            for line in block:
                yield line

    def __repr__(self) -> str:
        return f"<async {self._slice!r}>"


class AsyncThrough:
    """The part of an async session or moment that is read through a view."""

    _log: Runner
    _source: Session | Moment

    async def through(
        self,
        view: View | str | None = None,
        *,
        reader: str | None = None,
        role: str | None = None,
        purpose: str | None = None,
    ) -> AsyncSlice:
        """See `Session.through`."""
        source = self._source
        found = await self._log.run(lambda: source.through(view, reader=reader, role=role, purpose=purpose))
        return AsyncSlice(self._log, found)


class AsyncViewing:
    """The part of an async log that shows a reader what is valid for it."""

    @property
    @abstractmethod
    def sync(self) -> ConversationLog:
        """The log itself."""

    @abstractmethod
    async def run(self, call: Callable[[], Result]) -> Result:
        """The result of a blocking call, made in another thread."""

    async def define_view(self, view: View, *, by: str) -> View:
        """See `ConversationLog.define_view`."""
        return await self.run(lambda: self.sync.define_view(view, by=by))

    async def views(self) -> list[View]:
        """See `ConversationLog.views`."""
        return await self.run(self.sync.views)

    async def view(self, name: str) -> View:
        """See `ConversationLog.view`."""
        return await self.run(lambda: self.sync.view(name))
