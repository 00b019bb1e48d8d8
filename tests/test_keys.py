"""The keystore's keys: each distinct answer, each act, killed at each write, and with others about."""

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from convlog_sqlite import (
    AsyncStoreKeys,
    ConversationLog,
    Draft,
    InvalidEvent,
    KeysAtRisk,
    KeySource,
    KeySourceFailed,
    KeystoreDamaged,
    KeystoreForeign,
    KeystoreLocked,
    KeystoreMissing,
    KeystoreOlder,
    KeystoreReplaced,
    KeystoreTruncated,
    KeystoreUnusable,
    NotAStore,
    StoreBusy,
    StoreFull,
    StoreIOError,
    StoreKeys,
    WrongKey,
    sealing,
)
from convlog_sqlite import keystore as keystores
from convlog_sqlite.header import Header
from convlog_sqlite.kek import Scrypt
from convlog_sqlite.keystore import SLOT_BYTES, SLOTS_AT
from convlog_sqlite.store import opening

MARK = "kiwi-marmalade"
OPS = {"by": "ops"}


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Passphrases cost nothing here: what scrypt costs is not under test."""
    monkeypatch.setattr("convlog_sqlite.kek.new_scrypt", lambda: Scrypt(4, 8, 1, os.urandom(16)))


@pytest.fixture
def kek(tmp_path):
    """A function that gives the source of a named key, always the same for a name."""

    def named(name):
        path = tmp_path / f"{name}.kek"
        if not path.exists():
            path.touch(0o600)
            path.write_text(os.urandom(32).hex())
        return KeySource.file(path)

    return named


@pytest.fixture
def store(store_path, clock):
    """A closed bare store: live messages, one with a blob, one that is erased, and one agent's name as a subject."""
    with ConversationLog.open(store_path, clock=clock) as log:
        session = log.session("s")
        for number in range(4):
            session.message(f"{MARK} {number}", agent="a", subjects=["Ada"], idempotency_key=f"k{number}")
        session.message(f"{MARK} " + "x" * 9000, agent="a")
        log.redact(events=[session.event(3).id], reason="test", by="ops")
    return store_path


@pytest.fixture
def sealed(store, kek):
    """The same under the key `one`."""
    StoreKeys(store).rotate(kek("one"), **OPS)
    return store


def answers(path, source=None, *, read_only=True):
    """The payload answers of session `s`, in order."""
    with ConversationLog.open(path, create=False, read_only=read_only, kek=source) as log:
        return [event.answer for event in log.session("s").read()]


WHOLE = ["live", "live", "erased", "live", "live", "live", "live"]


def faults(path, source=None):
    """What verify finds wrong, notes left out."""
    with ConversationLog.open(path, create=False, read_only=True, kek=source) as log:
        return [(found.rule, found.seq) for found in log.verify() if found.severity == "fault"]


def told(path, source=None):
    """The acts that the log was told of, by whom, and at which generation."""
    with ConversationLog.open(path, create=False, read_only=True, kek=source) as log:
        events = [event for event in log.session("_store").read() if event.kind == "keys-rotated"]
    return [(event.value["act"], event.agent, event.value["generation"]) for event in events]


def left_beside(path):
    """Files of an unfinished act."""
    return sorted(file.name for file in path.iterdir() if "convlog-" in file.name)


def state(path, source=None):
    """What status calls it."""
    return StoreKeys(path, kek=source).status()["state"]


def patch_header(path, **changes):
    """Write both header copies with some fields changed."""
    from dataclasses import replace

    header = replace(Header.from_bytes(path.read_bytes()), **changes)
    with path.open("r+b") as file:
        file.write(header.to_bytes())


