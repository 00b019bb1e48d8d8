"""Files that survive a crash, locks that die with their holder, and file systems that cannot carry a log.

Nothing here ever opens `log.db`, `log.db-wal` or `log.db-shm`: closing any descriptor of those files
drops every POSIX lock that SQLite holds on them in this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from convlog_sqlite.errors import (
    ForkedHandle,
    StoreBusy,
    StoreClosed,
    StoreError,
    UnsupportedFilesystem,
    UnsupportedPlatform,
    os_errors,
)

PRIVATE_DIRECTORY: Final = 0o700
PRIVATE_FILE: Final = 0o600

# Write-ahead logging needs memory shared by all processes that use the file; these cannot give it.
_UNSAFE_FILESYSTEMS: Final = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|drvfs|fuse\.sshfs|virtiofs|vboxsf|afs|ceph|lustre"
)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def check_platform() -> None:
    """Refuse an operating system without POSIX locks and file descriptors."""
    if sys.platform not in ("linux", "darwin"):
        raise UnsupportedPlatform(sys.platform)


def sync(descriptor: int) -> None:
    """Return once the data of the file is on the disk; on macOS past the drive's own cache too."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        fcntl.fcntl(descriptor, full)
    else:
        os.fdatasync(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(path: Path) -> None:
    """Create `path` and its parents; only the last is made private, and an existing one is left as it is."""
    with os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=PRIVATE_DIRECTORY)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, in one call where the system takes it in one."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def filesystem_kind(path: Path, mountinfo: str = "/proc/self/mountinfo") -> str | None:
    """The type of the file system that holds `path` (ext4, tmpfs, nfs4, …), or None where unknown."""
    try:
        lines = Path(mountinfo).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    target = os.path.realpath(path)
    best, kind = -1, None
    for line in lines:
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        mount = _OCTAL.sub(lambda code: chr(int(code[1], 8)), left.split()[4])
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        # The later of two mounts on one point covers the earlier.
        if inside and len(mount) >= best:
            best, kind = len(mount), right.split()[0]
    return kind


def check_filesystem(path: Path) -> None:
    """Refuse network and pass-through file systems, unless CONVLOG_ALLOW_FILESYSTEM names the type."""
    kind = filesystem_kind(path)
    if kind and _UNSAFE_FILESYSTEMS.fullmatch(kind) and os.environ.get("CONVLOG_ALLOW_FILESYSTEM") != kind:
        raise UnsupportedFilesystem(path, kind)


class FileLock:
    """An flock on a file or directory: shared by many or held by one, released when its holder dies.

    A thread lock inside keeps two threads of one process from sharing the descriptor's lock.
    """

    def __init__(self, path: Path, *, directory: bool = False) -> None:
        self.path = path
        flags = os.O_RDONLY | os.O_DIRECTORY if directory else os.O_RDWR | os.O_CREAT
        with os_errors(path):
            self._descriptor = os.open(path, flags, PRIVATE_FILE)
        self._threads = threading.Lock()
        self._refusal: type[StoreError] = StoreClosed
        _LOCKS.add(self)

    def try_acquire(self, operation: int = fcntl.LOCK_EX) -> bool:
        """Take the lock if nobody is in the way; `operation` is fcntl.LOCK_EX or LOCK_SH."""
        if not self._threads.acquire(blocking=False):
            return False
        if self._flock(operation):
            return True
        self._threads.release()
        return False

    def acquire(self, timeout: float, operation: int = fcntl.LOCK_EX) -> None:
        """Take the lock, waiting at most `timeout` seconds. Raises StoreBusy."""
        deadline = time.monotonic() + timeout
        if not self._threads.acquire(timeout=timeout):
            raise StoreBusy(self.path)
        pause = 0.0001
        while not self._flock(operation):
            if time.monotonic() > deadline:
                self._threads.release()
                raise StoreBusy(self.path)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.002)

    def acquire_if_free(self, operation: int = fcntl.LOCK_EX) -> bool:
        """Take the lock unless another process (or another FileLock) has it; waits for threads using this one."""
        self._threads.acquire()
        if self._flock(operation):
            return True
        self._threads.release()
        return False

    def _flock(self, operation: int) -> bool:
        if self._descriptor < 0:
            self._threads.release()
            raise self._refusal(self.path)
        try:
            fcntl.flock(self._descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Give the lock back."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._threads.release()

    @contextlib.contextmanager
    def held(self, timeout: float, operation: int = fcntl.LOCK_EX) -> Iterator[None]:
        """Hold the lock for the block."""
        self.acquire(timeout, operation)
        try:
            yield
        finally:
            self.release()

    def close(self) -> None:
        """Close the descriptor, which releases the lock. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _forked(self) -> None:
        # A forked child shares the open file, and with it the flock: closing the child's descriptor (not
        # unlocking, which would release the parent's lock) lets the lock die with the parent.
        self.close()
        self._threads = threading.Lock()  # another thread may have held the old one
        self._refusal = ForkedHandle


_LOCKS: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()


def _close_inherited_locks() -> None:
    for lock in list(_LOCKS):
        lock._forked()  # noqa: SLF001 one module, one lock


os.register_at_fork(after_in_child=_close_inherited_locks)
