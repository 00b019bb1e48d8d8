"""Backups: taken beside writers, checked, and restored so that what was erased stays erased."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from convlog_sqlite import (
    Attachment,
    BackupRefused,
    ConversationLog,
    Draft,
    KeySource,
    KeystoreMissing,
    StoreBusy,
    StoreCorrupt,
    UnknownReference,
    restore,
)

SECRET = "the secret of the day is 4711"


@pytest.fixture
def store(store_path):
    """A closed store with a hundred events; gives its path and their ids."""
    with ConversationLog.init(store_path) as log:
        session = log.session("s")
        drafts = [Draft(type="message", agent="a", body=f"{SECRET} {n}") for n in range(100)]
        ids = [event.id for event in session.append_many(drafts)]
        session.message("with a file", agent="a", attachments=[Attachment("text/plain", b"x" * 100_000)])
    return store_path, ids


def faults(log):
    """What verify finds wrong."""
    return [found for found in log.verify() if found.severity == "fault"]


def backed_up(path, destination, **keys):
    """A backup of the store at `path`."""
    with ConversationLog.open(path) as log:
        return log.backup(destination, **keys)


class TestBackup:
    """Taking one."""

    def test_a_backup_is_one_private_file_that_holds_no_key(self, store, tmp_path):
        """It says what it is; nothing of a payload and no key is in it, and nothing else is left beside it."""
        path, _ = store
        done = backed_up(path, tmp_path / "b")
        assert done.path == str(tmp_path / "b")
        assert (done.events, done.keys) == (done.pos, None)
        assert sorted(file.name for file in (tmp_path / "b").iterdir()) == ["log.db"]
        copy = tmp_path / "b" / "log.db"
        assert (copy.stat().st_mode & 0o777, done.bytes) == (0o600, copy.stat().st_size)
        assert SECRET.encode() not in copy.read_bytes()
        keys = (path / "log.keys").read_bytes()
        slots = [keys[at : at + 40] for at in range(8192, 8192 + 40 * 20, 40)]
        assert not any(slot in copy.read_bytes() for slot in slots)
        assert [entry.name for entry in tmp_path.iterdir() if "backup-" in entry.name] == []

    def test_while_four_processes_write(self, store, tmp_path):
        """Writers go on, and the backup is a whole moment of theirs."""
        path, _ = store
        program = """
import sys
from convlog_sqlite import ConversationLog
with ConversationLog.open(sys.argv[1], durability="normal") as log:
    session = log.session(sys.argv[2])
    print("ready", flush=True)
    while not __import__("select").select([sys.stdin], [], [], 0)[0]:
        session.message("more", agent="a")
"""
        writing = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(path), f"w{n}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(4)
        ]
        for process in writing:
            assert process.stdout.readline() == "ready\n"
        with ConversationLog.open(path) as log:
            before, _ = log.reader.store_head()
            done = [log.backup(tmp_path / f"b{n}") for n in range(3)]
            after, _ = log.reader.store_head()
        for process in writing:
            process.communicate("stop\n", timeout=60)
            assert process.returncode == 0
        assert before <= done[0].pos < done[1].pos < done[2].pos <= after
        with ConversationLog.open(path, read_only=True) as log:
            assert faults(log) == []

    def test_keys_go_along_only_when_it_is_said(self, store, tmp_path):
        """A bare keystore needs a word more, one under a key-encryption key does not."""
        path, _ = store
        with ConversationLog.open(path) as log:
            with pytest.raises(BackupRefused) as refused:
                log.backup(tmp_path / "b", with_keys=True)
            assert refused.value.risk == "bare-keys"
            assert not (tmp_path / "b").exists()
            assert log.backup(tmp_path / "b", with_keys=True, bare_keys=True).keys == "bare"
        key = tmp_path / "kek"
        key.write_bytes(bytes(range(32)))
        key.chmod(0o600)
        with ConversationLog.init(tmp_path / "locked", kek=KeySource.file(key)) as log:
            log.session("s").message(SECRET, agent="a")
            assert log.backup(tmp_path / "c", with_keys=True).keys == "wrapped"

    def test_what_is_there_is_not_written_over(self, store, tmp_path):
        """An existing file or directory is refused, as is a place that does not exist."""
        path, _ = store
        (tmp_path / "b").mkdir()
        for place, risk in ((tmp_path / "b", "exists"), (tmp_path / "no" / "b", "no-directory")):
            with ConversationLog.open(path) as log, pytest.raises(BackupRefused) as refused:
                log.backup(place)
            assert refused.value.risk == risk

    def test_a_damaged_store_gives_no_backup(self, store, tmp_path):
        """What does not verify is not called a backup."""
        path, _ = store
        with ConversationLog.open(path) as log:
            with log._store.database.write() as connection:
                connection.execute("DROP TRIGGER envelope_update")
                connection.execute("UPDATE envelope SET bytes = CAST('{}' AS BLOB) WHERE pos = 9")
            with pytest.raises(StoreCorrupt):
                log.backup(tmp_path / "b")
        assert list(tmp_path.glob("*b*")) == []

    def test_a_killed_backup_leaves_nothing_under_its_name(self, store, tmp_path):
        """The next one removes what it built aside."""
        path, _ = store
        program = """