class TestRotate:
    def test_the_new_key_opens_and_the_old_does_not(self, store, kek):
        """From bare to a key to another: each opens what it should, and nothing is lost on the way."""
        first = StoreKeys(store).rotate(kek("one"), **OPS)
        assert (first.act, first.generation) == ("rotate", 1)
        second = StoreKeys(store, kek=kek("one")).rotate(kek("two"), by="Zoë")
        assert "key-encryption key" in second.protection
        assert answers(store, kek("two")) == WHOLE
        assert faults(store, kek("two")) == []
        with pytest.raises(WrongKey):
            ConversationLog.open(store, kek=kek("one"))
        assert told(store, kek("two")) == [("rotate", "ops", 1), ("rotate", "Zoë", 1)]

    def test_a_passphrase_and_back_to_bare(self, store):
        """A passphrase opens it, whoever asks for it; `None` takes the protection away again."""
        phrase = KeySource.passphrase("correct horse")
        StoreKeys(store).rotate(phrase, **OPS)
        assert answers(store, KeySource.passphrase(lambda: "correct horse")) == WHOLE
        with pytest.raises(WrongKey):
            ConversationLog.open(store, kek=KeySource.passphrase("correct house"))
        change = StoreKeys(store, kek=phrase).rotate(None, **OPS)
        assert "erasure, not secrecy" in change.protection
        assert answers(store) == WHOLE

    def test_the_header_is_all_that_is_written(self, store, kek):
        """No slot changes, the master key does not stand there, and the salt is a new one each time."""
        before = (store / "log.keys").read_bytes()
        StoreKeys(store).rotate(kek("one"), **OPS)
        after = (store / "log.keys").read_bytes()
        assert after[SLOTS_AT : len(before)] == before[SLOTS_AT:]
        assert Header.from_bytes(before).master[:32] not in after

    def test_other_handles_go_on(self, store, kek):
        """A handle that is open meanwhile reads and writes as before: it has the master key."""
        with ConversationLog.open(store) as log:
            StoreKeys(store).rotate(kek("one"), **OPS)
            log.session("s").message("still here", agent="a")
            assert log.session("s").tail(1)[0].body == "still here"
        assert answers(store, kek("one")) == [*WHOLE, "live"]

    def test_a_locked_store_is_not_rotated(self, sealed, kek):
        """Without the key, or with another, nothing is written."""
        before = (sealed / "log.keys").read_bytes()
        with pytest.raises(KeystoreLocked):
            StoreKeys(sealed).rotate(kek("two"), **OPS)
        with pytest.raises(WrongKey):
            StoreKeys(sealed, kek=kek("two")).rotate(kek("two"), **OPS)
        assert (sealed / "log.keys").read_bytes() == before

    def test_a_key_that_does_not_come_twice_is_refused(self, store):
        """Nothing is written: the store would never open again."""
        before = (store / "log.keys").read_bytes()
        with pytest.raises(KeySourceFailed):
            StoreKeys(store).rotate(KeySource.command("head -c 32 /dev/urandom"), **OPS)
        with pytest.raises(KeySourceFailed):
            StoreKeys(store).rotate(KeySource.command("exit 1"), **OPS)
        assert (store / "log.keys").read_bytes() == before

    @pytest.mark.parametrize("by", ["", "x" * 257, "é" * 200])
    def test_an_agent_that_does_not_fit_is_refused(self, store, by):
        """The name stands in the header: at most 256 bytes."""
        with pytest.raises(InvalidEvent):
            StoreKeys(store).rotate(None, by=by)

    def test_two_at_once_are_two_changes(self, sealed, kek):
        """A rotation by a handle that has not seen the last one counts on from it, and both are known to the log."""
        with ConversationLog.open(sealed, kek=kek("one")) as log:
            StoreKeys(sealed, kek=kek("one")).rotate(kek("two"), **OPS)
            log._store.keystore.rewrap(kek("three").wrapping(), "rotate", "late", 1)
        assert answers(sealed, kek("three"), read_only=False) == WHOLE
        assert told(sealed, kek("three"))[1:] == [("rotate", "ops", 1), ("rotate", "late", 1)]

    def test_a_damaged_copy_is_mended_by_the_next_writer(self, sealed, kek):
        """Either copy; a reader leaves it as it is."""
        good = (sealed / "log.keys").read_bytes()[:SLOTS_AT]
        for at in (0, 4096):
            with (sealed / "log.keys").open("r+b") as file:
                file.seek(at + 45)
                file.write(b"????")
            answers(sealed, kek("one"))
            assert (sealed / "log.keys").read_bytes()[:SLOTS_AT] != good
            answers(sealed, kek("one"), read_only=False)
            assert (sealed / "log.keys").read_bytes()[:SLOTS_AT] == good

    def test_a_copy_of_a_newer_format_is_left_alone(self, store):
        """A later convlog wrote it: this one uses the other copy and does not write over what it does not know."""
        import hashlib

        data = bytearray((store / "log.keys").read_bytes()[:480])
        data[9] = 2
        with (store / "log.keys").open("r+b") as file:
            file.seek(4096)
            file.write(bytes(data) + hashlib.sha256(data).digest())
        before = (store / "log.keys").read_bytes()[:SLOTS_AT]
        assert answers(store, read_only=False) == WHOLE
        assert (store / "log.keys").read_bytes()[:SLOTS_AT] == before


