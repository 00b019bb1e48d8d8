"""Connections: every setting that safety rests on, one snapshot and one transaction at a time, and fork()."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time

import apsw
import pytest

from convlog_sqlite import (
    ConversationLog,
    Draft,
    ForkedHandle,
    NotAStore,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreIOError,
    StoreReadOnly,
    UnsupportedPlatform,
)
from convlog_sqlite import database as databases
from convlog_sqlite.database import Database, connect, translated
from convlog_sqlite.errors import os_errors
from convlog_sqlite.locks import FileLock
from convlog_sqlite.store.preparing import prepare

MARKS = {
    "secure_delete": 1,
    "recursive_triggers": 1,
    "cell_size_check": 1,
    "temp_store": 2,
    "mmap_size": 0,
    "journal_size_limit": 4 << 20,
    "busy_timeout": 10_000,
}
FLAGS = {
    apsw.SQLITE_DBCONFIG_DEFENSIVE: 1,
    apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA: 0,
    apsw.SQLITE_DBCONFIG_DQS_DML: 0,
    apsw.SQLITE_DBCONFIG_DQS_DDL: 0,
    apsw.SQLITE_DBCONFIG_ENABLE_ATTACH_CREATE: 0,
    apsw.SQLITE_DBCONFIG_ENABLE_ATTACH_WRITE: 0,
}


def python(program, *arguments, check=True, **more):
    """Run a program in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)
    if check:
        assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def connections(monkeypatch):
    """Every connection that is made from now on."""
    made = []

    def remember(connection):
        made.append(connection)

    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, remember])
    return made


def is_open(connection):
    """Whether a connection was not closed yet."""
    try:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1)
    except apsw.ConnectionClosedError:
        return False
    return True


class TestSettings:
    @pytest.mark.parametrize("durability", ["full", "normal"])
    def test_every_connection_of_a_whole_life_is_set(self, store_path, connections, durability):
        """Making, migrating, writing, reading, watching: no connection lacks a setting."""
        with ConversationLog.open(store_path, durability=durability) as log:
            session = log.session("s")
            session.message("one", agent="a")
            follower = session.follow(0)
            next(follower)
            log.export_to(store_path.parent / "out")
            assert list(log.verify()) == []
            log.status()
            open_now = [connection for connection in connections if is_open(connection)]
            assert len(open_now) >= 3, "a writer, a reader and a watch"
            for connection in open_now:
                assert {name: connection.pragma(name) for name in MARKS} == MARKS
                assert {flag: connection.config(flag, -1) for flag in FLAGS} == FLAGS
                assert connection.pragma("journal_mode") == "wal"
                assert connection.pragma("synchronous") == {"full": 2, "normal": 1}[durability]
            follower.close()

    def test_the_database_that_is_built_is_set_too(self, tmp_path, monkeypatch):
        """secure_delete and the rest hold from the first byte of the file on: there is one way to connect."""
        made = []

        def noting(path, **options):
            made.append(connect(path, **options))
            assert {name: made[-1].pragma(name) for name in MARKS} == MARKS
            return made[-1]

        monkeypatch.setattr("convlog_sqlite.schema.connect", noting)
        monkeypatch.setattr(databases, "connect", noting)
        counted = []
        monkeypatch.setattr(apsw, "connection_hooks", [counted.append])
        with ConversationLog.open(tmp_path / "store") as log:
            log.session("s").message("x", agent="a")
        assert len(made) == len(counted) > 2

    def test_files_are_private(self, log):
        """The directory is 0700 and every file in it 0600, whatever the umask says."""
        log.session("s").message("x", agent="a")
        assert stat.S_IMODE(log.path.stat().st_mode) == 0o700
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in log.path.rglob("*")}
        expected = {path: 0o700 if path.is_dir() else 0o600 for path in modes}
        assert modes == expected
        assert {"log.db", "log.db-wal", "log.db-shm", "log.keys"} <= {path.name for path in modes}

    def test_an_open_umask_changes_no_mode(self, store_path):
        """A umask of 0 makes nothing readable for others, a keystore elsewhere and its pointer included."""
        keys = store_path.parent / "elsewhere" / "k"
        python(
            """
            import os, sys
            from convlog_sqlite import ConversationLog
            os.umask(0)
            with ConversationLog.init(sys.argv[1], keys=sys.argv[2]) as log:
                log.session("s").message("x", agent="a")
                log.export_to(sys.argv[3])
            """,
            store_path,
            keys,
            store_path.parent / "out",
        )
        places = [store_path, *store_path.rglob("*"), keys, *(store_path.parent / "out").rglob("*")]
        assert [path for path in places if path.stat().st_mode & 0o077] == []

    def test_an_old_sqlite_is_refused(self, monkeypatch, store_path):
        """A library whose WAL can lose commits is refused before anything is made."""
        monkeypatch.setattr(apsw, "SQLITE_VERSION_NUMBER", 3_051_002)
        with pytest.raises(UnsupportedPlatform):
            ConversationLog.open(store_path)
        assert not (store_path / "log.db").exists()

    def test_another_operating_system_is_refused(self, monkeypatch, store_path):
        """Without POSIX locks there is no store."""
        monkeypatch.setattr(sys, "platform", "win32")
        with pytest.raises(UnsupportedPlatform):
            ConversationLog.open(store_path)

    def test_a_database_out_of_wal_mode_is_refused(self, store_path):
        """Whoever switched the journal mode away took safe concurrent reading with it: say so."""
        with ConversationLog.open(store_path):
            pass
        python(
            "import apsw, sys; print(apsw.Connection(sys.argv[1]).pragma('journal_mode', 'delete'))",
            store_path / "log.db",
        )
        with pytest.raises(NotAStore) as refused:
            ConversationLog.open(store_path)
        assert "WAL" in refused.value.rule


