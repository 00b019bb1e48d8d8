"""status: what a store is, who uses it, and that looking changes nothing."""

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import apsw
import pytest

from convlog_sqlite import ConversationLog, schema
from convlog_sqlite.locks import holders

LOCKS = Path("/proc/locks")
needs_locks = pytest.mark.skipif(not LOCKS.exists(), reason="this system does not say who holds a lock")


def start(program, *arguments):
    """A program in a process of its own, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_it_says_what_the_store_is(log):
    """Place, identity, counts and sizes, all of it JSON."""
    log.session("s").message("x", agent="a")
    said = json.loads(json.dumps(log.status()))
    assert said["store"] == str(log.path)
    assert said["store_id"] == log.anchor().store
    assert said["events"] == log.anchor().pos
    assert said["sessions"] == 2
    assert said["schema"] == len(schema.known())
    assert said["sqlite"] == apsw.sqlite_lib_version()
    assert said["private"] is True
    assert said["database"]["bytes"] == (log.path / "log.db").stat().st_size
    assert said["wal"]["bytes"] == (log.path / "log.db-wal").stat().st_size
    assert said["keystore"]["bytes"] == (log.path / "log.keys").stat().st_size
    assert said["keystore"]["locked"] is False
    assert "erasure, not secrecy" in said["keystore"]["protection"]
    mirrors = [log.mirror.path(name) for name in ("s", "_store")]
    assert said["mirror"]["files"] == 2
    assert said["mirror"]["bytes"] == sum(path.stat().st_size for path in mirrors)
    assert said["mirror"]["enabled"] is said["mirror"]["plaintext"] is True
    assert said["mirror"]["problem"] is None


def test_a_directory_open_to_others_is_not_private(log):
    """Whoever loosened the mode is told."""
    log.path.chmod(0o755)
    assert log.status()["private"] is False


def test_looking_changes_nothing(log):
    """No event, no file and no byte of a mirror comes from a look."""
    log.session("s").message("x", agent="a")
    before = {path: path.stat().st_size for path in log.path.rglob("*")}
    head = log.anchor().chain
    for _ in range(3):
        log.status()
    assert {path: path.stat().st_size for path in log.path.rglob("*")} == before
    assert log.anchor().chain == head


@needs_locks
def test_processes_that_have_it_open_are_named(log):
    """Every process with a handle, whoever writes, and the exporter, by process id; gone when they end."""
    assert log.status()["handles"] == [os.getpid()]
    program = """
        import sys
        from convlog_sqlite import ConversationLog
        log = ConversationLog.open(sys.argv[1])
        log.mirror.start()
        with log._store.database.write():
            print("ready", flush=True)
            sys.stdin.readline()
        """
    other = start(program, log.path)
    assert other.stdout.readline() == "ready\n"
    said = log.status()
    assert said["handles"] == sorted([os.getpid(), other.pid])
    assert said["writer"] == [other.pid]
    assert said["mirror"]["exporter"] == [other.pid]
    other.kill()
    other.communicate()
    said = log.status()
    assert said["handles"] == [os.getpid()]
    assert said["writer"] == said["mirror"]["exporter"] == []


@needs_locks
def test_a_reader_that_pins_the_wal_is_named(log):
    """Frames that cannot be moved are counted, and the process that holds them back is among the readers."""
    log.session("s").message("x", agent="a")
    assert log.status()["wal"]["pinned_frames"] == 0
    program = """
        import sys
        from convlog_sqlite import ConversationLog
        with ConversationLog.open(sys.argv[1]) as log, log._store.database.read() as connection:
            connection.execute("SELECT max(pos) FROM envelope").fetchall()
            print("ready", flush=True)
            sys.stdin.readline()
        """
    reader = start(program, log.path)
    assert reader.stdout.readline() == "ready\n"
    log.session("s").message("y", agent="a")
    wal = log.status()["wal"]
    assert wal["pinned_frames"] > 0
    assert wal["readers"] == [reader.pid]
    reader.communicate("\n")
    wal = log.status()["wal"]
    assert wal["pinned_frames"] == 0
    assert wal["readers"] == []


def test_an_ephemeral_log_has_a_status(log):
    """It is in memory, and says so."""
    with ConversationLog.ephemeral() as memory:
        memory.session("s").message("x", agent="a")
        said = memory.status()
    assert said["store"] == said["keystore"]["path"] == ":memory:"
    assert "mirror" not in said
    assert "wal" not in said


@needs_locks
def test_who_waits_for_a_lock_does_not_hold_it(tmp_path):
    """A process in the kernel's queue is no holder; a file that is gone has none."""
    lock = tmp_path / "lock"
    lock.write_text("")
    program = """
        import fcntl, sys
        file = open(sys.argv[1])
        print("ready", flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
        print("held", flush=True)
        sys.stdin.readline()
        """
    first = start(program, lock)
    assert [first.stdout.readline(), first.stdout.readline()] == ["ready\n", "held\n"]
    second = start(program, lock)
    assert second.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 30
    while not any(
        "->" in line and str(second.pid) in line.split() for line in LOCKS.read_text().splitlines()
    ):
        assert time.monotonic() < deadline, "it never waited"
        time.sleep(0.002)
    assert holders(lock) == [first.pid]
    first.communicate("\n")
    assert second.stdout.readline() == "held\n"
    assert holders(lock) == [second.pid]
    second.communicate("\n")
    assert holders(lock) == []
    assert holders(tmp_path / "gone") == []
