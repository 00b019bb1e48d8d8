"""Plain JSONL files, one a session, kept in step with the log: `<root>/<session>/conversation.jsonl`.

A file may lag, it may never be wrong. Its own last complete line is the cursor: nothing else remembers
how far it got. At each step a torn tail is cut, a file that does not match the log is rebuilt aside and
renamed, a file that is ahead of the log (the database was restored) is set aside and reported. Lines are
written whole, many in one write; where the disk is full the write is taken back, so that jq always finds
complete lines.

Locks, both flocks that die with their holder:

    <root>            exclusive: an exporter keeps these files. Shared: someone brings one up to date.
    <root>/<session>  exclusive, for one step. Taken before the read whose lines it will write, so that no
                      text read before an erasure is written after it. Never taken under the writer gate.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from convlog_sqlite import files
from convlog_sqlite.drafts import check_session_id
from convlog_sqlite.errors import (
    ConvlogError,
    InvalidEvent,
    KeystoreLocked,
    MirrorBusy,
    NotAStore,
    SessionRemoved,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreIOError,
    StoreReadOnly,
    UnknownReference,
    os_errors,
)
from convlog_sqlite.events import Locked, canonical_line
from convlog_sqlite.filesystem import (
    PRIVATE_FILE,
    make_private_directory,
)
from convlog_sqlite.follow import Waiter
from convlog_sqlite.locks import FileLock, KeptLocks
from convlog_sqlite.rewriting import FILE_NAME, LOCK_SECONDS, Cursor, Rewriting
from convlog_sqlite.store.copies import OWN_MIRROR
from convlog_sqlite.store.reader import LINES_AT_ONCE, Reader
from convlog_sqlite.store.requests import Fresh
from convlog_sqlite.tenancy import require_whole_store

_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.001

_log: Final = logging.getLogger("convlog_sqlite")


class Mirror(Rewriting):
    """Keeps the files under `root`. Safe to use from several threads."""

    def __init__(
        self,
        reader: Reader,
        root: Path,
        store: Path,
        *,
        enabled: bool,
        register: Callable[[], None] | None = None,
    ) -> None:
        """`store` is the directory that is watched for commits. `register` is called before anything is written."""
        self._reader, self.root, self._store, self._register = reader, root, store, register
        self._root_name = os.fspath(root)
        self.enabled = enabled
        self.problem: str | None = None
        self._cursors: dict[str, Cursor] = {}
        self._root_lock: FileLock | None = None
        self._kept = KeptLocks()
        self._making = threading.Lock()
        self._exporter: threading.Thread | None = None
        self._stop = threading.Event()

    def sessions(self) -> list[str]:
        """The sessions that have files here, or will have, by id."""
        return self._reader.session_ids()

    def update(self, *sessions: str) -> dict[str, int]:
        """Bring files up to date (none named: all) and return the lines written to each.

        Each is compared with the log from its first line, and made anew where it differs. Raises UnknownReference for a session that does not exist, MirrorBusy while an exporter keeps these
        files, StoreFull when the disk is full.
        """
        for session in sessions:
            if self._reader.find_session(session) is None:
                raise UnknownReference("session", session)
        return self._update(sessions or self._reader.session_ids())

    def _update(self, sessions: Sequence[str]) -> dict[str, int]:
        lock = self._lock()
        if not lock.acquire_if_free(fcntl.LOCK_SH):
            raise MirrorBusy(self.root)
        try:
            self._be_registered()
            return {session: self._bring_up(session, whole=True) for session in sessions}
        finally:
            lock.release()

    def after_append(self, session: str, fresh: Fresh | None = None) -> None:
        """Bring one file up to date after a commit, unless an exporter does. `fresh` is what was committed, if known.

        Never raises: the event is in the log, and an error would say that it is not. What went wrong is
        logged and kept in `problem` until the next success.
        """
        try:
            lock = self._lock()
            if not lock.acquire_if_free(fcntl.LOCK_SH):
                return
            try:
                own = self._kept.take(session) or self._session_lock(session)
                try:
                    self._catch_up_or_remove(session, own, fresh)
                finally:
                    self._kept.give_back(session, own)
            finally:
                lock.release()
        except (ConvlogError, OSError) as error:
            self._report(str(error))
        else:
            self.problem = None

    def follow(self, sessions: Sequence[str] = (), *, stop: threading.Event | None = None) -> None:
        """Keep the files in step until `stop` is set: one exporter at a time. Raises MirrorBusy.

        What keeps one file from being written (a full disk, a directory in its place) is reported and tried
        again each second; nothing is lost, the file lags, the others do not.
        """
        with self._exporting():
            self._follow(sessions, stop or threading.Event())
        # What was committed while the exporter was letting go saw it still running: one more look.
        with contextlib.suppress(MirrorBusy):
            self._update(self._wanted(sessions, self._reader.session_ids()))

    def start(self) -> None:
        """Keep the files in step from a thread of this process, until `stop`. Raises MirrorBusy."""
        with self._making:
            if self._exporter is not None and self._exporter.is_alive():
                return
            self._stop.clear()
            running = threading.Event()
            failed: list[ConvlogError] = []
            self._exporter = threading.Thread(
                target=self._run, args=(running, failed), name="convlog-mirror", daemon=True
            )
            self._exporter.start()
            running.wait()
            if failed:
                self._exporter = None
                raise failed[0]

    def _run(self, running: threading.Event, failed: list[ConvlogError]) -> None:
        try:
            with self._exporting():
                running.set()
                self._follow((), self._stop)
            with contextlib.suppress(MirrorBusy):
                self.update()
        except ConvlogError as error:
            failed.append(error)
            self._report(str(error))
        finally:
            running.set()

    def stop(self) -> None:
        """Stop the thread that `start` started, after a last look. Safe to call twice."""
        with self._making:
            thread, self._exporter = self._exporter, None
            self._stop.set()
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Stop, and give the lock's descriptor back. Safe to call twice."""
        self.stop()
        self._kept.close()
        with self._making:
            if self._root_lock is not None:
                self._root_lock.close()
                self._root_lock = None

    def _lock(self) -> FileLock:
        with self._making:
            if self._root_lock is None:
                make_private_directory(self.root)
                self._root_lock = FileLock(self.root, directory=True)
            return self._root_lock

    @contextlib.contextmanager
    def _exporting(self) -> Iterator[None]:
        if self.root.resolve() == (self._store / OWN_MIRROR).resolve():
            # Whoever appends leaves the writing to an exporter, for all sessions.
            require_whole_store(self._reader.tenant, "to keep the store's mirror")
        make_private_directory(self.root)
        lock = FileLock(self.root, directory=True)
        try:
            # Appenders hold the lock shared for a moment each; an exporter holds it until it ends. Not in the
            # kernel's queue: a wait given up there takes the lock once more, and an appender at that moment
            # would leave its line to an exporter that is none.
            deadline = time.monotonic() + _RETRY_SECONDS
            while not lock.try_acquire():
                if time.monotonic() > deadline:
                    raise MirrorBusy(self.root)
                time.sleep(_LOOK_SECONDS)
            self._be_registered()
            yield
        finally:
            lock.close()

    def _be_registered(self) -> None:
        # Under the lock that forgetting the directory takes: what is written here is known to the store.
        if self._register is not None:
            self._register()

    @contextlib.contextmanager
    def withdrawn(self) -> Iterator[list[Path]]:
        """Whatever files of ours are left below the root, while nobody else writes there. Raises MirrorBusy."""
        require_whole_store(self._reader.tenant, "to look at all files")
        if not self.root.exists():
            yield []
            return
        with self._exporting(), os_errors(self.root):
            below = [entry for entry in sorted(self.root.iterdir()) if entry.is_dir()]
            yield [file for entry in below for file in files.beside(entry / FILE_NAME)]

    def _follow(self, sessions: Sequence[str], stop: threading.Event) -> None:
        waiter = Waiter(self._reader.database, self._store)
        watcher = threading.Thread(target=_interrupt_when, args=(stop, waiter), daemon=True)
        watcher.start()
        seen, pending = 0, set(self._wanted(sessions, self._reader.session_ids()))
        try:
            while True:
                pending = self._bring_up_all(pending)
                if not waiter.wait(_RETRY_SECONDS if pending else None) and stop.is_set():
                    return
                head, _ = self._reader.store_head()
                pending |= set(self._wanted(sessions, self._reader.changed_sessions(seen)))
                seen = head
        finally:
            stop.set()
            watcher.join()
            waiter.close()

    def _bring_up_all(self, sessions: set[str]) -> set[str]:
        """Bring files up to date; the sessions that could not be are returned, to be tried again."""
        left = set()
        for session in sorted(sessions):
            try:
                self._bring_up(session)
            except (
                StoreFull,
                StoreBusy,
                StoreIOError,
                StoreReadOnly,
                NotAStore,
            ) as error:  # NotAStore: a file in the way
                left.add(session)
                self._report(str(error))
        if not left:
            self.problem = None
        return left

    def _wanted(self, sessions: Sequence[str], found: Sequence[str]) -> Sequence[str]:
        return [session for session in found if session in sessions] if sessions else found

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("mirror: %s", problem)
        self.problem = problem

    def _bring_up(self, session: str, *, whole: bool = False) -> int:
        """Bring one file up to date, `whole`: compared from its first line; the number of lines written."""
        lock = self._session_lock(session)
        try:
            return self._catch_up_or_remove(session, lock, None, whole=whole)
        finally:
            lock.close()

    def _catch_up_or_remove(
        self, session: str, lock: FileLock, fresh: Fresh | None, *, whole: bool = False
    ) -> int:
        try:
            return (self._repair(session) if whole else 0) + self._catch_up(session, lock, fresh)
        except (SessionRemoved, StoreIOError):
            if not self._reader.is_removed(session):
                raise
            self.remove(session)  # a directory that was made again a moment too late
            return 0

    def _catch_up(self, session: str, lock: FileLock, fresh: Fresh | None) -> int:
        """Write what the file does not have yet, and return the number of lines."""
        name = f"{self._root_name}/{session}/{FILE_NAME}"  # a Path takes longer than the write
        written = 0
        while True:
            with lock.held(LOCK_SECONDS), os_errors(name):
                count = self._step(session, name, fresh)
            written += count
            # A block that is not full was the last: who appended since then comes after us.
            if count < LINES_AT_ONCE:
                return written

    def _repair(self, session: str) -> int:
        """Compare a whole file with the log; make it anew where it differs, and return the lines written."""
        lock = self._session_lock(session)
        try:
            with lock.held(LOCK_SECONDS), os_errors(self.path(session)):
                if self._is_right(session):
                    return 0
                self._keep_if_ahead(session)
                return self._rebuild(session, self.path(session))
        finally:
            lock.close()

    def _is_right(self, session: str) -> bool:
        """Whether the file's lines are those of the log, as far as both go; a torn tail does no harm."""
        try:
            descriptor = os.open(self.path(session), os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return True
        with os.fdopen(descriptor, "rb") as file:
            seq = 0
            while True:
                data, seq, count = self._lines(session, seq)
                found = file.read(len(data))
                if not count:
                    return True  # what goes on behind the log is looked at by the next step
                if found != data:
                    return data.startswith(found[: found.rfind(b"\n") + 1]) and len(found) < len(data)

    def _keep_if_ahead(self, session: str) -> None:
        """A file that is not the log's and goes on behind its end has lines that are nowhere else: it is set aside."""
        descriptor = os.open(self.path(session), os.O_RDWR | os.O_NOFOLLOW)
        try:
            line = files.last_line(descriptor)
        finally:
            os.close(descriptor)
        seq = None if line is None else files.seq_of(line)
        if seq is not None and seq > self._reader.head(session):
            self._set_aside(session)

    def _set_aside(self, session: str) -> None:
        aside = self.path(session).with_name(f"{FILE_NAME}{files.AHEAD}{time.time_ns()}")
        self.path(session).rename(aside)
        self._report(f"{aside}: set aside, it is ahead of the log (was an older database restored?)")

    def _session_lock(self, session: str) -> FileLock:
        if self._reader.tenant is not None:
            self._reader.require_session(
                session
            )  # to this mirror the lines of others are none: it would write that
        try:
            check_session_id(session)  # a database that somebody else made may name any path
        except InvalidEvent as refused:
            raise StoreIOError(self.root, f"no file is written: {refused.rule}") from None
        directory = self.root / session
        try:
            lock = FileLock(directory, directory=True)
        except StoreError:
            make_private_directory(directory)
            lock = FileLock(directory, directory=True)
        if directory.is_symlink():
            lock.close()
            raise StoreIOError(directory, "a symbolic link is not followed")
        return lock

    def _step(self, session: str, name: str, fresh: Fresh | None) -> int:
        """One read and one write, under the session's lock; the number of lines written."""
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, PRIVATE_FILE)
        try:
            seq = self._cursor(session, descriptor)
            if seq is None:
                return self._rebuild(session, self.path(session))
            if fresh is not None and seq >= fresh.last:
                return 0  # another appender wrote ours with its own
            data, last, count = self._fresh_lines(fresh, seq) or self._lines(session, seq)
            if count:
                files.append_whole(descriptor, data)
            self._cursors[session] = _cursor_at(descriptor, last if count else seq)
            return count
        finally:
            os.close(descriptor)

    def _fresh_lines(self, fresh: Fresh | None, after: int) -> tuple[bytes, int, int] | None:
        """What `_lines` gives, of events that need not be read back; None where they must be.

        They were known before the file's lock was taken. If one was erased meanwhile and the file rewritten, its
        key was destroyed before; and while all keys are there, the rewriting is still to come: we hold the lock.
        """
        if fresh is None or fresh.first != after + 1:
            return None
        if self._reader.opener.keystore.any_erased(fresh.slots):
            return None
        return b"".join([event.line for event in fresh.events]), fresh.last, len(fresh.events)

    def _lines(self, session: str, after: int) -> tuple[bytes, int, int]:
        """(lines, seq of the last, their number) of one block of events."""
        block = next(self._reader.blocks(session, after), [])
        if any(isinstance(payload, Locked) for _, _, payload in block):
            raise KeystoreLocked(self.root, "the keystore is locked: nothing is exported over good lines")
        data = b"".join(canonical_line(envelope, payload) for _, envelope, payload in block)
        return data, block[-1][0] if block else after, len(block)

    def _cursor(self, session: str, descriptor: int) -> int | None:
        """The seq of the file's last line, once its tail is whole; None when the file must be rebuilt."""
        known = self._cursors.get(session)
        if known is not None and known == _cursor_at(descriptor, known.seq):
            return known.seq
        line = files.last_line(descriptor)
        if line is None:
            return 0
        seq = files.seq_of(line)
        head = self._reader.head(session)
        if seq is not None and seq > head:
            self._set_aside(session)
            return None
        if seq is None or next(self._reader.lines(session, seq - 1, seq + 1), None) != line:
            return None
        return seq

    def _rebuild(self, session: str, path: Path) -> int:
        """Write the file anew beside itself and put it in its place."""
        with files.made_anew(path) as descriptor:
            _, total = self._write_from(session, descriptor, 0)
        self._cursors.pop(session, None)
        return total


def _interrupt_when(stop: threading.Event, waiter: Waiter) -> None:
    stop.wait()
    waiter.interrupt()


def _cursor_at(descriptor: int, seq: int) -> Cursor:
    found = os.fstat(descriptor)
    return Cursor(found.st_ino, found.st_size, found.st_mtime_ns, seq)
