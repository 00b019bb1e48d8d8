"""Files and locks: who holds what, until when, and where a log cannot be kept."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading

import pytest

from convlog_sqlite import (
    ConversationLog,
    NotAStore,
    StoreBusy,
    StoreFull,
    StoreIOError,
    StoreReadOnly,
    UnsupportedFilesystem,
    UnsupportedPlatform,
    filesystem,
)
from convlog_sqlite.errors import os_errors
from convlog_sqlite.locks import FileLock

MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:30 / /home rw - nfs4 server:/home rw
23 22 0:31 / /home/ann rw - btrfs /dev/sdb rw
24 21 0:32 / /mnt/with\\040blank rw - 9p share rw
25 21 0:33 / /mnt/over rw - ext4 /dev/sdc rw
26 21 0:34 / /mnt/over rw - fuse.sshfs host: rw
a line that is none
"""


@pytest.fixture
def mounts(tmp_path):
    """A mount table."""
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/x", "ext4"),
        ("/home", "nfs4"),
        ("/home/bob", "nfs4"),
        ("/homeless", "ext4"),
        ("/home/ann/x", "btrfs"),
        ("/home/annex", "nfs4"),
        ("/mnt/with blank/x", "9p"),
        ("/mnt/over/x", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_mount(mounts, path, kind):
    """The longest mount point counts, and of two on one point the later."""
    assert filesystem.filesystem_kind(path, mounts) == kind


def test_without_a_mount_table_nothing_is_known(tmp_path):
    """Where the system tells no mounts, the kind is None and nothing is refused."""
    assert filesystem.filesystem_kind(tmp_path, str(tmp_path / "none")) is None


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "virtiofs", "vboxsf"])
def test_a_network_file_system_is_refused(monkeypatch, tmp_path, kind):
    """Where write-ahead logging can corrupt, nothing is made, unless the variable names that very type."""
    monkeypatch.setattr(filesystem, "filesystem_kind", lambda _path: kind)
    with pytest.raises(UnsupportedFilesystem) as refused:
        ConversationLog.open(tmp_path / ".convlog")
    assert refused.value.kind == kind
    assert not (tmp_path / ".convlog" / "log.db").exists()
    monkeypatch.setenv("CONVLOG_ALLOW_FILESYSTEM", "other")
    with pytest.raises(UnsupportedFilesystem):
        ConversationLog.open(tmp_path / ".convlog")
    monkeypatch.setenv("CONVLOG_ALLOW_FILESYSTEM", kind)
    ConversationLog.open(tmp_path / ".convlog").close()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "apfs", None])
def test_a_local_file_system_is_not_refused(monkeypatch, tmp_path, kind):
    """Local file systems and unknown ones pass."""
    monkeypatch.setattr(filesystem, "filesystem_kind", lambda _path: kind)
    filesystem.check_filesystem(tmp_path)


