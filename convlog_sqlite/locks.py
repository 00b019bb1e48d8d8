"""Locks between processes: flocks on files and directories. They die with their holder.

A lock that is free is taken in one call. One that is taken is waited for in the kernel's own queue, by a
thread kept for that, because a blocking flock cannot be given up and a program must be able to.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from convlog_sqlite.errors import ForkedHandle, StoreBusy, StoreClosed, StoreError, os_errors
from convlog_sqlite.filesystem import PRIVATE_FILE


class _Turn:
    """One wait in the queue. `granted` is held until the lock is there."""

    def __init__(self, operation: int) -> None:
        self.operation = operation
        self.granted = threading.Lock()
        self.granted.acquire()
        self.given_up = False


class _Queue:
    """A thread that waits in the kernel's queue. It has a descriptor, and so a lock, of its own.

    A wait that was given up goes on in the kernel; when its turn comes, the lock is handed back at once.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._turns: SimpleQueue[_Turn | None] = SimpleQueue()
        self._deciding = threading.Lock()
        threading.Thread(target=self._run, name="convlog-lock", daemon=True).start()

    def _run(self) -> None:
        descriptor = self._descriptor
        while (turn := self._turns.get()) is not None:
            fcntl.flock(descriptor, turn.operation)
            with self._deciding:
                if turn.given_up:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                else:
                    turn.granted.release()
        os.close(descriptor)

    def wait(self, operation: int, seconds: float) -> bool:
        turn = _Turn(operation)
        self._turns.put(turn)
        try:
            if turn.granted.acquire(timeout=seconds):
                return True
        except BaseException:  # interrupted: what is granted from now on, nobody is here to give back
            if self._give_up(turn):
                self.release()
            raise
        return self._give_up(turn)

    def _give_up(self, turn: _Turn) -> bool:
        """Stop waiting. True when the lock was granted in the last moment."""
        with self._deciding:
            turn.given_up = turn.granted.locked()
        return not turn.given_up

    def release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        # The thread closes its descriptor itself: closing one that is being waited on is undefined.
        self._turns.put(None)

    def forked(self) -> None:
        os.close(self._descriptor)  # the thread did not come along