class TestRekey:
    def test_everything_opens_under_a_new_master_key(self, sealed, kek):
        """Live, erased and blob slots keep their answers, digests of names and keys stay, the file is another."""
        before = (sealed / "log.keys").read_bytes()
        change = StoreKeys(sealed, kek=kek("one")).rekey(**OPS)
        after = (sealed / "log.keys").read_bytes()
        assert change.generation == 2
        assert answers(sealed, kek("one")) == WHOLE
        assert faults(sealed, kek("one")) == []
        assert told(sealed, kek("one"))[-1] == ("rekey", "ops", 2)
        pairs = [
            (before[at : at + SLOT_BYTES], after[at : at + SLOT_BYTES])
            for at in range(SLOTS_AT, len(before), SLOT_BYTES)
        ]
        assert [old == new for old, new in pairs] == [keystores.is_erased(old) for old, _ in pairs]
        with ConversationLog.open(sealed, kek=kek("one")) as log:
            session = log.session("s")
            again = session.message(f"{MARK} 0", agent="a", subjects=["Ada"], idempotency_key="k0")
            assert again.seq == 2
            assert MARK in session.content(session.event(6))
            assert log.redact(subject="Ada", reason="test", by="ops").erased == 3

    def test_an_old_copy_dies_with_its_key(self, sealed, kek):
        """After a rekey under another key, the new key opens no slot of an older copy, nor does its master key."""
        old = (sealed / "log.keys").read_bytes()
        StoreKeys(sealed, kek=kek("one")).rekey(new=kek("two"), **OPS)
        key = kek("two").key(1, Scrypt(0, 0, 0, bytes(16)))
        assert Header.from_bytes(old).master_key(key) is None
        new = Header.from_bytes((sealed / "log.keys").read_bytes()).master_key(key)
        assert {sealing.unwrap(new, old[at : at + 40]) for at in range(SLOTS_AT, len(old) - 39, 40)} == {None}
        with pytest.raises(WrongKey):
            ConversationLog.open(sealed, kek=kek("one"))

    def test_an_old_copy_put_back_is_older_and_nothing_else(self, sealed, kek):
        """Neither a reader nor a writer takes it, with any key or without; it stays as it is."""
        shutil.copy(sealed / "log.keys", sealed.parent / "old")
        StoreKeys(sealed, kek=kek("one")).rekey(**OPS)
        shutil.copy(sealed.parent / "old", sealed / "log.keys")
        for source in (None, kek("one")):
            for read_only in (True, False):
                with pytest.raises(KeystoreOlder) as refused:
                    ConversationLog.open(sealed, kek=source, read_only=read_only)
                assert (refused.value.found, refused.value.known) == (1, 2)
        assert state(sealed, kek("one")) == "older"
        for act in (lambda keys: keys.rekey(**OPS), lambda keys: keys.rotate(None, **OPS)):
            with pytest.raises(KeystoreOlder):
                act(StoreKeys(sealed, kek=kek("one")))
        with pytest.raises(KeystoreOlder):
            StoreKeys(sealed, kek=kek("one")).export(sealed.parent / "x")
        assert (sealed / "log.keys").read_bytes() == (sealed.parent / "old").read_bytes()

    def test_it_waits_for_no_open_handle(self, store, monkeypatch):
        """While anybody has the store open, even to read, nothing is done."""
        monkeypatch.setattr(opening, "_ALONE_SECONDS", 0.05)
        before = (store / "log.keys").read_bytes()
        with ConversationLog.open(store, read_only=True), pytest.raises(StoreBusy):
            StoreKeys(store).rekey(**OPS)
        assert (store / "log.keys").read_bytes() == before
        assert StoreKeys(store).rekey(**OPS).generation == 2

    def test_nobody_opens_the_store_meanwhile(self, store, monkeypatch):
        """A handle that is to be opened while slots are rewrapped is told that the store is busy."""
        real = keystores.Keystore.raw
        tried = []

        def raw(keystore, *place):
            with pytest.raises(StoreBusy) as busy:
                ConversationLog.open(store)
            tried.append(busy)
            return real(keystore, *place)

        monkeypatch.setattr(keystores.Keystore, "raw", raw)
        StoreKeys(store).rekey(**OPS)
        assert tried

    def test_a_handle_of_another_process_notices(self, sealed, kek):
        """One that the lock did not keep out neither reads nor writes with the old file: it says KeystoreReplaced."""
        program = """
            import json, sys
            from convlog_sqlite import ConversationLog, KeySource, KeystoreReplaced
            log = ConversationLog.open(sys.argv[1], kek=KeySource.file(sys.argv[2]))
            log.session("s").message("before", agent="a")
            log._store.handles.close()  # as where a lock is not seen
            print("open", flush=True); sys.stdin.readline()
            said = []
            for use in (lambda: log.session("s").tail(3), lambda: log.session("s").append_many(drafts),
                        lambda: log.redact(session="s", reason="test", by="a")):
                from convlog_sqlite import Draft
                drafts = [Draft(type="message", agent="a", body="x")] * 50
                try:
                    use()
                    said.append("went on")
                except KeystoreReplaced as error:
                    said.append(type(error).__name__)
            print(json.dumps(said), flush=True)
            """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(sealed), kek("one").where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "open\n"
        StoreKeys(sealed, kek=kek("one")).rekey(**OPS)
        said, _ = process.communicate("\n", timeout=60)
        assert json.loads(said) == ["KeystoreReplaced"] * 3
        assert answers(sealed, kek("one"), read_only=False) == [*WHOLE, "live"]

    def test_the_bytes_of_the_old_file_are_overwritten(self, store):
        """A second name of the old file, as a descriptor that is still open sees it, holds zeros or nothing."""
        descriptor = os.open(store / "log.keys", os.O_RDONLY)
        StoreKeys(store).rekey(**OPS)
        assert os.fstat(descriptor).st_size == 0
        os.close(descriptor)
        assert left_beside(store) == []

    def test_a_keystore_elsewhere(self, tmp_path, kek):
        """`keys` is where init put it: rekeyed there, and through a symbolic link, which stays one."""
        path, elsewhere = tmp_path / "store", tmp_path / "vault" / "mine.keys"
        with ConversationLog.init(path, keys=elsewhere) as log:
            log.session("s").message("x", agent="a")
        StoreKeys(path).rekey(new=kek("one"), **OPS)
        assert answers(path, kek("one")) == ["live", "live"]
        moved = elsewhere.rename(tmp_path / "moved.keys")
        elsewhere.symlink_to(moved)
        StoreKeys(path, kek=kek("one")).rekey(**OPS)
        assert elsewhere.is_symlink()
        assert answers(path, kek("one")) == ["live", "live"]
        assert sorted(file.name for file in moved.parent.iterdir() if "convlog-" in file.name) == []

    def test_who_could_open_it_still_can(self, store):
        """The new file has the mode of the old one; nobody else gets at it meanwhile."""
        (store / "log.keys").chmod(0o640)
        StoreKeys(store).rekey(**OPS)
        assert (store / "log.keys").stat().st_mode & 0o777 == 0o640

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    def test_root_leaves_it_to_its_owner(self, store):
        """A rekey by root does not lock the owner out."""
        os.chown(store / "log.keys", 1234, 1235)
        StoreKeys(store).rekey(**OPS)
        found = (store / "log.keys").stat()
        assert (found.st_uid, found.st_gid) == (1234, 1235)

    def test_lost_stays_lost_and_never_becomes_erased(self, store):
        """Holes, wrong bytes and a torn tail are lost afterwards too, and the slots behind them still open."""
        with ConversationLog.open(store, read_only=True) as log, log._store.database.read() as connection:
            slots = [slot for (slot,) in connection.execute("SELECT slot FROM payload ORDER BY pos")]
        with (store / "log.keys").open("r+b") as file:
            for slot, data in ((slots[3], bytes(40)), (slots[6], os.urandom(40))):
                file.seek(SLOTS_AT + slot * SLOT_BYTES)
                file.write(data)
            file.seek(0, os.SEEK_END)
            file.write(b"\xffERASED\xff")
        before = answers(store)
        StoreKeys(store).rekey(**OPS)
        assert answers(store) == before
        assert before.count("lost") == 2

    @pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
    def test_a_full_disk_leaves_the_old_keystore(self, store, monkeypatch, error):
        """Nothing stays of what could not be written, and the next try works."""
        from convlog_sqlite import rekeying

        before = (store / "log.keys").read_bytes()
        real = rekeying.write_all

        def write_all(descriptor, data):
            real(descriptor, data[:100])
            raise OSError(error, os.strerror(error))

        with monkeypatch.context() as patch:
            patch.setattr(rekeying, "write_all", write_all)
            with pytest.raises(StoreFull if error == errno.ENOSPC else StoreIOError):
                StoreKeys(store).rekey(**OPS)
        assert left_beside(store) == []
        assert (store / "log.keys").read_bytes() == before
        assert StoreKeys(store).rekey(**OPS).generation == 2