def test_another_platform_is_refused(monkeypatch, tmp_path):
    """Without POSIX locks the answer is a clear refusal, and no file is made."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UnsupportedPlatform):
        ConversationLog.open(tmp_path / ".convlog")
    assert list(tmp_path.iterdir()) == []


def test_a_private_directory_is_private_and_an_existing_one_is_left(tmp_path):
    """A new directory is for its owner only, its parents are ordinary, and an old one keeps its mode."""
    old_mask = os.umask(0o022)
    try:
        filesystem.make_private_directory(tmp_path / "a" / "b")
        assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
        (tmp_path / "c").mkdir(mode=0o755)
        filesystem.make_private_directory(tmp_path / "c")
        assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o755
    finally:
        os.umask(old_mask)


def test_a_directory_below_a_file_cannot_be_made(tmp_path):
    """The error of the operating system leaves as one of ours."""
    (tmp_path / "file").write_text("")
    with pytest.raises((NotAStore, StoreIOError)):
        filesystem.make_private_directory(tmp_path / "file" / "below" / "it")


def test_write_all_goes_on_after_a_short_write(tmp_path, monkeypatch):
    """Where the system takes a few bytes at a time, all are written, in order."""
    really = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: really(descriptor, data[:3]))
    with (tmp_path / "file").open("wb") as file:
        filesystem.write_all(file.fileno(), b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EFBIG, StoreFull),
        (errno.EACCES, StoreReadOnly),
        (errno.EROFS, StoreReadOnly),
        (errno.ENOTDIR, NotAStore),
        (errno.EIO, StoreIOError),
        (errno.ENFILE, StoreIOError),
    ],
)
def test_errors_of_the_operating_system_have_a_class_of_ours(number, kind):
    """An OSError leaves as the StoreError that tells what can be done, with the path."""

    def fail():
        with os_errors("/some/file"):
            raise OSError(number, os.strerror(number))

    with pytest.raises(kind) as raised:
        fail()
    assert type(raised.value) is kind
    assert raised.value.path == "/some/file"
    assert isinstance(raised.value.__cause__, OSError)


# Locks


@pytest.fixture
def two(tmp_path):
    """Two locks on one file, as two handles have them."""
    locks = [FileLock(tmp_path / "lock") for _ in range(2)]
    yield locks
    for lock in locks:
        lock.close()


def test_a_lock_is_held_by_one(two):
    """While one holds the lock the other cannot have it, and waits no longer than it was told."""
    one, other = two
    one.acquire(1)
    assert not other.try_acquire()
    assert not other.acquire_if_free()
    with pytest.raises(StoreBusy):
        other.acquire(0.01)
    one.release()
    assert other.try_acquire()
    other.release()


def test_a_shared_lock_is_held_by_many_and_keeps_out_one(two):
    """Shared holders do not hinder each other; an exclusive one waits for all of them."""
    one, other = two
    assert one.try_acquire(fcntl.LOCK_SH)
    assert other.try_acquire(fcntl.LOCK_SH)
    other.release()
    assert not other.try_acquire()
    one.release()
    assert other.try_acquire()
    other.release()


def test_a_lock_keeps_threads_apart(tmp_path):
    """Threads that share one lock hold it one at a time."""
    lock, inside, most = FileLock(tmp_path / "lock"), [], []

    def hold():
        for _ in range(50):
            with lock.held(10):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 200
    lock.close()


def test_a_lock_is_given_back_when_the_block_fails(two):
    """An error inside `held` releases the lock."""
    one, other = two

    def fail():
        with one.held(1):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert other.try_acquire()
    other.release()


def test_a_refused_lock_can_be_taken_later(two):
    """A try that failed leaves nothing behind in its own handle."""
    one, other = two
    with one.held(1):
        for _ in range(3):
            assert not other.try_acquire()
    with other.held(1):
        pass


def test_closing_releases(two):
    """A closed lock is free for others; closing twice is once."""
    one, other = two
    one.acquire(1)
    one.close()
    one.close()
    assert other.try_acquire()
    other.release()


HOLDING = """
import sys
from pathlib import Path
from convlog_sqlite.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
lock.acquire(5)
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_lock_dies_with_its_holder(tmp_path):
    """A process that is killed leaves no lock behind."""
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        lock = FileLock(tmp_path / "lock")
        assert not lock.try_acquire()
        holder.kill()
        holder.wait()
        lock.acquire(5)
        lock.release()
        lock.close()


FORKING = """
import os, sys
from pathlib import Path
from convlog_sqlite.locks import FileLock
path = Path(sys.argv[1])
lock = FileLock(path)
lock.acquire(5)
going, told = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.write(told[1], b"x")
    os.read(going[0], 1)
    os._exit(0)
os.read(told[0], 1)
other = FileLock(path)
held = other.try_acquire()
lock.close()
print(held, other.try_acquire(), flush=True)
os.write(going[1], b"x")
os.waitpid(child, 0)
"""

# The parent waits in the queue for its lock, forks, and is gone at once; its child lives on.
ORPHANING = """
import os, sys, threading
from pathlib import Path
from convlog_sqlite.locks import FileLock
path = Path(sys.argv[1])
first, lock = FileLock(path), FileLock(path)
first.acquire(5)
waiting = threading.Thread(target=lambda: lock.acquire(5))
waiting.start()
while lock._queue is None:
    pass
first.release()
waiting.join()
if os.fork():
    os._exit(0)
print("forked", flush=True)
sys.stdin.readline()
"""


def test_a_lock_dies_with_its_holder_also_when_a_child_lives_on(tmp_path):
    """A child keeps no lock of its parent, not even one for which the parent had to wait."""
    command = [sys.executable, "-W", "ignore", "-c", ORPHANING, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "forked\n"
        assert parent.wait() == 0
        lock = FileLock(tmp_path / "lock")
        assert lock.try_acquire()
        lock.release()
        lock.close()
        parent.stdin.write("\n")


def test_a_forked_child_neither_holds_nor_frees_its_parents_lock(tmp_path):
    """While a child lives the parent's lock holds, and once the parent lets go it is free."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path / "lock")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "False True\n"


def test_the_files_of_a_store_are_private(log):
    """Everything in a store is for its owner only."""
    log.session("s").message("x", agent="a")
    loose = {
        path: oct(path.stat().st_mode)
        for path in log.path.rglob("*")
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    }
    assert loose == {}
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o700