class FileLock:
    """An flock on a file or directory: shared by many or held by one, released when its holder dies.

    A thread lock inside keeps two threads of one process from sharing the descriptor's lock.
    """

    def __init__(self, path: Path, *, directory: bool = False) -> None:
        self.path, self._directory = path, directory
        self._descriptor = self._open()
        self._queue: _Queue | None = None
        self._through_queue = False
        self._threads = threading.Lock()
        self._refusal: type[StoreError] = StoreClosed
        _LOCKS.add(self)

    def _open(self) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY if self._directory else os.O_RDWR | os.O_CREAT
        with os_errors(self.path):
            return os.open(self.path, flags, PRIVATE_FILE)

    def try_acquire(self, operation: int = fcntl.LOCK_EX) -> bool:
        """Take the lock if nobody is in the way; `operation` is fcntl.LOCK_EX or LOCK_SH."""
        return self._threads.acquire(blocking=False) and self._flock_or_release(operation)

    def acquire(self, timeout: float, operation: int = fcntl.LOCK_EX) -> None:
        """Take the lock, waiting at most `timeout` seconds in the kernel's queue. Raises StoreBusy."""
        deadline = time.monotonic() + timeout
        if not self._threads.acquire(timeout=timeout):
            raise StoreBusy(self.path)
        try:
            if self._flock(operation):
                return
            if self._queue is None:
                self._queue = _Queue(self._open())
            self._through_queue = self._queue.wait(operation, max(0.0, deadline - time.monotonic()))
            if not self._through_queue:
                raise StoreBusy(self.path)
        except BaseException:  # an interrupt too must not leave a lock that nobody gives back
            self._undo()
            raise

    def acquire_if_free(self, operation: int = fcntl.LOCK_EX) -> bool:
        """Take the lock unless another process (or another FileLock) has it; waits for threads using this one."""
        self._threads.acquire()
        return self._flock_or_release(operation)

    def _flock_or_release(self, operation: int) -> bool:
        """With the thread lock held: take the lock, or let go of the thread lock too."""
        try:
            if self._flock(operation):
                return True
        except BaseException:  # as above
            self._undo()
            raise
        self._threads.release()
        return False

    def _undo(self) -> None:
        """Let go of whatever an acquire that failed or was interrupted has by now."""
        try:
            self._through_queue = False
            if self._queue is not None:
                self._queue.release()
            if self._descriptor >= 0:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def _flock(self, operation: int) -> bool:
        if self._descriptor < 0:
            raise self._refusal(self.path)
        try:
            fcntl.flock(self._descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def write(self, data: bytes) -> None:
        """Put `data` at the beginning of the file, for others to read while the lock is held."""
        os.pwrite(self._descriptor, data, 0)

    def read(self, count: int) -> bytes:
        """The first `count` bytes of the file."""
        return os.pread(self._descriptor, count, 0)

    def release(self) -> None:
        """Give the lock back."""
        try:
            if self._through_queue and self._queue is not None:
                self._through_queue = False
                self._queue.release()
            else:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def held(self, timeout: float, operation: int = fcntl.LOCK_EX) -> Hold:
        """Hold the lock for the block."""
        return Hold(self, timeout, operation)

    def is_in_place(self) -> bool:
        """Whether its path still names what was opened, and not by a symbolic link."""
        try:
            there, here = os.lstat(self.path), os.fstat(self._descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def close(self) -> None:
        """Close the descriptors, which releases the lock. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def _forked(self) -> None:
        # A forked child shares the open file, and with it the flock: closing the child's descriptor (not
        # unlocking, which would release the parent's lock) lets the lock die with the parent.
        if self._queue is not None:
            self._queue.forked()
            self._queue = None
        self.close()
        self._threads = threading.Lock()  # another thread may have held the old one
        self._refusal = ForkedHandle


class Hold:
    """A block in which a lock is held."""

    __slots__ = ("_lock", "_operation", "_timeout")

    def __init__(self, lock: FileLock, timeout: float, operation: int) -> None:
        self._lock, self._timeout, self._operation = lock, timeout, operation

    def __enter__(self) -> None:
        self._lock.acquire(self._timeout, self._operation)

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


class KeptLocks:
    """Locks that stay open between uses: to open one takes longer than what it is held for.

    Each is used by one thread at a time. A bounded number is kept.
    """

    def __init__(self) -> None:
        self._idle: dict[str, FileLock] = {}
        self._closed = False
        self._changing = threading.Lock()

    def take(self, name: str) -> FileLock | None:
        """The lock that was kept under `name`, unless something else has its path by now. To be given back."""
        with self._changing:
            lock = self._idle.pop(name, None)
        if lock is not None and not lock.is_in_place():
            lock.close()
            return None
        return lock

    def give_back(self, name: str, lock: FileLock) -> None:
        """Keep a lock that is not held, for the next one to take it; the one that was unused for longest goes."""
        with self._changing:
            if self._closed or self._idle.setdefault(name, lock) is not lock:
                lock.close()
            elif len(self._idle) > _MOST_KEPT:
                self._idle.pop(next(iter(self._idle))).close()

    def close(self) -> None:
        """Close those that nobody uses, and the others when they are given back. Safe to call twice."""
        with self._changing:
            self._closed = True
            while self._idle:
                self._idle.popitem()[1].close()


_MOST_KEPT: Final = 8


def holders(path: Path, byte_range: range | None = None) -> list[int]:
    """Ids of the processes that hold a lock on a file (on some of its bytes), as /proc/locks tells.

    Asked of the kernel by inode: the file is not opened, which for SQLite's files would drop its locks.
    Empty where there is no /proc/locks.
    """
    try:
        found = path.stat()
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    held = set()
    for line in lines:
        words = line.split()
        if words[1] == "->":
            continue  # it waits
        if words[5] == inode and (byte_range is None or int(words[6]) in byte_range):
            held.add(int(words[4]))
    return sorted(pid for pid in held if pid > 0)


_LOCKS: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()


def _close_inherited_locks() -> None:
    for lock in list(_LOCKS):
        lock._forked()  # noqa: SLF001 one module, one lock


os.register_at_fork(after_in_child=_close_inherited_locks)