# The calls of the system that change what is on the disk: a process is killed in front of each in turn.
WRITES = ("write", "pwrite", "link", "rename", "unlink", "ftruncate", "fdatasync", "fsync")


def killed_at(number, act):
    """Run `act` in a child that dies in front of its `number`-th write. True when it was killed, False when it got through."""
    child = os.fork()
    if child == 0:
        count = 0

        def counting(real):
            def call(*arguments, **named):
                nonlocal count
                count += 1
                if count == number:
                    os._exit(9)
                return real(*arguments, **named)

            return call

        for name in WRITES:
            setattr(os, name, counting(getattr(os, name)))
        try:
            act()
        except BaseException:  # noqa: BLE001 the child must not run the tests of its parent
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), "the act failed, and was not killed"
    return status == 9


class TestKilled:
    """At each write of each act: what is there opens, nothing is lost, nothing is left, and the next act works."""

    def each(self, template, path, act):
        """(number of the write) for a store that was killed in front of it; the last one got through."""
        for number in range(1, 400):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(template, path)
            if not killed_at(number, lambda: act(path)):
                assert number > 5
                return
            yield number
        pytest.fail("it never got through")

    def test_rotate(self, sealed, tmp_path, kek):
        """One of the two keys opens it, and then it alone: the new one, if any copy was written with it."""
        path, one, two, three = tmp_path / "killed" / ".convlog", kek("one"), kek("two"), kek("three")
        seen = set()
        for _ in self.each(sealed, path, lambda path: StoreKeys(path, kek=one).rotate(two, **OPS)):
            states = [state(path, source) for source in (one, two)]
            seen.add(tuple(states))
            assert "open" in states
            source = two if states[1] == "open" else one
            assert answers(path, source, read_only=False) == WHOLE
            assert state(path, one if source is two else two) == "wrong-key"
            assert faults(path, source) == []
            assert [act for act, *_ in told(path, source)] == ["rotate"] * (1 + (source is two))
            StoreKeys(path, kek=source).rotate(three, **OPS)
            assert answers(path, three) == WHOLE
        assert seen == {("open", "wrong-key"), ("open", "open"), ("wrong-key", "open")}

    def test_rekey(self, sealed, tmp_path, kek):
        """The keystore is the old one or the new one, whole; nothing of the other stays once a writer was there."""
        path, one, two = tmp_path / "killed" / ".convlog", kek("one"), kek("two")
        seen, beside = set(), set()
        for _ in self.each(sealed, path, lambda path: StoreKeys(path, kek=one).rekey(new=two, **OPS)):
            states = [state(path, source) for source in (one, two)]
            seen.add(tuple(states))
            beside.update(left_beside(path))
            source = one if states[0] == "open" else two
            assert answers(path, source) == WHOLE
            assert answers(path, source, read_only=False) == WHOLE
            assert left_beside(path) == []
            assert faults(path, source) == []
            expected = [("rotate", "ops", 1), ("rekey", "ops", 2)][: 1 + (source is two)]
            assert told(path, source) == expected
            assert StoreKeys(path, kek=source).rekey(**OPS).generation == 1 + len(expected)
        assert seen == {("open", "wrong-key"), ("wrong-key", "open")}
        assert {name.split("-")[1] for name in beside} == {"next", "last"}

    @pytest.mark.parametrize("act", ["import", "replace-lost"])
    def test_import_and_replace_lost(self, sealed, tmp_path, kek, act):
        """The keystore is missing still, or whole; done again, it is there."""
        path, one, copy = tmp_path / "killed" / ".convlog", kek("one"), tmp_path / "copy"
        StoreKeys(sealed, kek=one).export(copy)
        (sealed / "log.keys").unlink()

        def run(path):
            keys = StoreKeys(path, kek=one)
            return keys.import_(copy, **OPS) if act == "import" else keys.replace_lost(**OPS)

        expected = WHOLE if act == "import" else ["erased" if one == "erased" else "lost" for one in WHOLE]
        seen = set()
        for _ in self.each(sealed, path, run):
            seen.add(state(path, one))
            if state(path, one) == "missing":
                run(path)
            assert answers(path, one, read_only=False) == expected
            assert left_beside(path) == []
            with ConversationLog.open(path, read_only=True, kek=one) as log:
                events = [event for event in log.session("_store").read() if event.kind == "keys-rotated"]
            assert [event.correlation_id.split("/")[-1] for event in events] == ["rotate", act]
        assert seen == {"missing", "open"}

    def test_a_crash_amid_both_copies_and_a_damaged_one(self, sealed, kek):
        """A rotation over a damaged copy writes that one first: the good one is the last to be touched."""
        for at in (0, 4096):
            name = "good at the end" if at == 0 else "good in front"
            path = sealed.parent / name / ".convlog"
            shutil.copytree(sealed, path)
            with (path / "log.keys").open("r+b") as file:
                file.seek(at + 45)
                file.write(b"????")
            keystore = keystores.Keystore.open(path / "log.keys", StoreId.of(path), kek=kek("one"))
            written = []
            keystore._file.write = lambda data, at, written=written: written.append(at) or 1 / 0
            with pytest.raises(ZeroDivisionError):
                keystore.rewrap(kek("two").wrapping(), "rotate", "ops", 1)
            keystore.close()
            assert written == [at]


