"""`append --stream`: a draft a line comes in, an acknowledgement a line goes out, for programs in any language.

Lines that wait in the pipe together are committed in one transaction, each all or none by itself, and are
acknowledged in order once they are durable. A program that writes one line and waits is answered at once; one that
writes many before it reads is not kept waiting until its acknowledgements are more than `_MOST_UNREAD` bytes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from convlog_sqlite import (
    RECORDED,
    ConversationLog,
    ConvlogError,
    Draft,
    EventTooLarge,
    Refused,
    StoreBusy,
    StoreError,
    StoreFull,
)
from convlog_sqlite.cli.drafting import draft_of
from convlog_sqlite.cli.failing import DONE, INTERRUPTED, status_of

LONGEST: Final = 64 << 20  # bytes of a line; an event takes 16 MiB, this leaves room for attachments
_CHUNK: Final = 1 << 16
_MOST_LINES: Final = 100  # committed together: other writers wait that long, and more saves little
_MOST_BYTES: Final = 8 << 20
_MOST_UNREAD: Final = 16 << 20
_LAST_SECONDS: Final = 2.0  # for a reader, once a signal said to end

Line = tuple[int, bytes | Refused]


def run(log: ConversationLog, session: str, agent: str | None) -> int:
    """Append what comes in until it ends; the exit status. `agent` is the author of drafts that name none.

    Raises the StoreErrors with which nothing more can be appended, once they were acknowledged, and OSError
    when an acknowledgement cannot be written.
    """
    lines, answers = _Lines(sys.stdin.fileno()), _Answers(sys.stdout.fileno())
    appender = _Appender(log, log.session(session).id, agent)
    with _signals() as signalled:
        interrupted = False
        while not (lines.ended or appender.broken or interrupted):
            has_room = answers.unread < _MOST_UNREAD
            wanted = [lines.descriptor] if has_room and not lines.waiting else []
            at_once = 0 if has_room and lines.waiting else None
            ready, free, _ = select.select([signalled, *wanted], answers.waiting, [], at_once)
            interrupted = signalled in ready
            if free:
                answers.write()
            elif has_room and (lines.waiting or wanted[0] in ready) and not interrupted:
                answers.add(appender.append(lines.take()))
        interrupted = answers.finish(signalled, interrupted=interrupted)
    if appender.broken is not None:
        raise appender.broken
    return INTERRUPTED if interrupted else appender.status


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor to select on, which can be read after a SIGINT or SIGTERM: neither stops a commit half way."""
    signalled, waker = os.pipe()
    os.set_blocking(waker, False)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    waker_before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    try:
        yield signalled
    finally:
        signal.set_wakeup_fd(waker_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(signalled)
        os.close(waker)


class _Lines:
    """The lines of a descriptor, numbered from 1. Of one that is too long, only its length is kept."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._closed = False
        self._read: deque[Line] = deque()
        self._number = 1
        self._begun: list[bytes] = []
        self._size = 0

    @property
    def waiting(self) -> bool:
        """Whether there are lines that were read and not taken."""
        return bool(self._read)

    @property
    def ended(self) -> bool:
        return self._closed and not self._read

    def take(self) -> list[Line]:
        """Some of the lines that wait, blank ones apart. Blocks only where nothing does."""
        taken = 0
        while not self._closed and len(self._read) < _MOST_LINES and taken < _MOST_BYTES:
            if (taken or self._read) and not select.select([self.descriptor], [], [], 0)[0]:
                break
            try:
                chunk = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                break
            except ConnectionResetError:  # a socket whose other end died
                chunk = b""
            taken += len(chunk)
            self._split(chunk)
        return [self._read.popleft() for _ in range(min(len(self._read), _MOST_LINES))]

    def _split(self, chunk: bytes) -> None:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._go_on(end)
            self._end()
        self._go_on(rest)
        if not chunk:
            self._closed = True
            self._end()

    def _go_on(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= LONGEST:
            self._begun.append(part)
        else:
            self._begun.clear()

    def _end(self) -> None:
        number, size, line = self._number, self._size, b"".join(self._begun)
        self._number, self._size = number + 1, 0
        self._begun.clear()
        if size > LONGEST:
            self._read.append((number, EventTooLarge(size, LONGEST)))
        elif line.strip():
            self._read.append((number, line))


class _Answers:
    """Acknowledgements on their way out. What was not read yet is kept, and in order."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unread = bytearray()

    @property
    def unread(self) -> int:
        return len(self._unread)

    @property
    def waiting(self) -> list[int]:
        return [self._descriptor] if self._unread else []

    def add(self, answers: Sequence[dict[str, Any]]) -> None:
        for answer in answers:
            self._unread += json.dumps(answer, separators=(",", ":")).encode() + b"\n"

    def write(self) -> None:
        """Write as much as is sure not to block where `select` said that there is room."""
        try:
            written = os.write(self._descriptor, self._unread[: select.PIPE_BUF])
        except BlockingIOError:
            return
        except ConnectionResetError:
            raise BrokenPipeError from None
        del self._unread[:written]

    def finish(self, signalled: int, *, interrupted: bool) -> bool:
        """Write what is left. A reader may take its time, until a signal says to end: whether one did."""
        deadline = time.monotonic() + _LAST_SECONDS
        while self._unread:
            left = max(0.0, deadline - time.monotonic()) if interrupted else None
            ready, free, _ = select.select([] if interrupted else [signalled], [self._descriptor], [], left)
            if ready:
                interrupted, deadline = True, time.monotonic() + _LAST_SECONDS
            elif free:
                self.write()
            else:
                break
        return interrupted


class _Appender:
    """Appends lines, each by itself, and says what became of it."""

    def __init__(self, log: ConversationLog, session: str, agent: str | None) -> None:
        self._log, self._session, self._agent = log, session, agent
        self.status = DONE
        self.broken: StoreError | None = None

    def append(self, lines: Sequence[Line]) -> list[dict[str, Any]]:
        """The answer to each line, in order."""
        read = [(number, self._read(line)) for number, line in lines]
        drafts = [draft for _, draft in read if isinstance(draft, Draft)]
        outcomes = iter(
            self._log.append_together([(self._session, None, [draft], RECORDED) for draft in drafts])
        )
        return [
            self._answer(number, next(outcomes) if isinstance(found, Draft) else found)
            for number, found in read
        ]

    def _read(self, line: bytes | Refused) -> Draft | Refused:
        if isinstance(line, Refused):
            return line
        try:
            return draft_of(line, self._agent)
        except Refused as refused:
            return refused

    def _answer(self, number: int, outcome: Any) -> dict[str, Any]:
        if not isinstance(outcome, ConvlogError):
            return {"line": number, "id": outcome[0].id, "seq": outcome[0].seq}
        self.status = max(self.status, status_of(outcome))
        answer: dict[str, Any] = {"line": number, "error": type(outcome).__name__}
        answer |= {key: value for key, value in vars(outcome).items() if value is not None}
        if isinstance(outcome, StoreBusy | StoreFull):
            answer["retry"] = True
        elif isinstance(outcome, StoreError):
            self.broken = self.broken or outcome
        return answer