import sys, os, signal
from convlog_sqlite import ConversationLog, backup
backup.give_name = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with ConversationLog.open(sys.argv[1]) as log:
    log.backup(sys.argv[2])
"""
        killed = subprocess.run(
            [sys.executable, "-c", program, str(path), str(tmp_path / "b")], check=False, timeout=60
        )
        assert killed.returncode == -signal.SIGKILL
        assert not (tmp_path / "b").exists()
        assert list(tmp_path.glob(".convlog-backup-*"))
        backed_up(path, tmp_path / "b")
        assert list(tmp_path.glob(".convlog-backup-*")) == []


class TestRestore:
    """Putting one back."""

    def test_what_was_erased_since_stays_erased_and_everything_else_reads(self, store, tmp_path):
        """One of a hundred was redacted after the backup: the restored log says so itself, and verifies."""
        path, ids = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            log.redact(events=[ids[7]], reason="secret_leak", by="ops")
            log.session("s").message("later", agent="a")
        done = restore(tmp_path / "b", path, by="ops")
        assert (done.lost, done.erased, done.new) == (2, 1, False)
        with ConversationLog.open(path) as log:
            answers = {event_id: log.event(event_id).answer for event_id in ids}
            assert answers.pop(ids[7]) == "erased"
            assert set(answers.values()) == {"live"}
            assert log.event(ids[7]).redacted["reason"] == "secret_leak"
            assert faults(log) == []
            assert log.session("_store").tail(1)[0].kind == "store-restored"
            new = log.session("s").message("goes on", agent="a")
            assert log.event(new.id).body == "goes on"
        assert SECRET + ' 7"' not in (path / "sessions" / "s" / "conversation.jsonl").read_text()

    def test_a_mirror_that_is_ahead_is_set_aside(self, store, tmp_path):
        """Lines of events that the restored log does not have are kept, under another name."""
        path, ids = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            log.session("s").message("only in the mirror now", agent="a")
            log.redact(events=[ids[0]], reason="test", by="ops")
        restore(tmp_path / "b", path, by="ops")
        (aside,) = (path / "sessions" / "s").glob("conversation.jsonl.ahead-*")
        assert "only in the mirror now" in aside.read_text()
        assert SECRET + ' 0"' not in aside.read_text()

    def test_no_slot_is_given_twice(self, store, tmp_path):
        """Events appended after a restore have keys of their own, never those of events that are gone."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            gone = [log.session("s").message(f"gone {n}", agent="a") for n in range(5)]
            with log._store.database.read() as connection:
                used = {slot for (slot,) in connection.execute("SELECT number FROM slot")}
        restore(tmp_path / "b", path, by="ops")
        with ConversationLog.open(path) as log:
            with log._store.database.read() as connection:
                before = {slot for (slot,) in connection.execute("SELECT number FROM slot")}
            log.session("s").message("new", agent="a")
            with log._store.database.read() as connection:
                after = {slot for (slot,) in connection.execute("SELECT number FROM slot")}
            assert not (after - before) & used
            with pytest.raises(UnknownReference):
                log.event(gone[0].id)

    def test_what_was_there_is_kept_and_can_be_put_back(self, store, tmp_path):
        """The set-aside database is itself something to restore: that is the way to undo."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            later = log.session("s").message("later", agent="a")
        done = restore(tmp_path / "b", path, by="ops")
        again = restore(done.set_aside, path, by="ops")
        assert Path(done.set_aside).exists()
        assert again.set_aside != done.set_aside
        with ConversationLog.open(path) as log:
            assert log.event(later.id).body == "later"
            assert faults(log) == []

    def test_files_exported_since_are_taken_over(self, store, tmp_path):
        """A later erasure reaches an export that the backup does not know of."""
        path, ids = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            log.export_to(tmp_path / "out")
        restore(tmp_path / "b", path, by="ops")
        with ConversationLog.open(path) as log:
            assert log.redact(events=[ids[3]], reason="test", by="ops").complete
        assert SECRET + ' 3"' not in (tmp_path / "out" / "s" / "conversation.jsonl").read_text()

    def test_an_open_handle_keeps_it_out(self, store, tmp_path):
        """Nobody may have the store open; nothing has changed then."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            with pytest.raises(StoreBusy):
                restore(tmp_path / "b", path, by="ops")
            log.session("s").message("goes on", agent="a")

    def test_a_dry_run_changes_nothing(self, store, tmp_path):
        """It says what would be lost."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            log.session("s").message("later", agent="a")
        before = (path / "log.db").stat().st_ino
        assert restore(tmp_path / "b", path, by="ops", dry_run=True).lost == 1
        assert (path / "log.db").stat().st_ino == before
        assert list(path.glob("log.db.*")) == []
        with ConversationLog.open(path) as log:
            assert log.session("s").tail(1)[0].body == "later"

    def test_another_stores_backup_is_refused(self, store, tmp_path):
        """Its keys are not here."""
        path, _ = store
        with ConversationLog.init(tmp_path / "other") as log:
            log.backup(tmp_path / "b")
        with pytest.raises(BackupRefused) as refused:
            restore(tmp_path / "b", path, by="ops")
        assert refused.value.risk == "other-store"

    def test_a_new_store_takes_keys(self, store, tmp_path):
        """From the backup, or from a file that is named; without any it is refused, and nothing is made."""
        path, ids = store
        backed_up(path, tmp_path / "b")
        backed_up(path, tmp_path / "k", with_keys=True, bare_keys=True)
        with pytest.raises(BackupRefused) as refused:
            restore(tmp_path / "b", tmp_path / "new", by="ops")
        assert refused.value.risk == "no-keys"
        assert not (tmp_path / "new").exists()
        with pytest.raises(KeystoreMissing):
            restore(tmp_path / "b", tmp_path / "lost", by="ops", keys=tmp_path / "nothing")
        assert restore(tmp_path / "k", tmp_path / "new", by="ops").new
        elsewhere = tmp_path / "keys"
        elsewhere.write_bytes((path / "log.keys").read_bytes())
        restore(tmp_path / "b", tmp_path / "apart", by="ops", keys=elsewhere)
        for made in (tmp_path / "new", tmp_path / "apart"):
            with ConversationLog.open(made) as log:
                assert log.event(ids[5]).body == f"{SECRET} 5"
                assert faults(log) == []
                assert log.session("s").message("goes on", agent="a").seq == 103

    def test_a_backup_with_faults_is_refused(self, store, tmp_path):
        """A changed envelope, and a file that is no database."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        program = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("DROP TRIGGER envelope_update")