class StoreId:
    """The id of a closed store."""

    @staticmethod
    def of(path):
        """As its keystore has it."""
        data = (path / "log.keys").read_bytes()
        return (Header.from_bytes(data) or Header.from_bytes(data[4096:])).store_id


class TestDistinctAnswers:
    """What is wrong with a keystore has a class and a word of its own, and changes nothing."""

    @pytest.fixture
    def foreign(self, tmp_path):
        """The keystore of another store."""
        with ConversationLog.open(tmp_path / "other"):
            pass
        return tmp_path / "other" / "log.keys"

    @pytest.mark.parametrize(
        ("spoil", "error", "word"),
        [
            ("missing", KeystoreMissing, "missing"),
            ("foreign", KeystoreForeign, "foreign"),
            ("damaged", KeystoreDamaged, "damaged"),
            ("empty", KeystoreTruncated, "truncated"),
            ("cut", KeystoreTruncated, "truncated"),
            ("greedy", KeystoreDamaged, "damaged"),
            ("older", KeystoreOlder, "older"),
            ("wrong key", WrongKey, "wrong-key"),
            ("no key", KeySourceFailed, "no-key"),
        ],
    )
    def test_each_is_told_apart(self, sealed, kek, foreign, spoil, error, word):
        """Opening raises its class for readers and writers; nothing is erased, listed, made or written."""
        path, source = sealed / "log.keys", kek("one")
        match spoil:
            case "missing":
                path.unlink()
            case "foreign":
                shutil.copy(foreign, path)
            case "damaged":
                path.write_bytes(b"x" * 9000)
            case "empty":
                path.write_bytes(b"")
            case "cut":
                os.truncate(path, 5000)
            case "greedy":
                patch_header(path, kept=2, scrypt=Scrypt(63, 8, 1, bytes(16)))
            case "older":
                old = path.read_bytes()
                StoreKeys(sealed, kek=source).rekey(**OPS)
                path.write_bytes(old)
            case "wrong key":
                source = kek("two")
            case "no key":
                source = KeySource.command("exit 1")
        before = {file: file.read_bytes() for file in sealed.rglob("*.keys")}
        for use in (
            lambda: ConversationLog.open(sealed, kek=source),
            lambda: ConversationLog.open(sealed, kek=source, read_only=True),
            lambda: ConversationLog.init(sealed, kek=source),
        ):
            with pytest.raises(error) as raised:
                use()
            assert type(raised.value) is error
        said = StoreKeys(sealed, kek=source).status()
        assert (said["state"], said["problem"]) == (word, raised.value.rule)
        json.dumps(said)
        assert {file: file.read_bytes() for file in sealed.rglob("*.keys")} == before

    def test_a_cut_off_end_is_said_and_its_events_are_lost(self, store):
        """The header is whole: the store opens, what was cut is lost, verify and status say that it is short."""
        os.truncate(store / "log.keys", SLOTS_AT + 4 * SLOT_BYTES)
        assert answers(store) == ["live", "live", "erased", "lost", "lost", "lost", "lost"]
        assert ("keystore-short", None) in faults(store)
        assert StoreKeys(store).status()["missing_slots"] > 0

    def test_no_store_is_no_store(self, tmp_path):
        """Nothing is made by asking."""
        with pytest.raises(NotAStore):
            StoreKeys(tmp_path / "none").status()
        with pytest.raises(NotAStore):
            StoreKeys()
        assert not (tmp_path / "none").exists()


class TestLocked:
    """Without the key-encryption key."""

    def test_envelopes_are_read_and_nothing_is_written(self, sealed):
        """Payloads are locked, erased stays erased, verify checks the chain, appends and erasures are refused."""
        mirror = sealed / "sessions" / "s" / "conversation.jsonl"
        files = {file: file.read_bytes() for file in (mirror, sealed / "log.keys")}
        with ConversationLog.open(sealed) as log:
            session = log.session("s")
            assert [event.answer for event in session.read()] == [
                "erased" if answer == "erased" else "locked" for answer in WHOLE
            ]
            assert session.event(2).agent == "a"
            assert [(found.rule, found.severity) for found in log.verify()] == [("keystore-locked", "note")]
            event = session.event(2)
            for refused in (
                lambda: session.message("x", agent="a"),
                lambda: log.redact(events=[event.id], reason="test", by="ops"),
                lambda: log.apply_retention(by="ops"),
                log.mirror.update,
                lambda: log.foreign_id("h", "k"),
            ):
                with pytest.raises(KeystoreLocked):
                    refused()
            assert log.status()["keystore"]["locked"] is True
        assert {file: file.read_bytes() for file in files} == files
        assert state(sealed) == "locked"

    def test_an_export_of_the_lines_is_not_written_over_good_ones(self, sealed, tmp_path, kek):
        """Files that were exported earlier keep their lines."""
        with ConversationLog.open(sealed, kek=kek("one")) as log:
            log.export_to(tmp_path / "out")
        before = (tmp_path / "out" / "s" / "conversation.jsonl").read_bytes()
        with ConversationLog.open(sealed) as log, pytest.raises(KeystoreLocked):
            log.export_to(tmp_path / "out")
        assert (tmp_path / "out" / "s" / "conversation.jsonl").read_bytes() == before

    def test_the_environment_opens_it(self, sealed, kek, monkeypatch):
        """Whoever opens the store in a process whose environment names the key has it."""
        monkeypatch.setenv("CONVLOG_KEK_FILE", kek("one").where)
        assert answers(sealed) == WHOLE
        monkeypatch.setenv("CONVLOG_KEK_COMMAND", "exit 1")
        with pytest.raises(KeySourceFailed):
            ConversationLog.open(sealed)

    def test_a_new_store_is_never_bare_where_there_is_a_key(self, store_path, kek, monkeypatch):
        """The master key is wrapped from the first byte on; a source that fails makes no store."""
        monkeypatch.setenv("CONVLOG_KEK_COMMAND", "exit 1")
        with pytest.raises(KeySourceFailed):
            ConversationLog.open(store_path)
        assert not (store_path / "log.db").exists()
        monkeypatch.delenv("CONVLOG_KEK_COMMAND")
        monkeypatch.setenv("CONVLOG_KEK_FILE", kek("one").where)
        with ConversationLog.open(store_path) as log:
            log.session("s").message("x", agent="a")
        monkeypatch.delenv("CONVLOG_KEK_FILE")
        assert state(store_path) == "locked"
        assert answers(store_path, kek("one")) == ["live", "live"]


