"""AsyncMoment: the twin of Moment, to be awaited. Made by `AsyncSession.at`."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any, Final

from convlog_sqlite.aio_views import AsyncThrough
from convlog_sqlite.events import Event
from convlog_sqlite.moment import DEFAULT_LIMIT, Moment
from convlog_sqlite.projections.projection import Projection
from convlog_sqlite.store.reader import Page
from convlog_sqlite.store.reading import SCAN
from convlog_sqlite.threads import Runner

LINES_AT_ONCE: Final = 1000


class AsyncMoment(AsyncThrough):
    """A session when `seq` was its last event: the same reads as `Moment`, awaited."""

    def __init__(self, log: Runner, moment: Moment) -> None:
        self._log, self._moment, self._source = log, moment, moment
        self.id, self.seq, self.head = moment.id, moment.seq, moment.head

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
        """See `Moment.tail`."""
        moment = self._moment
        budget: Any = {"max_chars": max_chars, "brief": brief}
        return await self._log.run(
            lambda: moment.tail(n, before=before, pairs=pairs, max_scan=max_scan, **budget, **filters)
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
        """See `Moment.read`."""
        moment = self._moment
        return await self._log.run(
            lambda: moment.read(after=after, before=before, limit=limit, max_scan=max_scan, **filters)
        )

    async def state(self, projection: str | Projection = "state", *, rebuild: bool = False) -> Any:
        """See `Moment.state`."""
        return await self._log.run(lambda: self._moment.state(projection, rebuild=rebuild))

    async def jsonl(
        self, *, after: int = 0, before: int | None = None, inherited: bool = False
    ) -> AsyncIterator[bytes]:
        """See `Moment.jsonl`."""
        lines = self._moment.jsonl(after=after, before=before, inherited=inherited)
        while block := await self._log.run(lambda: list(itertools.islice(lines, LINES_AT_ONCE))):
            for line in block:
                yield line

    async def event(self, seq: int) -> Event | None:
        """See `Moment.event`."""
        return await self._log.run(lambda: self._moment.event(seq))

    async def open_calls(self, *, after: int = 0, limit: int = DEFAULT_LIMIT, max_scan: int = SCAN) -> Page:
        """See `Moment.open_calls`."""
        moment = self._moment
        return await self._log.run(lambda: moment.open_calls(after=after, limit=limit, max_scan=max_scan))

    def __repr__(self) -> str:
        return f"<async session {self.id} at {self.seq}>"
