"""Making a store: where it may be, what a crash leaves, and what is never taken for new."""

import shutil
import subprocess
import sys

import pytest

from convlog_sqlite import ConversationLog, KeystoreUnusable, NotAStore


def test_git_is_kept_out(log):
    """Neither keys nor plaintext are staged by `git add -A`."""
    assert (log.path / ".gitignore").read_text() == "*\n"


def test_a_database_that_is_gone_is_not_replaced(store_path):
    """A keystore without its database is a damaged store, however young: nothing new is made over it."""
    with ConversationLog.open(store_path) as log:
        log.session("s").message("x", agent="a")
    for file in store_path.glob("log.db*"):
        file.unlink()
    for attempt in (ConversationLog.open, ConversationLog.init):
        with pytest.raises(KeystoreUnusable):
            attempt(store_path)
    assert not (store_path / "log.db").exists()


def test_the_keystore_of_another_store_is_not_adopted(tmp_path):
    """`keys=` that names an existing keystore is refused: two stores never share one."""
    with ConversationLog.init(tmp_path / "one", keys=tmp_path / "keys") as log:
        log.session("s").message("x", agent="a")
    before = (tmp_path / "keys").read_bytes()
    with pytest.raises(KeystoreUnusable):
        ConversationLog.init(tmp_path / "two", keys=tmp_path / "keys")
    assert not (tmp_path / "two" / "log.db").exists()
    assert (tmp_path / "keys").read_bytes() == before


def test_a_directory_with_other_things_in_it_is_refused(tmp_path):
    """A store's files are not scattered among others, and the store beside them is named."""
    (tmp_path / "README").write_text("mine")
    with pytest.raises(NotAStore):
        ConversationLog.open(tmp_path)
    ConversationLog.init(tmp_path / ".convlog").close()
    with pytest.raises(NotAStore) as raised:
        ConversationLog.open(tmp_path)
    assert str(tmp_path / ".convlog") in str(raised.value)
    assert {"README", ".convlog"} == {path.name for path in tmp_path.iterdir()}


KILLED = """
import os, signal, sys
from convlog_sqlite import ConversationLog, schema
real, names = schema.link_into_place, []
def link(built, path):
    names.append(path.name)
    if len(names) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(built, path)
schema.link_into_place = link
ConversationLog.init(sys.argv[1])
"""


@pytest.mark.parametrize("step", [1, 2])
def test_a_crash_while_it_is_made(store_path, step):
    """Killed before the keystore or before the database has its name, the next open makes or finishes the store."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(store_path), str(step)], check=False)
    assert done.returncode == -9
    assert not (store_path / "log.db").exists()
    with ConversationLog.open(store_path) as log:
        assert log.created
        log.session("s").message("x", agent="a")
        assert list(log.verify()) == []
    assert not [path for path in store_path.iterdir() if ".new-" in path.name]


def test_a_file_altered_in_the_middle_is_made_anew(log):
    """An explicit update compares the whole file; a store copied with its directory keeps its mirror."""
    session = log.session("s")
    for number in range(10):
        session.message(f"number {number}", agent="a")
    file = log.mirror.path("s")
    file.write_bytes(file.read_bytes().replace(b"number 3", b"number X"))
    assert ["mirror-differs"] == [finding.rule for finding in log.verify()]
    log.mirror.update("s")
    assert file.read_bytes() == b"".join(log.lines("s"))
    assert list(log.verify()) == []


def test_a_copied_store_is_a_store(log, tmp_path):
    """A directory that nobody has open can be copied whole, keys included."""
    log.session("s").message("x", agent="a")
    log.close()
    shutil.copytree(log.path, tmp_path / "copy")
    with ConversationLog.open(tmp_path / "copy", create=False) as copy:
        assert copy.session("s").tail(1)[0].body == "x"