class TestExport:
    def test_a_copy_under_another_key(self, sealed, tmp_path, kek):
        """It is private, opens with its own key alone, and the store's keystore is not touched."""
        before = (sealed / "log.keys").read_bytes()
        copy = StoreKeys(sealed, kek=kek("one")).export(tmp_path / "copy", seal=kek("far"))
        assert copy.stat().st_mode & 0o777 == 0o600
        assert (sealed / "log.keys").read_bytes() == before
        header = Header.from_bytes(copy.read_bytes())
        no_scrypt = Scrypt(0, 0, 0, bytes(16))
        assert header.master_key(kek("one").key(1, no_scrypt)) is None
        assert header.master_key(kek("far").key(1, no_scrypt)) is not None
        assert copy.read_bytes()[SLOTS_AT:] == before[SLOTS_AT:]

    def test_a_bare_copy_must_be_said(self, store, sealed, tmp_path, kek):
        """Of a bare store too; a locked store gives a copy as it is sealed, and no other."""
        keys = StoreKeys(sealed, kek=kek("one"))
        assert keys.export(tmp_path / "sealed") == tmp_path / "sealed"
        StoreKeys(sealed).export(tmp_path / "locked")
        assert (tmp_path / "locked").read_bytes() == (tmp_path / "sealed").read_bytes()
        for refused in ({"seal": kek("far")}, {"bare": True}):
            with pytest.raises(KeystoreLocked):
                StoreKeys(sealed).export(tmp_path / "no", **refused)
        keys.rotate(None, **OPS)
        with pytest.raises(KeysAtRisk) as refused:
            StoreKeys(store).export(tmp_path / "no")
        assert refused.value.risk == "bare"
        assert not (tmp_path / "no").exists()
        StoreKeys(store).export(tmp_path / "bare", bare=True)

    def test_nothing_is_written_over(self, sealed, tmp_path, kek):
        """A file that is there, a directory, or no directory: nothing is changed."""
        (tmp_path / "there").write_text("mine")
        with pytest.raises(KeysAtRisk) as refused:
            StoreKeys(sealed).export(tmp_path / "there")
        assert refused.value.risk == "exists"
        assert (tmp_path / "there").read_text() == "mine"
        with pytest.raises(StoreIOError):
            StoreKeys(sealed).export(tmp_path / "none" / "x")

    def test_no_keystore_is_replaced_while_it_is_copied(self, store, tmp_path, monkeypatch):
        """Else the copy would hold the zeros with which the old file is overwritten."""
        monkeypatch.setattr(opening, "_ALONE_SECONDS", 0.05)
        real = keystores.Keystore.raw
        tried = []

        def raw(keystore, *place):
            if not tried:
                tried.append(store)
                with pytest.raises(StoreBusy):
                    StoreKeys(store).rekey(**OPS)
            return real(keystore, *place)

        monkeypatch.setattr(keystores.Keystore, "raw", raw)
        StoreKeys(store).export(tmp_path / "copy", bare=True)
        assert tried
        assert (tmp_path / "copy").read_bytes()[SLOTS_AT:] == (store / "log.keys").read_bytes()[SLOTS_AT:]


