"""What an erasure does to the file of a session: it is written anew, or it goes."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from convlog_sqlite import files
from convlog_sqlite.errors import os_errors
from convlog_sqlite.filesystem import sync, write_all
from convlog_sqlite.locks import FileLock
from convlog_sqlite.store.reader import Reader

FILE_NAME: Final = "conversation.jsonl"
LOCK_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a file of this identity and size ends: after event `seq`."""

    inode: int
    size: int
    modified: int
    seq: int


class Rewriting:
    """The part of a mirror that erasures use. `Mirror` is one."""

    root: Path
    _reader: Reader
    _cursors: dict[str, Cursor]

    @abstractmethod
    def _session_lock(self, session: str) -> FileLock: ...

    @abstractmethod
    def _lines(self, session: str, after: int) -> tuple[bytes, int, int]: ...

    def path(self, session: str) -> Path:
        """The file of a session."""
        return self.root / session / FILE_NAME

    def rewrite(self, session: str) -> None:
        """Write a session's file anew from the log, and overwrite the bytes of the old one where they lie.

        That of a session that is removed is removed.

        What lies beside it goes with it, overwritten and removed: a file that a crash left, and one that was
        set aside because it was ahead of the log: it may hold what is to be erased, and nothing can tell.

        Whoever appends meanwhile waits for the last lines only: what is written before the lock is taken was
        read after the erasure, and the old bytes have no name that anybody opens. One caller at a time.
        """
        path = self.path(session)
        if not path.parent.is_dir():
            return
        if self._reader.is_removed(session):
            self.remove(session)
            return
        lock = self._session_lock(session)
        try:
            with os_errors(path), files.replacement(path) as new:
                seq, _ = self._write_from(session, new.descriptor, 0) if path.exists() else (0, 0)
                sync(new.descriptor)
                with lock.held(LOCK_SECONDS):
                    self._cursors.pop(session, None)
                    if new.begin():
                        self._write_from(session, new.descriptor, seq)
                        new.put()
        finally:
            lock.close()

    def remove(self, session: str) -> None:
        """Destroy a session's file, what lies beside it, and its directory, unless somebody put more there."""
        path = self.path(session)
        if not path.parent.is_dir():
            return
        lock = self._session_lock(session)
        try:
            with lock.held(LOCK_SECONDS), os_errors(path):
                self._cursors.pop(session, None)
                files.destroy_all(path)
                with contextlib.suppress(OSError):  # what others put there is not ours to remove
                    path.parent.rmdir()
        finally:
            lock.close()

    def _write_from(self, session: str, descriptor: int, seq: int) -> tuple[int, int]:
        """Write the lines behind `seq`; the seq of the last one, and how many they were."""
        total = 0
        while True:
            data, seq, count = self._lines(session, seq)
            if not count:
                return seq, total
            write_all(descriptor, data)
            total += count