class TestBlocks:
    def test_a_write_block_is_all_or_nothing(self, log):
        """What fails inside a write block leaves nothing behind, and the next block works."""
        database = log._store.database

        def fail():
            with database.write() as connection:
                connection.execute("INSERT INTO name (text) VALUES ('lost')")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        with database.write() as connection:
            connection.execute("INSERT INTO name (text) VALUES ('kept')")
        with database.read() as connection:
            found = databases.fetch(connection, "SELECT text FROM name WHERE text IN ('lost', 'kept')")
        assert found == [("kept",)]

    def test_a_write_block_starts_as_a_writer(self, log):
        """The write lock is taken at BEGIN, so that no later statement can meet a stale snapshot."""
        with log._store.database.write() as connection:
            assert connection.txn_state() == apsw.SQLITE_TXN_WRITE

    def test_a_read_block_is_one_snapshot_and_leaves_none(self, log):
        """A commit in between is not seen inside the block; afterwards nothing is held."""
        database = log._store.database
        count = "SELECT count(*) FROM envelope"
        with ConversationLog.open(log.path) as other, database.read() as connection:
            before = databases.value(connection, count)
            other._store.writer.append(
                "s", None, [prepare(Draft(type="message", agent="a", body="x"), bytes(32))]
            )
            assert databases.value(connection, count) == before
        assert connection.txn_state() == apsw.SQLITE_TXN_NONE
        with database.read() as connection:
            assert databases.value(connection, count) == before + 2

    def test_a_failed_read_leaves_no_snapshot(self, log):
        """An error inside a read block ends it all the same."""
        database = log._store.database
        with pytest.raises(ZeroDivisionError), database.read() as connection:
            raise ZeroDivisionError
        assert connection.txn_state() == apsw.SQLITE_TXN_NONE

    def test_a_read_connection_cannot_write(self, log):
        """Reading uses a connection that was opened read-only."""
        with pytest.raises(StoreReadOnly), log._store.database.read() as connection:
            connection.execute("INSERT INTO name (text) VALUES ('x')")

    def test_a_writer_in_another_process_makes_a_caller_wait_and_then_busy(self, log, monkeypatch):
        """StoreBusy after the waiting time, nothing written, and the next try works once the writer is gone."""
        monkeypatch.setattr(databases, "BUSY_SECONDS", 0.2)
        holder = subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(
                    """
                    import sys
                    from convlog_sqlite import ConversationLog
                    with ConversationLog.open(sys.argv[1]) as log, log._store.database.write():
                        print("held", flush=True)
                        sys.stdin.read()
                    """
                ),
                str(log.path),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert holder.stdout.readline() == b"held\n"
            begun = time.monotonic()
            with pytest.raises(StoreBusy):
                log.session("s").message("x", agent="a")
            assert 0.2 <= time.monotonic() - begun < 5
            assert log.session("s").head == 0, "reading does not wait for a writer"
        finally:
            holder.communicate(b"")
        assert log.session("s").message("x", agent="a").seq == 2
        assert list(log.verify()) == []

    def test_a_watch_sees_commits_of_this_and_other_processes(self, log):
        """It says yes once for each batch of commits, whoever made them, and no in between."""
        changed = log._store.database.watch()
        assert changed()
        assert not changed()
        log.session("s").message("x", agent="a")
        assert changed()
        assert not changed()
        python(
            """
            import sys
            from convlog_sqlite import ConversationLog
            with ConversationLog.open(sys.argv[1]) as log:
                log.session("s").message("y", agent="b")
            """,
            log.path,
        )
        assert changed()
        assert not changed()