connection.execute("UPDATE envelope SET bytes = CAST('{}' AS BLOB) WHERE pos = 9")
"""
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "b" / "log.db")], check=True)
        before = (path / "log.db").stat().st_ino
        with pytest.raises(BackupRefused) as refused:
            restore(tmp_path / "b", path, by="ops")
        assert refused.value.risk == "faults"
        assert (path / "log.db").stat().st_ino == before
        assert list(path.glob("log.db.*new*")) == []

    def test_a_hold_of_then_does_not_keep_what_is_gone(self, store, tmp_path):
        """A hold that was released before the erasure stands again after the restore: the erasure is recorded."""
        path, ids = store
        with ConversationLog.open(path) as log:
            hold = log.place_hold(session="s", reason="legal_order", by="ops")
            log.backup(tmp_path / "b")
            log.release_hold(hold.id, by="ops")
            log.redact(events=[ids[1]], reason="test", by="ops")
        assert restore(tmp_path / "b", path, by="ops").erased == 1
        with ConversationLog.open(path) as log:
            redaction = log.event(log.event(ids[1]).redacted["by"])
            assert redaction.value["overridden"] == [hold.id]
            assert faults(log) == []

    @pytest.mark.parametrize("step", ["copy_database", "_check", "_exchange", "_tell", "_bury"])
    def test_a_kill_leaves_one_whole_store(self, store, tmp_path, step):
        """Before the exchange it is the old one, behind it the restored one; either opens, verifies and hides."""
        path, ids = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            log.redact(events=[ids[2]], reason="test", by="ops")
        program = f"""
