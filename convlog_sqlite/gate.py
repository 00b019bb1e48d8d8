"""The writer gate: which process writes next, in a fair order.

SQLite's own waiting has no order: a process in a tight loop can keep another out for seconds. Here a
writer first takes a turnstile (an flock on the store's directory) and then the gate (an flock on
`log.lock`), and lets go of the turnstile once it has the gate. So only one process waits at the gate,
nobody overtakes it, and whoever has just written queues at the turnstile like everybody else. Both locks
die with their holder.

`log.lock` holds the id of the process that wrote last and when it began (16 bytes, big-endian: process
id, nanoseconds since the epoch), so that a writer that waited in vain can say for whom.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Final

from convlog_sqlite.errors import StoreBusy
from convlog_sqlite.locks import FileLock

_HOLDER: Final = struct.Struct(">QQ")


class WriterGate:
    """The gate of one open handle. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """`path` is `log.lock`; its directory is the turnstile."""
        self.path = path
        self._turnstile = FileLock(path.parent, directory=True)
        self._gate = FileLock(path)

    def held(self, seconds: float) -> Turn:
        """Hold the gate for the block. Raises StoreBusy, naming the holder, after waiting `seconds`."""
        return Turn(self, seconds)

    def acquire(self, seconds: float) -> None:
        """What the block does when it begins."""
        deadline = time.monotonic() + seconds
        acquired = False
        try:
            self._turnstile.acquire(seconds)
            try:
                self._gate.acquire(max(0.0, deadline - time.monotonic()))
                acquired = True  # an interrupt may come while the turnstile is let go
            finally:
                self._turnstile.release()
            self._gate.write(_HOLDER.pack(os.getpid(), time.time_ns()))
        except BaseException as error:
            if acquired:
                self._gate.release()
            if isinstance(error, StoreBusy):
                raise self._busy() from None
            raise

    def release(self) -> None:
        """What the block does when it ends."""
        self._gate.release()

    def holder(self) -> tuple[int, float] | None:
        """(process id, seconds) of the writer that last went through the gate, or None."""
        found = self._gate.read(_HOLDER.size)
        if len(found) < _HOLDER.size:
            return None
        process, began = _HOLDER.unpack(found)
        return process, max(0.0, (time.time_ns() - began) / 1e9)

    def _busy(self) -> StoreBusy:
        holder = self.holder()
        return (
            StoreBusy(self.path)
            if holder is None
            else StoreBusy(self.path, holder=holder[0], held_for=holder[1])
        )

    def close(self) -> None:
        """Give both descriptors back. Safe to call twice."""
        self._gate.close()
        self._turnstile.close()


class Turn:
    """A block in which a writer has the gate."""

    __slots__ = ("_gate", "_seconds")

    def __init__(self, gate: WriterGate, seconds: float) -> None:
        self._gate, self._seconds = gate, seconds

    def __enter__(self) -> None:
        self._gate.acquire(self._seconds)

    def __exit__(self, *_error: object) -> None:
        self._gate.release()