class TestClosed:
    @pytest.mark.parametrize(
        "use",
        [
            lambda log, session: session.message("x", agent="a"),
            lambda log, session: session.tail(),
            lambda log, session: next(session.follow(0, timeout=0)),
            lambda log, session: list(log.lines()),
            lambda log, session: log.mirror.update(),
            lambda log, session: list(log.verify()),
            lambda log, session: log.status(),
            lambda log, session: log.anchor(),
            lambda log, session: log.sessions(),
        ],
    )
    def test_every_use_of_a_closed_handle_says_so(self, store_path, use):
        """StoreClosed, and not what a closed descriptor happens to raise."""
        with ConversationLog.open(store_path) as log:
            session = log.session("s")
            session.message("first", agent="a")
        with pytest.raises(StoreClosed):
            use(log, session)
        log.close()

    def test_an_ephemeral_log_is_closed_too(self):
        """In memory it is the same."""
        with ConversationLog.ephemeral() as log:
            session = log.session("s")
            session.message("first", agent="a")
        with pytest.raises(StoreClosed):
            session.message("second", agent="a")


class TestErrors:
    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            (apsw.SQLITE_BUSY, StoreBusy),
            (apsw.SQLITE_BUSY_SNAPSHOT, StoreBusy),
            (apsw.SQLITE_LOCKED, StoreBusy),
            (apsw.SQLITE_FULL, StoreFull),
            (apsw.SQLITE_READONLY, StoreReadOnly),
            (apsw.SQLITE_READONLY_DIRECTORY, StoreReadOnly),
            (apsw.SQLITE_PERM, StoreReadOnly),
            (apsw.SQLITE_NOTADB, NotAStore),
            (apsw.SQLITE_CANTOPEN, StoreReadOnly),
            (apsw.SQLITE_CORRUPT, StoreCorrupt),
            (apsw.SQLITE_IOERR_FSYNC, StoreIOError),
        ],
    )
    def test_an_error_of_sqlite_becomes_one_of_ours(self, code, expected):
        """Each has the path, one line of text and SQLite's own error as its cause."""
        with pytest.raises(StoreError) as raised, translated("/a/log.db"):
            raise apsw.exception_for(code)
        assert type(raised.value) is expected
        assert raised.value.path == "/a/log.db"
        assert isinstance(raised.value.__cause__, apsw.Error)
        assert "\n" not in str(raised.value)

    def test_an_error_that_is_a_defect_passes(self):
        """A wrong statement is a mistake of ours and is not dressed up as a state of the store."""
        with pytest.raises(apsw.SQLError), translated("/a/log.db"):
            raise apsw.SQLError