import sys, os, signal
from convlog_sqlite import restoring
restoring.{step} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
restoring.restore(sys.argv[1], sys.argv[2], by="ops")
"""
        killed = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "b"), str(path)], check=False, timeout=60
        )
        assert killed.returncode == -signal.SIGKILL
        with ConversationLog.open(path) as log:
            assert log.event(ids[2]).answer == "erased"
            assert log.event(ids[3]).answer == "live"
        restore(tmp_path / "b", path, by="ops")
        with ConversationLog.open(path) as log:
            assert log.event(ids[2]).answer == "erased"
            assert faults(log) == []
        assert list(path.glob("log.db.new-*")) == []


def test_the_tens_of_thousands_that_were_not_erased_read_after_a_restore(store_path, tmp_path):
    """Erasing one of many, restored from an older backup: all the others are there."""
    many = int(os.environ.get("CONVLOG_TEST_MANY", "5000"))
    with ConversationLog.init(store_path, mirror=False) as log:
        session = log.session("s")
        for start in range(0, many, 1000):
            session.append_many(
                [Draft(type="message", agent="a", body=str(start + n)) for n in range(min(1000, many))]
            )
        log.backup(tmp_path / "b")
        erased = session.event(many // 2)
        log.redact(events=[erased.id], reason="test", by="ops")
    restore(tmp_path / "b", store_path, by="ops")
    with ConversationLog.open(store_path) as log:
        answers = [
            event.answer for page in pages(log.session("s")) for event in page if event.type == "message"
        ]
    assert (answers.count("erased"), answers.count("live")) == (1, many - 1)


def pages(session):
    """All pages of a session."""
    after = 0
    while after is not None:
        page = session.read(after=after)
        yield page
        after = page.next


def test_threads_of_one_handle_may_take_backups_at_once(store, tmp_path):
    """Each gets its own."""
    path, _ = store
    with ConversationLog.open(path) as log:
        threads = [threading.Thread(target=log.backup, args=(tmp_path / f"b{n}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all((tmp_path / f"b{n}" / "log.db").exists() for n in range(3))


def test_from_the_shell(store, tmp_path):
    """Backup and restore print what they did; restore needs a word where nobody can be asked."""
    path, _ = store

    def run(*words):
        command = [sys.executable, "-m", "convlog_sqlite", "--store", str(path), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    done = run("backup", str(tmp_path / "b"))
    assert json.loads(done.stdout)["keys"] is None
    assert run("backup", str(tmp_path / "b")).returncode == 3
    assert run("backup", str(tmp_path / "c"), "--with-keys").returncode == 3
    assert run("restore", str(tmp_path / "b"), "--by", "ops").returncode == 3
    assert json.loads(run("restore", str(tmp_path / "b"), "--by", "ops", "--dry-run").stdout)["dry_run"]
    assert json.loads(run("restore", str(tmp_path / "b"), "--by", "ops", "--yes").stdout)["lost"] == 0
    assert run("restore", str(tmp_path / "nothing"), "--by", "ops", "--yes").returncode == 4
