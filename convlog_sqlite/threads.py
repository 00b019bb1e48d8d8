"""The threads behind the async twins: what blocks runs here, never in an event loop's thread.

Appends go to one thread, which takes all that wait and commits them together. All are daemon threads: a
program ends without an explicit close.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from convlog_sqlite.accepting import Append
from convlog_sqlite.errors import StoreClosed
from convlog_sqlite.events import Event
from convlog_sqlite.log import ConversationLog

Result = TypeVar("Result")


class Runner(Protocol):
    """Who runs a blocking call in a thread of its own."""

    def run(self, call: Callable[[], Result]) -> Awaitable[Result]: ...


class Threads:
    """Daemon threads that run what is put to them, one job each at a time."""

    def __init__(self, name: str, count: int) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = count
        self._putting, self._stopped = threading.Lock(), False
        for number in range(count):
            threading.Thread(target=self._run, name=f"convlog-{name}-{number}", daemon=True).start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 it belongs to whoever waits
                future.set_exception(error)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Put `call` to the threads. Raises StoreClosed once they were told to end."""
        future: Future[Result] = Future()
        with self._putting:
            if self._stopped:
                raise StoreClosed("the log", "it was closed")
            self._jobs.put((future, call))
        return future

    def run(self, call: Callable[[], Result]) -> Awaitable[Result]:
        """The result of `call`, awaited."""
        return asyncio.wrap_future(self.submit(call))

    async def make(self, call: Callable[[], Result], unmake: Callable[[Result], None]) -> Result:
        """The result of `call`; one that nobody waits for any more is unmade."""
        future = self.submit(call)
        try:
            return await asyncio.wrap_future(future)
        except BaseException:  # cancelled too: what is made after all belongs to nobody
            future.add_done_callback(
                lambda done: None if done.cancelled() or done.exception() else unmake(done.result())
            )
            raise

    def stop(self) -> None:
        """Let the threads end once they have done what was put to them."""
        with self._putting:
            self._stopped = True
            for _ in range(self._count):
                self._jobs.put(None)


_Waiting = tuple[asyncio.AbstractEventLoop, "asyncio.Future[list[Event]]", Append]


class Appender:
    """One thread that commits what waits, together."""

    def __init__(self, log: ConversationLog) -> None:
        self._log = log
        self._jobs: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._putting, self._stopped = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="convlog-appender", daemon=True)
        self._thread.start()

    async def append(self, append: Append) -> list[Event]:
        """The events of an append, once they are committed. Raises what refused it."""
        loop = asyncio.get_running_loop()
        # The caller's future may be cancelled; the job in the queue is not: it is committed all the same.
        future: asyncio.Future[list[Event]] = loop.create_future()
        with self._putting:
            if self._stopped:  # by another loop: what is put now is never taken
                raise StoreClosed("the log", "it was closed")
            self._jobs.put((loop, future, append))
        return await future

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            waiting, last = self._together(first)
            appends = [append for _, _, append in waiting]
            outcomes: Sequence[list[Event] | BaseException]
            try:
                outcomes = self._log.append_together(appends)
            except BaseException as error:  # noqa: BLE001 it belongs to those who wait
                outcomes = [error] * len(waiting)
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[list[Event]], Any]]] = {}
            for (loop, future, _), outcome in zip(waiting, outcomes, strict=True):
                by_loop.setdefault(loop, []).append((future, outcome))
            for loop, settled in by_loop.items():
                # A loop that was closed meanwhile has nobody waiting any more.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(_hand_over, settled)
            if last:
                return

    def _together(self, first: _Waiting) -> tuple[list[_Waiting], bool]:
        waiting = [first]
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return waiting, False
            if job is None:
                return waiting, True
            waiting.append(job)

    def stop(self) -> None:
        """Return once everything that was handed over is committed."""
        with self._putting:
            self._stopped = True
            self._jobs.put(None)
        self._thread.join()


def _hand_over(settled: list[tuple[asyncio.Future[list[Event]], Any]]) -> None:
    for future, outcome in settled:
        if future.done():  # cancelled: the event is in the log, and nobody waits for it
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
