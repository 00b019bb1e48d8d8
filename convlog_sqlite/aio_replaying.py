"""The async twin of replay. A part of `AsyncSession`."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from convlog_sqlite.moment import DEFAULT_LIMIT
from convlog_sqlite.replaying import Pace, Replayed, parts
from convlog_sqlite.session import Session
from convlog_sqlite.store.points import Point
from convlog_sqlite.threads import Runner


class AsyncReplaying:
    """The part of an async session that gives its events again."""

    _log: Runner
    _session: Session

    async def replay(
        self,
        *,
        start: Point | None = None,
        end: Point | None = None,
        speed: float | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> AsyncIterator[Replayed]:
        """See `Session.replay`."""
        pace = Pace(speed, clock)
        found = await self._log.run(lambda: self._session.replay(start=start, end=end))
        while block := await self._log.run(lambda: list(itertools.islice(found, DEFAULT_LIMIT))):
            for replayed in block:
                for seconds in parts(pace.wait(replayed.event)):
                    await sleep(seconds)
                yield replayed
