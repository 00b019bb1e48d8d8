"""The async twins: `AsyncConversationLog` and `AsyncSession`. Thin over the sync core, which does the work.

    async with AsyncConversationLog.open() as log:
        session = log.session("build-42")
        await session.message("Add JWT auth.", agent="user")
        async for event in session.follow():
            ...

Nothing runs in the event loop's thread. Appends go to one thread, which takes all that wait and commits
them together: tasks that append at once share one sync. Reads go to a few others, each follower has its
own. All are daemon threads: a program ends without an explicit close.

Cancellation: an append that was handed over is committed, whether or not anybody still waits for it, and
is never half done. After a cancelled call, append again with the same `idempotency_key`: it returns the
event that stands there, or records it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, Unpack

from convlog_sqlite.aio_acting import AsyncActing
from convlog_sqlite.aio_backup import AsyncBackingUp
from convlog_sqlite.aio_erasing import AsyncErasing
from convlog_sqlite.aio_joining import AsyncJoining
from convlog_sqlite.aio_labelling import AsyncLabelling
from convlog_sqlite.aio_memory import AsyncRecollecting, AsyncRemembering
from convlog_sqlite.aio_moment import AsyncMoment
from convlog_sqlite.aio_replaying import AsyncReplaying
from convlog_sqlite.aio_state import AsyncProjecting, AsyncStates
from convlog_sqlite.aio_views import AsyncSlice, AsyncThrough, AsyncViewing
from convlog_sqlite.branching import Difference
from convlog_sqlite.drafts import Draft, check_session_id
from convlog_sqlite.errors import StoreClosed
from convlog_sqlite.events import Event
from convlog_sqlite.findings import Finding
from convlog_sqlite.follow import Waiter
from convlog_sqlite.kek import KeySource
from convlog_sqlite.log import Anchor, ConversationLog
from convlog_sqlite.moment import DEFAULT_LIMIT
from convlog_sqlite.scrubbing import Scrubber
from convlog_sqlite.session import Session
from convlog_sqlite.store.listening import RECORDED, Hears
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.reader import Page, SessionSummary
from convlog_sqlite.store.reading import SCAN
from convlog_sqlite.store.tracing import Trace
from convlog_sqlite.tenancy import require_own
from convlog_sqlite.threads import Appender, Result, Threads
from convlog_sqlite.tracing import DEFAULT_TRACE
from convlog_sqlite.verbs import Filters

_READERS: Final = 4
_FINDINGS_AT_ONCE: Final = 100


class AsyncSession(AsyncJoining, AsyncActing, AsyncStates, AsyncThrough, AsyncReplaying, AsyncRemembering):
    """The twin of Session: the same verbs, awaited. Made by `AsyncConversationLog.session`."""

    _log: AsyncConversationLog
    _session: Session
    _hears: Hears = None

    def __init__(self, log: AsyncConversationLog, session: Session) -> None:
        self._log, self._session, self._source = log, session, session
        self.id, self.tenant = session.id, session.tenant

    async def append(self, draft: Draft) -> Event:
        """See `Session.append`. Once called it is committed, even if the caller is cancelled."""
        return (await self._log.append_drafts(self.id, self.tenant, [draft], self._hears))[0]

    async def append_many(self, drafts: Sequence[Draft]) -> list[Event]:
        """See `Session.append_many`."""
        drafts = list(drafts)
        return await self._log.append_drafts(self.id, self.tenant, drafts, self._hears) if drafts else []

    def informed(self) -> AsyncSession:
        """See `Session.informed`."""
        informed = AsyncSession(self._log, self._session)
        informed._hears = RECORDED
        return informed

    async def head(self) -> int:
        """The seq of the last event, 0 while there is none."""
        return await self._log.run(lambda: self._session.head)

    async def tail(
        self,
        n: int = 20,
        *,
        before: int | None = None,
        pairs: bool = False,
        max_chars: int | None = None,
        brief: bool = False,
        max_scan: int = SCAN,
        **filters: Unpack[Filters],
    ) -> Page:
        """See `Session.tail`."""
        session = self._session
        budget: Any = {"max_chars": max_chars, "brief": brief}
        return await self._log.run(
            lambda: session.tail(n, before=before, pairs=pairs, max_scan=max_scan, **budget, **filters)
        )

    async def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = DEFAULT_LIMIT,
        max_scan: int = SCAN,
        **filters: Unpack[Filters],
    ) -> Page:
        """See `Session.read`."""
        session = self._session
        return await self._log.run(
            lambda: session.read(after=after, before=before, limit=limit, max_scan=max_scan, **filters)
        )

    async def event(self, seq: int) -> Event | None:
        """See `Session.event`."""
        return await self._log.run(lambda: self._session.event(seq))

    async def open_calls(self, *, after: int = 0, limit: int = DEFAULT_LIMIT) -> Page:
        """See `Session.open_calls`."""
        return await self._log.run(lambda: self._session.open_calls(after=after, limit=limit))

    async def content(self, event: Event) -> Any:
        """See `Session.content`."""
        return await self._log.run(lambda: self._session.content(event))

    async def attachment(self, event: Event, index: int = 0) -> bytes:
        """See `Session.attachment`."""
        return await self._log.run(lambda: self._session.attachment(event, index))

    async def at(self, point: Point) -> AsyncMoment:
        """See `Session.at`."""
        return AsyncMoment(self._log, await self._log.run(lambda: self._session.at(point)))

    async def fork(self, new_id: str, at: Point | None = None, *, agent: str) -> AsyncSession:
        """See `Session.fork`."""
        return AsyncSession(
            self._log, await self._log.run(lambda: self._session.fork(new_id, at, agent=agent))
        )

    async def jsonl(
        self, *, after: int = 0, before: int | None = None, inherited: bool = False
    ) -> AsyncIterator[bytes]:
        """See `Session.jsonl`."""
        lines = self._session.jsonl(after=after, before=before, inherited=inherited)
        while block := await self._log.run(lambda: list(itertools.islice(lines, DEFAULT_LIMIT))):
            for line in block:
                yield line

    async def follow(
        self,
        after: int | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 it is an idle time, as in `Session.follow`
        through: AsyncSlice | None = None,
        **filters: Unpack[Filters],
    ) -> AsyncIterator[Event]:
        """See `Session.follow`. Has a thread of its own while it lasts."""
        start = await self.head() if after is None else after
        waiter = await self._log.make(self._log.sync.waiter, Waiter.close)
        shown = None if through is None else through.sync
        pages = self._session.follow_pages(waiter, start, timeout, filters, shown)
        thread = Threads("follower", 1)
        try:
            while (page := await thread.run(lambda: next(pages, None))) is not None:
                for event in page:
                    yield event
        finally:
            waiter.interrupt()
            # Runs behind the wait that was interrupted, if there was one: a generator is used by one thread.
            closed = thread.run(lambda: _close(pages, waiter.close))
            thread.stop()
            await asyncio.shield(closed)

    def __repr__(self) -> str:
        return f"<async session {self.id}>"


def _close(pages: Generator[Page, None, None], close: Callable[[], None]) -> None:
    pages.close()
    close()  # one that was never started does not close its waiter


class AsyncConversationLog(
    AsyncLabelling, AsyncErasing, AsyncProjecting, AsyncBackingUp, AsyncViewing, AsyncRecollecting
):
    """The twin of ConversationLog. Opened by `async with`; several tasks and loops may use it."""

    def __init__(self, opened: Callable[[], ConversationLog]) -> None:
        """Use `open` or `ephemeral`."""
        self._opened = opened
        self._sync: ConversationLog | None = None
        self._readers: Threads | None = None
        self._appender: Appender | None = None
        self._to_end: set[Future[Any]] = set()

    @classmethod
    def open(
        cls,
        path: str | Path | None = None,
        *,
        create: bool = True,
        durability: str = "full",
        read_only: bool = False,
        keys: str | Path | None = None,
        scrub: bool | Scrubber = False,
        kek: KeySource | None = None,
        tenant: str | None = None,
    ) -> Self:
        """See `ConversationLog.open`; the store is opened by `async with`."""
        opened = partial(
            ConversationLog.open, path, create=create, durability=durability, read_only=read_only
        )
        return cls(partial(opened, keys=keys, scrub=scrub, kek=kek, tenant=tenant))

    @classmethod
    def ephemeral(cls, *, scrub: bool | Scrubber = False) -> Self:
        """See `ConversationLog.ephemeral`."""
        return cls(lambda: ConversationLog.ephemeral(scrub=scrub))

    @property
    def sync(self) -> ConversationLog:
        """The log itself, for what has no twin. Its calls block."""
        if self._sync is None:
            raise StoreClosed("the log", "use it inside `async with`")
        return self._sync

    async def __aenter__(self) -> Self:
        self._readers = Threads("reader", _READERS)
        try:
            self._sync = await self._readers.make(self._opened, ConversationLog.close)
        except BaseException:  # cancelled too: the threads must end
            self._readers.stop()
            raise
        self._appender = Appender(self._sync)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Commit what was handed over, then close. Safe to call twice."""
        readers, appender, log = self._readers, self._appender, self._sync
        self._readers, self._appender, self._sync = None, None, None
        if readers is None or appender is None or log is None:
            return

        def finish() -> None:
            wait(list(self._to_end))
            appender.stop()
            log.close()

        closing = readers.run(finish)
        readers.stop()
        await asyncio.shield(closing)

    def session(self, session_id: str, *, tenant: str | None = None) -> AsyncSession:
        """The session `session_id`. Whether it is another tenant's shows at the first append."""
        check_session_id(session_id)
        return AsyncSession(self, Session(self.sync, session_id, require_own(self.sync.tenant, tenant)))

    async def sessions(self) -> list[SessionSummary]:
        """See `ConversationLog.sessions`."""
        return await self.run(self.sync.sessions)

    async def event(self, event_id: str) -> Event:
        """See `ConversationLog.event`."""
        return await self.run(lambda: self.sync.event(event_id))

    async def why(
        self,
        event_id: str,
        *,
        forward: bool = False,
        limit: int = DEFAULT_TRACE,
        view: str | None = None,
        reader: str | None = None,
        purpose: str | None = None,
    ) -> Trace:
        """See `ConversationLog.why`."""
        asked = {"view": view, "reader": reader, "purpose": purpose}
        return await self.run(lambda: self.sync.why(event_id, forward=forward, limit=limit, **asked))

    async def diff(self, a: str, b: str) -> Difference:
        """See `ConversationLog.diff`."""
        return await self.run(lambda: self.sync.diff(a, b))

    async def grant_role(self, grantee: str, role: str, *, by: str) -> None:
        """See `ConversationLog.grant_role`."""
        await self.run(lambda: self.sync.grant_role(grantee, role, by=by))

    async def revoke_role(self, holder: str, role: str, *, by: str) -> None:
        """See `ConversationLog.revoke_role`."""
        await self.run(lambda: self.sync.revoke_role(holder, role, by=by))

    async def task_kinds(self) -> dict[str, str]:
        """See `ConversationLog.task_kinds`."""
        return await self.run(self.sync.task_kinds)

    async def set_task_kind(self, kind: str, status: str | None, *, by: str) -> None:
        """See `ConversationLog.set_task_kind`."""
        await self.run(lambda: self.sync.set_task_kind(kind, status, by=by))

    async def anchor(self) -> Anchor:
        """See `ConversationLog.anchor`."""
        return await self.run(self.sync.anchor)

    async def status(self) -> dict[str, Any]:
        """See `ConversationLog.status`."""
        return await self.run(self.sync.status)

    async def export_to(
        self,
        directory: str | Path,
        *session_ids: str,
        view: str | None = None,
        reader: str | None = None,
        purpose: str | None = None,
    ) -> dict[str, int]:
        """See `ConversationLog.export_to`."""
        asked = {"view": view, "reader": reader, "purpose": purpose}
        return await self.run(lambda: self.sync.export_to(directory, *session_ids, **asked))

    async def verify(
        self, *session_ids: str, anchor: Anchor | None = None, projections: bool = False
    ) -> AsyncIterator[Finding]:
        """See `ConversationLog.verify`."""
        findings = self.sync.verify(*session_ids, anchor=anchor, projections=projections)
        while some := await self.run(lambda: list(itertools.islice(findings, _FINDINGS_AT_ONCE))):
            for finding in some:
                yield finding

    async def append_drafts(
        self, session: str, tenant: str | None, drafts: Sequence[Draft], heard: Hears = None
    ) -> list[Event]:
        """Record drafts in one session, all or none. `AsyncSession.append` and `append_many` are this."""
        if self._appender is None:
            raise StoreClosed("the log", "use it inside `async with`")
        return await self._appender.append((session, tenant, drafts, heard))

    async def run(self, call: Callable[[], Result]) -> Result:
        """The result of a blocking call, made in a reader's thread. Raises StoreClosed."""
        if self._readers is None:
            raise StoreClosed("the log", "use it inside `async with`")
        return await self._readers.run(call)

    async def to_its_end(self, call: Callable[[], Result]) -> Result:
        """What `run` gives; once called it is made, even if the caller is cancelled: `close` waits for it."""
        if self._readers is None:
            raise StoreClosed("the log", "use it inside `async with`")
        future = self._readers.submit(call)
        self._to_end.add(future)
        future.add_done_callback(self._to_end.discard)
        return await asyncio.shield(asyncio.wrap_future(future))

    async def make(self, call: Callable[[], Result], unmake: Callable[[Result], None]) -> Result:
        """What `run` gives; what is given after the caller was cancelled is unmade."""
        if self._readers is None:
            raise StoreClosed("the log", "use it inside `async with`")
        return await self._readers.make(call, unmake)

    def __repr__(self) -> str:
        return f"<async conversation log {self._sync or 'closed'}>"
