"""Backups: taken beside writers, checked, and restored so that what was erased stays erased."""

import contextlib
import json
import os
import random
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
    ConvlogError,
    Draft,
    KeySource,
    KeystoreLocked,
    KeystoreMissing,
    KeystoreOlder,
    RetentionPolicy,
    StoreBusy,
    StoreCorrupt,
    StoreKeys,
    UnknownReference,
    WrongKey,
    rekeying,
    restore,
)
from convlog_sqlite.store.erasing import Scope

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


PATCHED = """
import os, pathlib, sys
from convlog_sqlite import restoring
stop = lambda *_, **__: os.kill(os.getpid(), 9)
{patch} = stop
restoring.restore(sys.argv[1], sys.argv[2], by="ops")
"""


def killed_at(patch, backup, store):
    """Restore in a process that is killed where it calls `patch`."""
    command = [sys.executable, "-c", PATCHED.format(patch=patch), str(backup), str(store)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL


class TestRestoreWhereItIsNeeded:
    """The database is damaged, or gone, or the first attempt failed."""

    @pytest.mark.parametrize("damage", ["pages", "garbage", "nothing"])
    def test_over_a_database_that_cannot_be_read(self, store, tmp_path, damage):
        """The keystore that is left opens the backup; how many events are lost, nobody can tell."""
        path, ids = store
        backed_up(path, tmp_path / "b")
        database = path / "log.db"
        if damage == "nothing":
            database.unlink()
        else:
            data = database.read_bytes()
            spoilt = b"garbage" * 1000 if damage == "garbage" else data[:4096] + b"\xff" * (len(data) - 4096)
            database.write_bytes(spoilt)
        done = restore(tmp_path / "b", path, by="ops")
        assert (done.lost, done.new) == ((0, True) if damage == "nothing" else (None, False))
        if damage != "nothing":
            assert Path(done.set_aside).read_bytes() == spoilt
        with ConversationLog.open(path) as log:
            assert log.event(ids[5]).body == f"{SECRET} 5"
            assert faults(log) == []

    @pytest.mark.parametrize("patch", ["os.link", "pathlib.Path.replace", "restoring._remove_wal"])
    def test_a_kill_amid_the_exchange_leaves_the_old_one_open_to_all(self, store, tmp_path, patch):
        """Until the new database has its name, the old one is whole, with what was in its WAL."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            later = log.session("s").message("later", agent="a")
        killed_at(patch, tmp_path / "b", path)
        with ConversationLog.open(path) as log:
            assert log.event(later.id).body == "later"
            assert faults(log) == []
        assert restore(tmp_path / "b", path, by="ops").lost == 1

    @pytest.mark.parametrize("patch", ["pathlib.Path.rename", "restoring._check", "restoring._built"])
    def test_a_new_store_that_was_not_finished_is_finished(self, store, tmp_path, patch):
        """What a kill left in the directory does not stand in the way of the next attempt."""
        path, ids = store
        backed_up(path, tmp_path / "k", with_keys=True, bare_keys=True)
        killed_at(patch, tmp_path / "k", tmp_path / "new")
        assert restore(tmp_path / "k", tmp_path / "new", by="ops").new
        with ConversationLog.open(tmp_path / "new") as log:
            assert log.event(ids[5]).body == f"{SECRET} 5"
            assert faults(log) == []

    def test_a_mistaken_keystore_leaves_nothing(self, store, tmp_path):
        """The next attempt, with the right one, finds an empty place."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        with pytest.raises(KeystoreMissing):
            restore(tmp_path / "b", tmp_path / "new", by="ops", keys=tmp_path / "nothing")
        assert not (tmp_path / "new").exists()
        assert restore(tmp_path / "b", tmp_path / "new", by="ops", keys=path / "log.keys").new

    def test_what_is_no_store_is_left_alone(self, store, tmp_path):
        """A directory with other files, and a file."""
        path, _ = store
        backed_up(path, tmp_path / "k", with_keys=True, bare_keys=True)
        (tmp_path / "file").write_text("mine")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine").write_text("mine")
        for place in ("file", "full"):
            with pytest.raises(BackupRefused) as refused:
                restore(tmp_path / "k", tmp_path / place, by="ops")
            assert refused.value.risk == "exists"
        assert (tmp_path / "file").read_text() == "mine"

    def test_a_locked_store_is_not_touched(self, tmp_path):
        """Without the key-encryption key it could not be said that it was restored: refused before, not behind it."""
        key = tmp_path / "kek"
        key.write_bytes(bytes(range(32)))
        key.chmod(0o600)
        kek = KeySource.file(key)
        with ConversationLog.init(tmp_path / "s", kek=kek) as log:
            log.session("s").message(SECRET, agent="a")
            log.backup(tmp_path / "b")
            later = log.session("s").message("later", agent="a")
        with pytest.raises(KeystoreLocked):
            restore(tmp_path / "b", tmp_path / "s", by="ops")
        with ConversationLog.open(tmp_path / "s", kek=kek) as log:
            assert log.event(later.id).body == "later"
        assert restore(tmp_path / "b", tmp_path / "s", by="ops", kek=kek).lost == 1

    def test_an_older_keystore_is_refused_by_its_age(self, store, tmp_path):
        """A copy from before a rekey is told from one that has lost keys, and nothing is made."""
        path, _ = store
        old = tmp_path / "old"
        old.write_bytes((path / "log.keys").read_bytes())
        StoreKeys(path).rekey(by="ops")
        backed_up(path, tmp_path / "b")
        with pytest.raises(KeystoreOlder):
            restore(tmp_path / "b", tmp_path / "new", by="ops", keys=old)
        assert not (tmp_path / "new").exists()

    def test_who_has_it_open_is_named(self, store, tmp_path):
        """The process id, so that it can be ended."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path), pytest.raises(StoreBusy) as busy:
            restore(tmp_path / "b", path, by="ops")
        assert busy.value.holder == os.getpid()
        assert str(os.getpid()) in busy.value.rule

    def test_guards_that_were_taken_away_are_missed(self, store, tmp_path):
        """A backup whose database would let events be changed, or says something at each append, is no store's."""
        path, _ = store
        for number, statement in enumerate(
            (
                "DROP TRIGGER envelope_update",
                "CREATE TRIGGER spy AFTER INSERT ON envelope BEGIN DELETE FROM tombstone; END",
            )
        ):
            backed_up(path, tmp_path / f"b{number}")
            program = "import apsw, sys; apsw.Connection(sys.argv[1]).execute(sys.argv[2])"
            database = str(tmp_path / f"b{number}" / "log.db")
            subprocess.run([sys.executable, "-c", program, database, statement], check=True)
            with pytest.raises(BackupRefused) as refused:
                restore(tmp_path / f"b{number}", path, by="ops")
            assert refused.value.risk == "faults"

    def test_random_damage_is_refused_and_named(self, store, tmp_path):
        """Whatever bytes of a backup are changed, it is an error of ours, or what is restored verifies."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        whole = (tmp_path / "b" / "log.db").read_bytes()
        # As for generated examples: under CI the same each time, so that a change is not blamed for what it did not do.
        seed = 7 if "CI" in os.environ else int.from_bytes(os.urandom(4), "big")
        print("seed", seed)
        chance = random.Random(seed)
        for _ in range(12):
            spoilt = bytearray(whole)
            for _ in range(20):
                spoilt[chance.randrange(100, len(spoilt))] = chance.randrange(256)
            (tmp_path / "spoilt").write_bytes(spoilt)
            with contextlib.suppress(ConvlogError):
                restore(tmp_path / "spoilt", path, by="ops")
            with ConversationLog.open(path, read_only=True) as log:
                assert faults(log) == []


class TestKeysAndErasures:
    """A copy of the keystore, and erasures that come before, amid and after it."""

    def test_no_erasure_comes_between_the_copy_of_the_keys_and_its_name(self, store, tmp_path, monkeypatch):
        """A redaction that returned before the backup did is in it."""
        path, ids = store
        returned = threading.Event()
        with ConversationLog.open(path) as log, ConversationLog.open(path) as other:

            def redact():
                other.redact(events=[ids[5]], reason="test", by="ops")
                returned.set()

            thread = threading.Thread(target=redact)
            real = rekeying.write

            def write(*arguments):
                real(*arguments)
                thread.start()
                assert not returned.wait(0.5)

            monkeypatch.setattr(rekeying, "write", write)
            log.backup(tmp_path / "k", with_keys=True, bare_keys=True)
            thread.join()
            assert returned.is_set()

    def test_an_erasure_that_was_decided_is_done_before_the_keys_are_copied(self, store, tmp_path):
        """A redactor that was killed amid its work leaves no key to a backup that is made then."""
        path, ids = store
        with ConversationLog.open(path) as log:
            eraser = log._redactor()._eraser(log._store.database)
            eraser.intend(Scope("event", (ids[5],)), "ops", "test")
            log.backup(tmp_path / "k", with_keys=True, bare_keys=True)
        restore(tmp_path / "k", tmp_path / "new", by="ops")
        with ConversationLog.open(tmp_path / "new") as log:
            assert log.event(ids[5]).answer == "erased"
            assert faults(log) == []

    def test_keys_are_copied_as_they_are_kept_now(self, store, tmp_path):
        """Another process gave the keystore another key since this handle opened it."""
        path, _ = store
        keks = []
        for number in range(2):
            key = tmp_path / f"kek{number}"
            key.write_bytes(bytes([number]) * 32)
            key.chmod(0o600)
            keks.append(KeySource.file(key))
        StoreKeys(path).rotate(keks[0], by="ops")
        with ConversationLog.open(path, kek=keks[0]) as log:
            StoreKeys(path, kek=keks[0]).rotate(keks[1], by="ops")
            assert log.backup(tmp_path / "k", with_keys=True).keys == "wrapped"
        with pytest.raises(WrongKey):
            restore(tmp_path / "k", tmp_path / "new", by="ops", kek=keks[0])
        assert restore(tmp_path / "k", tmp_path / "new", by="ops", kek=keks[1]).new

    @pytest.mark.parametrize("count", [1, 90])
    def test_an_older_keystore_beside_the_current_database_loses_again_what_was_erased(self, store, count):
        """However many erasures it is behind; everything else reads."""
        path, ids = store
        old = (path / "log.keys").read_bytes()
        with ConversationLog.open(path) as log:
            for event_id in ids[:count]:
                log.redact(events=[event_id], reason="test", by="ops")
        size = (path / "log.keys").stat().st_size
        (path / "log.keys").write_bytes(old + (path / "log.keys").read_bytes()[len(old) : size])
        with ConversationLog.open(path) as log:
            assert {log.event(one).answer for one in ids[:count]} == {"erased"}
            assert {log.event(one).answer for one in ids[count:]} == {"live"}
            assert faults(log) == []

    def test_one_copied_over_an_open_keystore_is_noticed_by_the_next_erasure(self, store):
        """It erases more than is looked at when a store is opened: the earlier ones are not forgotten for it."""
        path, ids = store
        with ConversationLog.open(path) as log:
            old = (path / "log.keys").read_bytes()
            log.redact(events=ids[:3], reason="test", by="ops")
            with (path / "log.keys").open("r+b") as file:
                file.write(old)
            log.redact(events=ids[10:90], reason="test", by="ops")
            assert faults(log) == []

    def test_lost_keys_are_no_reason_to_go_without_backups(self, store, tmp_path):
        """A store that goes on with a new keystore is backed up and restored; what has no key is counted."""
        path, ids = store
        with ConversationLog.open(path) as log:
            log.place_hold(session="s", reason="legal_order", by="ops")
            log.backup(tmp_path / "before")
        StoreKeys(path).replace_lost(by="ops", discard=True)
        with ConversationLog.open(path) as log:
            new = log.session("s").message("goes on", agent="a")
            log.backup(tmp_path / "after")
        assert restore(tmp_path / "before", path, by="ops").lost_keys > 100
        assert restore(tmp_path / "after", path, by="ops").lost_keys > 100
        with ConversationLog.open(path) as log:
            assert log.event(new.id).body == "goes on"
            assert log.event(ids[0]).answer == "lost"

    def test_a_session_that_was_removed_since_comes_back_without_its_content(
        self, store_path, tmp_path, clock
    ):
        """Its redactions cannot be redacted: verify notes them, and finds no fault."""
        with ConversationLog.init(store_path, clock=clock) as log:
            session = log.session("old")
            erased = session.message(f"{SECRET} a", agent="a")
            session.message(f"{SECRET} b", agent="a")
            log.redact(events=[erased.id], reason="test", by="ops")
            session.mutation("session-closed", agent="a")
            log.backup(tmp_path / "b")
            policy = RetentionPolicy(id="p", match={"session": "old"}, target="envelope", max_age="1m")
            log.set_policy(policy, by="ops")
            clock.advance(3600)
            assert log.apply_retention(by="ops").removed == {"old": "p@1"}
        restore(tmp_path / "b", store_path, by="ops", clock=clock)
        with ConversationLog.open(store_path, clock=clock) as log:
            messages = [event for event in log.session("old").read() if event.type == "message"]
            assert [event.answer for event in messages] == ["erased", "erased"]
            assert faults(log) == []
            assert {found.rule for found in log.verify()} == {"restored"}


class TestWhatIsUndone:
    """Counting it, and keeping its plaintext apart."""

    def test_going_back_to_what_was_set_aside_counts_what_goes(self, store, tmp_path):
        """Two logs that went on apart: what the other does not have is lost, however long it is."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            for _ in range(10):
                log.session("s").message("later", agent="a")
        aside = restore(tmp_path / "b", path, by="ops").set_aside
        with ConversationLog.open(path) as log:
            log.session("s").message("instead", agent="a")
        assert restore(aside, path, by="ops", dry_run=True).lost == 2  # the record of the restore is one

    def test_mirror_files_of_what_is_undone_are_kept(self, store, tmp_path):
        """Of a session that the backup does not have, and of a log that went on apart for as long."""
        path, _ = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            log.session("new").message("only in the mirror", agent="a")
            log.session("s").message("first", agent="a")
        aside = restore(tmp_path / "b", path, by="ops").set_aside
        with ConversationLog.open(path) as log:
            log.session("new").message("something else", agent="a")
            log.session("s").message("second", agent="a")
        restore(aside, path, by="ops")
        texts = [file.read_text() for file in path.glob("sessions/*/conversation.jsonl.ahead-*")]
        for word in ("only in the mirror", "something else", "first", "second"):
            assert any(word in text for text in texts), word

    def test_an_export_that_is_ahead_is_kept_though_it_differs_from_its_first_line(self, store, tmp_path):
        """Its lines are nowhere else; what was erased is not in it."""
        path, ids = store
        backed_up(path, tmp_path / "b")
        with ConversationLog.open(path) as log:
            log.session("s").message("only in the export", agent="a")
            log.export_to(tmp_path / "out")
            log.redact(events=[ids[0]], reason="test", by="ops")
        restore(tmp_path / "b", path, by="ops")
        with ConversationLog.open(path) as log:
            log.export_to(tmp_path / "out")
        (aside,) = (tmp_path / "out" / "s").glob("conversation.jsonl.ahead-*")
        assert "only in the export" in aside.read_text()
        assert SECRET + ' 0"' not in aside.read_text()


def test_a_full_disk_leaves_no_backup_and_the_store_as_it_was(store, tmp_path):
    """Neither a half backup nor a half restored database stays."""
    path, _ = store
    backed_up(path, tmp_path / "b")
    program = """
import resource, signal, sys
from convlog_sqlite import ConversationLog, StoreError, restore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
for attempt in (
    lambda: ConversationLog.open(sys.argv[1]).backup(sys.argv[3]),
    lambda: restore(sys.argv[2], sys.argv[1], by="ops"),
):
    try:
        attempt()
    except StoreError:
        print("refused")
"""
    words = [str(path), str(tmp_path / "b"), str(tmp_path / "full")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n" * 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".convlog", "b"]
    assert list(path.glob("log.db.*")) == []
    with ConversationLog.open(path) as log:
        assert faults(log) == []


def test_an_interrupt_ends_a_backup(store, tmp_path):
    """It is let through while SQLite copies, and nothing is left."""
    path, _ = store
    with ConversationLog.open(path) as log:
        for _ in range(40):
            log.session("s").append_many([Draft(type="message", agent="a", body="x" * 4000)] * 500)
    program = """
import os, signal, sys, threading
from convlog_sqlite import ConversationLog, backup
real = backup.connect
def connect(*arguments, **more):
    threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    return real(*arguments, **more)
with ConversationLog.open(sys.argv[1]) as log:
    backup.connect = connect
    backup.BackingUp._check = lambda *_: sys.exit("the copy went on to its end")
    try:
        log.backup(sys.argv[2])
    except KeyboardInterrupt:
        print("interrupted")
"""
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".convlog"]


def test_progress_goes_up_to_the_whole(store, tmp_path):
    """Bytes of bytes, never more than all and never fewer than before."""
    path, _ = store
    told = []
    with ConversationLog.open(path) as log:
        for _ in range(10):
            log.session("s").append_many([Draft(type="message", agent="a", body="x" * 4000)] * 500)
        log.backup(tmp_path / "b", progress=lambda done, of: told.append((done, of)))
    assert told
    assert told == sorted(told)
    assert len({of for _, of in told}) == 1
    assert all(0 <= done <= of for done, of in told)
    told.clear()
    restore(tmp_path / "b", path, by="ops", progress=lambda done, of: told.append((done, of)))
    assert told