class TestImport:
    def test_a_missing_keystore_comes_back(self, sealed, tmp_path, kek):
        """Under the store's own key though the copy has another; it is newer than all that was."""
        StoreKeys(sealed, kek=kek("one")).export(tmp_path / "copy", seal=kek("far"))
        (sealed / "log.keys").unlink()
        change = StoreKeys(sealed, kek=kek("one")).import_(tmp_path / "copy", opened_by=kek("far"), **OPS)
        assert (change.generation, change.missing, change.set_aside) == (2, 0, [])
        assert answers(sealed, kek("one")) == WHOLE
        assert faults(sealed, kek("one")) == []
        assert told(sealed, kek("one"))[-1] == ("import", "ops", 2)

    def test_without_a_key_of_its_own_it_is_kept_as_the_copy_is(self, store, tmp_path):
        """It is not laid bare by the way."""
        phrase = KeySource.passphrase("far away")
        StoreKeys(store).export(tmp_path / "copy", seal=phrase)
        (store / "log.keys").unlink()
        StoreKeys(store).import_(tmp_path / "copy", opened_by=phrase, **OPS)
        assert state(store) == "locked"
        assert answers(store, phrase) == WHOLE

    def test_a_keystore_that_works_is_not_replaced(self, sealed, tmp_path, kek):
        """Not even locked; with `replace` it is, and what it knows better is kept: newer keys and erasures."""
        keys = StoreKeys(sealed, kek=kek("one"))
        keys.export(tmp_path / "copy")
        with ConversationLog.open(sealed, kek=kek("one")) as log:
            log.session("s").append_many([Draft(type="message", agent="a", body=str(n)) for n in range(300)])
            log.redact(events=[log.session("s").event(2).id], reason="test", by="ops")
        keys.rekey(**OPS)
        before = (sealed / "log.keys").read_bytes()
        for source in (None, kek("one")):
            with pytest.raises(KeysAtRisk) as refused:
                StoreKeys(sealed, kek=source).import_(tmp_path / "copy", opened_by=kek("one"), **OPS)
            assert refused.value.risk == "live"
        assert (sealed / "log.keys").read_bytes() == before
        expected = answers(sealed, kek("one"))
        assert keys.import_(tmp_path / "copy", replace=True, **OPS).generation == 3
        assert answers(sealed, kek("one")) == expected
        assert expected.count("erased") == 2
        assert faults(sealed, kek("one")) == []

    def test_a_damaged_header_is_made_good_by_a_copy(self, sealed, tmp_path, kek):
        """The slots behind it still open: what was appended after the copy was made is not lost."""
        keys = StoreKeys(sealed, kek=kek("one"))
        keys.export(tmp_path / "copy")
        with ConversationLog.open(sealed, kek=kek("one")) as log:
            log.session("s").append_many([Draft(type="message", agent="a", body=str(n)) for n in range(300)])
            log.redact(events=[log.session("s").event(2).id], reason="test", by="ops")
        expected = answers(sealed, kek("one"))
        with (sealed / "log.keys").open("r+b") as file:
            for at in (0, 4096):
                file.seek(at + 45)
                file.write(b"????")
        assert state(sealed, kek("one")) == "damaged"
        assert keys.import_(tmp_path / "copy", **OPS).missing == 0
        assert answers(sealed, kek("one")) == expected

    def test_what_was_erased_since_stays_erased(self, sealed, tmp_path, kek):
        """A copy from before an erasure has its keys: they are destroyed again before anything is read."""
        keys = StoreKeys(sealed, kek=kek("one"))
        keys.export(tmp_path / "copy")
        with ConversationLog.open(sealed, kek=kek("one")) as log:
            log.redact(events=[log.session("s").event(2).id], reason="test", by="ops")
        (sealed / "log.keys").unlink()
        keys.import_(tmp_path / "copy", **OPS)
        with ConversationLog.open(sealed, kek=kek("one")) as log:
            graves = "SELECT t.slot FROM tombstone AS t"
            with log._store.database.read() as connection:
                slots = [slot for (slot,) in connection.execute(graves).fetchall()]
            assert all(keystores.is_erased(log._store.keystore._one(slot)) for slot in slots)
            assert log.session("s").event(2).answer == "erased"

    def test_a_copy_of_an_older_generation_gives_what_it_has(self, sealed, tmp_path, kek):
        """Where nothing newer is left: later events are lost, the mirror that shows them is set aside, and new ones work."""
        keys = StoreKeys(sealed, kek=kek("one"))
        keys.export(tmp_path / "copy")
        keys.rekey(**OPS)
        with ConversationLog.open(sealed, kek=kek("one")) as log:
            log.session("s").append_many([Draft(type="message", agent="a", body=MARK) for n in range(300)])
        (sealed / "log.keys").unlink()
        change = keys.import_(tmp_path / "copy", **OPS)
        assert change.generation == 3
        assert change.missing > 0
        assert answers(sealed, kek("one")) == [*WHOLE, *["lost"] * 300][: len(WHOLE) + 300]
        assert any(MARK in Path(path).read_text() for path in change.set_aside)
        with ConversationLog.open(sealed, kek=kek("one")) as log:
            assert log.session("s").message("new", agent="a").seq == len(WHOLE) + 301
            log.redact(session="s", reason="test", by="ops")
        assert not any(Path(path).exists() for path in change.set_aside if "/s/" in path)

    def test_an_older_keystore_in_the_place_is_replaced_without_a_word(self, sealed, tmp_path, kek):
        """It cannot be used, and what it has is taken in."""
        keys = StoreKeys(sealed, kek=kek("one"))
        old = (sealed / "log.keys").read_bytes()
        keys.rekey(**OPS)
        keys.export(tmp_path / "copy")
        (sealed / "log.keys").write_bytes(old)
        keys.import_(tmp_path / "copy", **OPS)
        assert answers(sealed, kek("one")) == WHOLE

    @pytest.mark.parametrize(
        "case", ["foreign file", "foreign place", "wrong key", "locked", "no file", "garbage"]
    )
    def test_what_is_refused_changes_nothing(self, sealed, tmp_path, kek, case):
        """A keystore of another store is neither taken nor replaced, `replace` or not; one that does not open is not taken."""
        copy, place = tmp_path / "copy", sealed / "log.keys"
        StoreKeys(sealed, kek=kek("one")).export(copy)
        with ConversationLog.open(tmp_path / "other"):
            pass
        place.unlink()
        opened_by, error = kek("one"), None
        match case:
            case "foreign file":
                shutil.copy(tmp_path / "other" / "log.keys", copy)
                error = KeystoreForeign
            case "foreign place":
                shutil.copy(tmp_path / "other" / "log.keys", place)
                error = KeysAtRisk
            case "wrong key":
                opened_by, error = kek("two"), WrongKey
            case "locked":
                opened_by, error = None, KeystoreLocked
            case "no file":
                copy.unlink()
                error = KeystoreMissing
            case "garbage":
                copy.write_bytes(b"x" * 9000)
                error = KeystoreDamaged
        before = place.read_bytes() if place.exists() else None
        with pytest.raises(error):
            StoreKeys(sealed).import_(copy, opened_by=opened_by, replace=True, **OPS)
        assert (place.read_bytes() if place.exists() else None) == before
        assert left_beside(sealed) == []