APPEND = """
import sys
from convlog_sqlite import ConversationLog
with ConversationLog.open(sys.argv[1]) as log:
    log.session("s").message(sys.argv[2], agent="a")
"""


def in_child(work):
    """The exit status of a forked child that does `work`; 0 when it returned, 99 when it raised."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError


class TestFork:
    @pytest.mark.parametrize(
        "use",
        [
            lambda log, session: session.message("x", agent="a"),
            lambda log, session: session.tail(),
            lambda log, session: next(session.follow(0, timeout=0)),
            lambda log, session: log.mirror.update(),
            lambda log, session: log.mirror.update("s"),
            lambda log, session: log.export_to(log.path.parent / "out"),
            lambda log, session: list(log.verify()),
            lambda log, session: log.status(),
            lambda log, session: log.anchor(),
        ],
    )
    def test_an_inherited_handle_is_refused(self, log, use):
        """In the child every use raises ForkedHandle; in the parent nothing happened."""
        session = log.session("s")
        session.message("before", agent="a")
        keys = (log.path / "log.keys").read_bytes()

        def child():
            with pytest.raises(ForkedHandle):
                use(log, session)
            log.close()

        assert in_child(child) == 0
        assert (log.path / "log.keys").read_bytes() == keys, "the child leased no key"
        assert log.session("s").message("after", agent="a").seq == 3
        assert list(log.verify()) == []

    def test_a_new_handle_in_the_child_works(self, log):
        """The child opens the store for itself, and both go on appending."""
        session = log.session("s")
        session.message("parent", agent="a")

        def child():
            with ConversationLog.open(log.path) as mine:
                for number in range(20):
                    mine.session("s").message(f"child {number}", agent="b")
                assert list(mine.verify()) == []

        assert in_child(child) == 0
        session.message("parent again", agent="a")
        assert [event.seq for event in session.tail(100)] == list(range(1, 24))
        assert list(log.verify()) == []

    @pytest.mark.parametrize("watching", [False, True])
    def test_the_parent_may_close_while_the_child_goes_on(self, store_path, watching):
        """What the child commits after the parent's last close is in the log that everyone else reads.

        SQLite's table of locks passes to the child and the locks do not: unless the child lets go of what it
        inherited, its handle holds no lock, and the parent's close takes the WAL away under it.
        """
        parent = ConversationLog.open(store_path)
        session = parent.session("s")
        session.message("parent", agent="a")
        follower = session.follow(0)
        if watching:
            next(follower)
        opened, closed = os.pipe(), os.pipe()

        def child():
            with ConversationLog.open(store_path) as mine:
                mine.session("s").message("child 1", agent="b")
                os.write(opened[1], b"1")
                os.read(closed[0], 1)
                mine.session("s").message("child 2", agent="b")

        pid = os.fork()
        if pid == 0:
            try:
                child()
            finally:
                os._exit(0)
        assert os.read(opened[0], 1) == b"1"
        follower.close()
        parent.close()
        python(APPEND, store_path, "other")
        os.write(closed[1], b"1")
        assert os.waitpid(pid, 0)[1] == 0
        for descriptor in (*opened, *closed):
            os.close(descriptor)
        with ConversationLog.open(store_path) as log:
            bodies = [event.body for event in log.session("s").tail(4)]
            assert bodies == ["parent", "child 1", "other", "child 2"]
            assert list(log.verify()) == []

    def test_a_fork_inside_a_block_makes_the_file_unusable_in_the_child(self, log):
        """Where the child cannot let go of what it inherited it is told so, and nothing is lost without a word."""

        def child():
            with pytest.raises(ForkedHandle):
                ConversationLog.open(log.path)
            with ConversationLog.open(log.path.parent / "another") as another:
                another.session("s").message("x", agent="a")

        with log._store.database.read():
            assert in_child(child) == 0
        log.session("s").message("x", agent="a")
        assert list(log.verify()) == []

    def test_a_child_that_just_ends_harms_nothing(self, log):
        """A child that runs its interpreter down to the end takes no lock and no file from the parent."""
        session = log.session("s")
        session.message("one", agent="a")
        child = os.fork()
        if child == 0:
            os.execv(sys.executable, [sys.executable, "-c", ""])
        os.waitpid(child, 0)
        session.message("two", agent="a")
        program = """
            import os, sys
            from convlog_sqlite import ConversationLog
            log = ConversationLog.open(sys.argv[1])
            log.session("s").message("three", agent="a")
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                log.session("s").message("four", agent="a")
                log.close()
            """
        python(program, log.path)
        assert [event.body for event in session.tail(4)] == ["one", "two", "three", "four"]
        assert list(log.verify()) == []

    def test_a_watch_that_was_inherited_is_refused(self, log):
        """A follower that was started before the fork ends with ForkedHandle in the child."""
        session = log.session("s")
        session.message("one", agent="a")
        follower = session.follow(0)
        next(follower)

        def child():
            with pytest.raises(ForkedHandle):
                list(follower)

        next(follower)
        assert in_child(child) == 0
        session.message("two", agent="a")
        assert next(follower).body == "two"
        follower.close()

    def test_a_fork_while_another_thread_writes(self, log):
        """A lock that some thread held at the fork blocks nobody in the child for ever."""
        session = log.session("s")
        stop = threading.Event()

        def write():
            while not stop.is_set():
                session.message("x", agent="a")

        writer = threading.Thread(target=write)
        writer.start()

        def child():
            with pytest.raises(ForkedHandle):
                session.message("never", agent="b")
            with ConversationLog.open(log.path) as mine:
                mine.session("s").message("child", agent="b")

        try:
            codes = [in_child(child) for _ in range(10)]
        finally:
            stop.set()
            writer.join()
        assert codes == [0] * 10
        assert len(session.tail(1000, agent="b")) == 10
        assert list(log.verify()) == []

    def test_inherited_locks_die_with_the_parent(self, log):
        """When the parent is killed, a child that lives on keeps nobody from restoring or exporting."""
        program = """
            import os, sys, time
            from convlog_sqlite import ConversationLog
            log = ConversationLog.open(sys.argv[1])
            log.mirror.start()
            with log._store.database.write():
                child = os.fork()
                if child == 0:
                    sys.stdin.read()
                    os._exit(0)
                print(child, flush=True)
                time.sleep(60)
            """
        parent = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(log.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            child = int(parent.stdout.readline())
            parent.kill()
            parent.wait()
            os.kill(child, 0)  # it lives
            log.session("s").message("x", agent="a")
            log.mirror.start()
            log.mirror.stop()
        finally:
            parent.kill()
            parent.communicate()
        probe = FileLock(log.path / "log.open")
        log.close()
        assert probe.try_acquire(), "nobody has the store open any more"
        probe.close()


def test_a_lock_waits_and_gives_up(tmp_path):
    """A second holder gets StoreBusy after its waiting time, threads of one process included."""
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    with first.held(1):
        assert not second.try_acquire()
        for contender in (first, second):
            begun = time.monotonic()
            with pytest.raises(StoreBusy):
                contender.acquire(0.05)
            assert time.monotonic() - begun < 5
    with second.held(1):
        pass
    first.close()
    second.close()


def test_an_error_of_the_system_becomes_one_of_ours(tmp_path):
    """An OSError leaves as the StoreError for its number, with the path."""
    with pytest.raises(StoreReadOnly), os_errors(tmp_path):
        raise PermissionError(13, "no")
    with pytest.raises(StoreFull), os_errors(tmp_path):
        raise OSError(28, "full")
    with pytest.raises(StoreIOError) as raised, os_errors(tmp_path):
        raise OSError(5, "Input/output error")
    assert "Input/output error" in str(raised.value)


def test_an_unopened_database_makes_no_file(tmp_path):
    """A Database opens nothing until it is used, and never creates a file."""
    database = Database(str(tmp_path / "x.db"), durability="full", read_only=False, gate=None)
    with pytest.raises(StoreError), database.write():
        pass
    database.close()
    assert list(tmp_path.iterdir()) == []
