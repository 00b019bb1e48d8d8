"""Where the bytes of a keystore live: a file on disk, or memory for an ephemeral log."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from convlog_sqlite.errors import KeystoreMissing, KeystoreUnusable, StoreBusy, StoreReadOnly
from convlog_sqlite.filesystem import sync

_LOCK_SECONDS: Final = 10.0  # held for one write and one sync


class SlotFile(Protocol):
    """Where the bytes of a keystore live."""

    def read(self, count: int, offset: int) -> bytes: ...
    def write(self, data: bytes, offset: int) -> None: ...
    def size(self) -> int: ...
    def sync(self) -> None: ...
    def lock(self) -> None: ...
    def unlock(self) -> None: ...
    def is_still(self, data: bytes, places: Sequence[int]) -> bool:
        """Whether this is still the file of its name, and holds `data` at one of `places`."""

    def close(self) -> None: ...


class DiskFile:
    """The keystore on disk."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._name = os.fspath(path)
        try:
            self._descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        except FileNotFoundError:
            raise KeystoreMissing(path) from None
        except PermissionError:
            raise StoreReadOnly(path) from None
        except OSError as error:
            raise KeystoreUnusable(path, error.strerror) from error
        found = os.fstat(self._descriptor)
        self._identity = (found.st_dev, found.st_ino)

    def read(self, count: int, offset: int) -> bytes:
        return os.pread(self._descriptor, count, offset)

    def write(self, data: bytes, offset: int) -> None:
        view, at = memoryview(data), offset
        while view:
            done = os.pwrite(self._descriptor, view, at)
            view, at = view[done:], at + done

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        sync(self._descriptor)

    def lock(self) -> None:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreBusy(self._name, "another process holds the keystore; try again") from None
                time.sleep(0.001)

    def unlock(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def is_still(self, data: bytes, places: Sequence[int]) -> bool:
        # Asked at every access: two calls of the system, and little around them.
        for at in places:
            if os.pread(self._descriptor, len(data), at) == data:
                break
        else:
            return False
        try:
            found = os.stat(self._name)  # noqa: PTH116 Path.stat takes ten times as long
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class MemoryFile:
    """The keystore of an ephemeral log: gone when the process ends, never on a disk."""

    def __init__(self, data: bytes) -> None:
        self._data = bytearray(data)

    def read(self, count: int, offset: int) -> bytes:
        return bytes(self._data[offset : offset + count])

    def write(self, data: bytes, offset: int) -> None:
        self._data.extend(bytes(max(0, offset + len(data) - len(self._data))))
        self._data[offset : offset + len(data)] = data

    def size(self) -> int:
        return len(self._data)

    def is_still(self, data: bytes, places: Sequence[int]) -> bool:
        return any(self.read(len(data), at) == data for at in places)

    def sync(self) -> None: ...
    def lock(self) -> None: ...
    def unlock(self) -> None: ...
    def close(self) -> None: ...