class TestReplaceLost:
    def test_the_store_goes_on_without_its_payloads(self, sealed, kek):
        """Lost, never erased; erased stays erased, in the slots too; the envelopes verify; new events are sealed."""
        (sealed / "log.keys").unlink()
        change = StoreKeys(sealed, kek=kek("new")).replace_lost(**OPS)
        assert (change.generation, change.slots) == (2, 0)
        assert change.missing > 0
        expected = ["erased" if one == "erased" else "lost" for one in WHOLE]
        assert answers(sealed, kek("new")) == expected
        assert {rule for rule, _ in faults(sealed, kek("new"))} == {"key-lost"}
        with ConversationLog.open(sealed, kek=kek("new")) as log:
            session = log.session("s")
            assert session.message("after", agent="a").seq == len(WHOLE) + 1
            assert session.tail(1)[0].body == "after"
            told = log.session("_store").tail(1)[0]
            assert (told.agent, told.value["act"]) == ("ops", "replace-lost")
            done = log.redact(session="s", reason="test", by="ops")
            assert (done.erased, done.already, done.protected) == (6, 1, 1)
        assert not any(Path(path).exists() for path in change.set_aside if "/s/" in path)

    def test_the_mirror_that_shows_what_is_lost_is_set_aside(self, sealed, kek):
        """It is the only place where the content can still be read."""
        (sealed / "log.keys").unlink()
        change = StoreKeys(sealed, kek=kek("new")).replace_lost(**OPS)
        (aside,) = (Path(path) for path in change.set_aside if "/s/" in path)
        assert MARK in aside.read_text()
        with ConversationLog.open(sealed, kek=kek("new")) as log:
            log.session("s").message("after", agent="a")
        assert MARK not in (sealed / "sessions" / "s" / "conversation.jsonl").read_text()
        assert MARK in aside.read_text()

    def test_holds_and_policies_are_lost_with_it_and_stop_nothing(self, store):
        """What they held is lost too; they can be placed anew."""
        with ConversationLog.open(store) as log:
            log.place_hold(session="s", reason="legal_order", by="ops")
        (store / "log.keys").unlink()
        StoreKeys(store).replace_lost(**OPS)
        with ConversationLog.open(store) as log:
            assert log.holds() == []
            held = log.place_hold(session="s", reason="legal_order", by="ops")
            assert [hold.id for hold in log.holds()] == [held.id]

    def test_one_that_is_there_is_destroyed_only_when_told(self, sealed, kek, tmp_path):
        """A keystore whose key is lost is there all the same; another store's is never destroyed."""
        with pytest.raises(KeysAtRisk) as refused:
            StoreKeys(sealed).replace_lost(**OPS)
        assert refused.value.risk == "present"
        assert answers(sealed, kek("one")) == WHOLE
        assert StoreKeys(sealed).replace_lost(discard=True, **OPS).generation == 2
        assert answers(sealed).count("lost") == len(WHOLE) - 1
        with ConversationLog.open(tmp_path / "other"):
            pass
        shutil.copy(tmp_path / "other" / "log.keys", sealed / "log.keys")
        with pytest.raises(KeysAtRisk) as refused:
            StoreKeys(sealed).replace_lost(discard=True, **OPS)
        assert refused.value.risk == "foreign"

    def test_an_older_database_is_told_again(self, sealed, tmp_path, kek):
        """A log restored from before does not know of the change: the next writer tells it, once."""
        shutil.copytree(sealed, tmp_path / "backup")
        StoreKeys(sealed, kek=kek("one")).rekey(**OPS)
        for file in ("log.db", "log.db-wal", "log.db-shm"):
            (sealed / file).unlink(missing_ok=True)
            if (tmp_path / "backup" / file).exists():
                shutil.copy(tmp_path / "backup" / file, sealed / file)
        for _ in range(2):
            assert answers(sealed, kek("one"), read_only=False) == WHOLE
            assert told(sealed, kek("one"))[1:] == [("rekey", "ops", 2)]


def test_two_writers_tell_the_log_once(sealed, kek):
    """Processes that open the store at once after a change make one mutation of it."""
    with ConversationLog.open(sealed, kek=kek("one")) as log:
        log._store.keystore.rewrap(kek("two").wrapping(), "rotate", "ops", 2)
    program = "import sys; from convlog_sqlite import *; ConversationLog.open(sys.argv[1], kek=KeySource.file(sys.argv[2])).close()"
    command = [sys.executable, "-c", program, str(sealed), kek("two").where]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert told(sealed, kek("two")) == [("rotate", "ops", 1)] * 2


def test_the_async_twin_does_the_same(store, tmp_path, kek):
    """Each call, awaited."""
    import asyncio

    async def main():
        keys = AsyncStoreKeys(store, kek=kek("one"))
        assert keys.path == store
        assert (await keys.rotate(kek("one"), **OPS)).act == "rotate"
        assert (await keys.rekey(**OPS)).generation == 2
        assert await keys.export(tmp_path / "copy") == tmp_path / "copy"
        assert (await keys.import_(tmp_path / "copy", replace=True, **OPS)).generation == 3
        assert (await keys.status())["state"] == "open"
        assert (await keys.replace_lost(discard=True, **OPS)).generation == 4

    asyncio.run(main())
    assert answers(store, kek("one")).count("lost") == len(WHOLE) - 1


def test_no_key_is_in_a_repr_or_a_result(sealed, kek):
    """Reprs and results end up in logs."""
    keys = StoreKeys(sealed, kek=kek("one"))
    key = Path(kek("one").where).read_text()
    said = repr(keys) + repr(keys.rekey(**OPS)) + repr(keys.status())
    assert key not in said
    with ConversationLog.open(sealed, kek=kek("one")) as log:
        master = log._store.keystore.require_master()
        assert repr(master)[2:-1] not in repr(log._store) + said


def test_a_replaced_keystore_is_told_apart(store):
    """A copy that is put over an open keystore is KeystoreReplaced, and a KeystoreUnusable like the rest."""
    with ConversationLog.open(store) as log:
        shutil.copy(store / "log.keys", store / "copy")
        (store / "copy").replace(store / "log.keys")
        with pytest.raises(KeystoreReplaced):
            log.session("s").read()
    assert issubclass(KeystoreReplaced, KeystoreUnusable)
