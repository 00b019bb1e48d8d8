"""The mirror: plain files that may lag and are never wrong, whatever happens to them or to who writes them."""

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from convlog_sqlite import (
    ConversationLog,
    Draft,
    KeystoreUnusable,
    Locked,
    MirrorBusy,
    StoreError,
    StoreFull,
    StoreIOError,
    UnknownReference,
)

SAFELY = 30  # seconds: a limit for what must come, not a pause


def start(program, *arguments, **more):
    """A program in a process of its own, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )


def wait_for(condition):
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + SAFELY
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.002)


EXPORTER = """
import sys, threading
from convlog_sqlite import ConversationLog
with ConversationLog.open(sys.argv[1]) as log:
    mirror = log.mirror if len(sys.argv) == 2 else log.exporter(sys.argv[2])
    stop = threading.Event()
    mirror.start()
    print("running", flush=True)
    sys.stdin.readline()
    mirror.stop()
"""


@pytest.fixture
def session(log):
    """A session of five events whose mirror is up to date."""
    session = log.session("s")
    for number in range(4):
        session.message(f"message {number}", agent="a")
    return session


@pytest.fixture
def file(log, session):
    """The mirror file of the session."""
    return log.mirror.path("s")


@pytest.fixture
def lines(log):
    """What the file must hold: the log's own lines."""
    return lambda: b"".join(log.lines("s"))


def faults(log):
    """What verify says of the mirror."""
    return [finding.rule for finding in log.verify()]


class TestInStep:
    def test_an_append_brings_the_file_up_to_date(self, log, session, file, lines):
        """When an append returns its line is in the file, byte for byte as the log gives it."""
        assert file.read_bytes() == lines()
        for number in range(5):
            event = session.message(f"more {number}", agent="b")
            assert file.read_bytes().endswith(event.line)
        assert file.read_bytes() == lines()
        assert log.mirror.path("_store").read_bytes() == b"".join(log.lines("_store"))

    def test_a_store_without_mirror_has_no_files(self, store_path):
        """The setting is the store's: every later handle keeps to it."""
        ConversationLog.init(store_path, mirror=False).close()
        with ConversationLog.open(store_path) as log:
            log.session("s").message("x", agent="a")
            assert not log.mirror.enabled
        assert not (store_path / "sessions").exists()

    def test_update_says_how_many_lines_it_wrote(self, log, session, file):
        """Nothing to do is 0, and a session that is not named is left alone."""
        assert log.mirror.update("s") == {"s": 0}
        file.unlink()
        assert log.mirror.update("s") == {"s": 5}
        assert set(log.mirror.update()) == {"s", "_store"}

    @pytest.mark.parametrize("name", ["unknown", "../outside", "", ".", "a/b"])
    def test_an_unknown_session_makes_no_file(self, log, session, name):
        """What is no session of the log is refused and leaves nothing on the disk."""
        before = sorted(log.path.parent.rglob("*"))
        with pytest.raises(UnknownReference):
            log.mirror.update(name)
        with pytest.raises(UnknownReference):
            log.export_to(log.path.parent / "out", name)
        after = [path for path in sorted(log.path.parent.rglob("*")) if path != log.path.parent / "out"]
        assert after == before

    def test_many_lines_at_once(self, log, file, lines):
        """More events than one block holds."""
        log.session("s").append_many([Draft(type="message", agent="a", body=f"{n}") for n in range(1201)])
        assert file.read_bytes() == lines()
        file.unlink()
        assert log.mirror.update("s") == {"s": 1206}
        assert file.read_bytes() == lines()

    def test_an_export_elsewhere_is_the_same(self, log, session, lines, tmp_path):
        """`export_to` writes the same bytes, continues where it stopped, and registers the place first."""
        assert log.export_to(tmp_path / "out", "s") == {"s": 5}
        out = tmp_path / "out" / "s" / "conversation.jsonl"
        assert out.read_bytes() == lines()
        session.message("more", agent="a")
        assert log.export_to(tmp_path / "out", "s") == {"s": 1}
        assert out.read_bytes() == lines()
        with log._store.database.read() as connection:
            registered = connection.execute("SELECT path FROM copy WHERE kind = 2").fetchall()
        assert registered == [(str(tmp_path / "out"),)]


class TestFresh:
    """What was just committed is not read back to be written, and is no less right for it."""

    def test_the_next_line_is_written_as_it_was_committed(self, log, session, file, lines, monkeypatch):
        """An append that goes on where the file ends reads nothing; one that does not reads what is missing."""
        read = []
        blocks = log.reader.blocks
        monkeypatch.setattr(
            log.reader, "blocks", lambda *place, **own: read.append(place) or blocks(*place, **own)
        )
        session.message("alone", agent="a")
        session.append_many([Draft(type="message", agent="a", body=f"{number}") for number in range(3)])
        assert read == []
        with ConversationLog.open(log.path) as other:
            other.session("s").message("from elsewhere", agent="b")
        session.message("behind it", agent="a")
        session.message("once", agent="a", idempotency_key="k")
        session.message("once", agent="a", idempotency_key="k")
        assert file.read_bytes() == lines()
        assert read

    def test_appends_that_share_a_commit_are_written_in_order(self, log, session, file, lines):
        """Several appends of one transaction, in two sessions and with one refused, leave both files right."""
        drafts = [Draft(type="message", agent="a", body=f"{number}") for number in range(4)]
        bad = Draft(
            type="message", agent="a", body="x", links={"evidence": ["0" * 8 + "-0000" * 3 + "-" + "0" * 12]}
        )
        log.append_together(
            [("s", None, drafts[:2]), ("other", None, drafts), ("s", None, [bad]), ("s", None, drafts[2:])]
        )
        assert file.read_bytes() == lines()
        assert log.mirror.path("other").read_bytes() == b"".join(log.lines("other"))

    @pytest.mark.parametrize("unnoticed", [False, True])
    def test_what_was_erased_meanwhile_is_not_written(
        self, log, session, file, lines, monkeypatch, unnoticed
    ):
        """A redaction between the commit of an event and the writing of its line leaves no content in the file.

        That holds too where the file looks as if nobody had touched it: its keys are asked.
        """
        mirror = log.mirror
        after_append = mirror.after_append

        def late(name, fresh=None):
            monkeypatch.undo()
            with ConversationLog.open(log.path) as other:
                event = other.session("s").tail(1)[0]
                assert event.body == "secret"
                assert other.redact(events=[event.id], reason="test", by="a").complete
            if unnoticed:
                monkeypatch.setattr(mirror, "_cursor", lambda *_: fresh.first - 1)
            after_append(name, fresh)

        monkeypatch.setattr(mirror, "after_append", late)
        session.message("secret", agent="a")
        assert b"secret" not in file.read_bytes()
        if not unnoticed:
            assert file.read_bytes() == lines()
            assert faults(log) == []

    def test_a_directory_that_was_made_anew_is_locked_anew(self, log, session, file, lines):
        """A handle keeps its lock open; when the directory is another one, so is the lock."""
        (file.parent).rename(file.parent.with_name("moved"))
        session.message("x", agent="a")
        assert file.read_bytes() == lines()
        with ConversationLog.open(log.path) as other:
            lock = other.mirror._session_lock("s")
            with lock.held(1):
                thread = threading.Thread(target=lambda: session.message("y", agent="a"))
                thread.start()
                wait_for(lambda: session.head == 7)
                assert b'"y"' not in file.read_bytes()
            thread.join()
            lock.close()
        assert file.read_bytes() == lines()

    def test_few_locks_are_kept(self, log):
        """However many sessions a handle appends to, it keeps a bounded number of files open."""
        before = len(list(Path("/dev/fd").iterdir()))
        for number in range(40):
            log.session(f"s{number}").message("x", agent="a")
        assert len(list(Path("/dev/fd").iterdir())) - before < 20


class TestRepair:
    @pytest.mark.parametrize("repair", ["append", "update", "a new handle", "an exporter"])
    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: data + b'{"v":1,"id":"torn',
            lambda data: data[:-1],
            lambda data: data[:-20],
            lambda data: data[: data.index(b"\n") + 1],
            lambda data: b"",
            lambda data: b"garbage without end",
            lambda data: b"garbage\n",
            lambda data: data + b"garbage\n",
            lambda data: data + b"\n\n\n",
            lambda data: data + b'{"seq":3}\n',
            lambda data: data + b'{"seq":"x"}\n',
            lambda data: data + b"[1]\n",
            lambda data: data + b'{"seq":1e400}\n',
            lambda data: data + b"[" * 100_000 + b"\n",
            lambda data: data.replace(b"message 3", b"message x"),
            lambda data: data + bytes(100_000) + b"\n",
            lambda data: data + b"\xff\xfe\n",
        ],
    )
    def test_a_damaged_file_is_made_right(self, log, session, file, lines, damage, repair):
        """A torn tail is cut, what does not match is rebuilt, a missing end is written: no matter who comes next."""
        file.write_bytes(damage(file.read_bytes()))
        if repair == "append":
            session.message("next", agent="a")
        elif repair == "update":
            log.mirror.update("s")
        elif repair == "a new handle":
            with ConversationLog.open(log.path) as other:
                other.session("s").message("next", agent="a")
        else:
            log.mirror.start()
            log.mirror.stop()
        assert file.read_bytes() == lines()
        assert faults(log) == []
        assert sorted(path.name for path in file.parent.iterdir()) == ["conversation.jsonl"]

    def test_a_missing_file_or_directory_is_written_anew(self, log, session, file, lines):
        """Deleting a mirror is allowed: the next append brings it back."""
        file.unlink()
        session.message("next", agent="a")
        assert file.read_bytes() == lines()
        file.unlink()
        file.parent.rmdir()
        session.message("next", agent="a")
        assert file.read_bytes() == lines()

    def test_the_whole_mirror_may_be_moved_away(self, log, session, file, lines):
        """A handle that has the directory's lock open notices that it is another directory now."""
        log.mirror.root.rename(log.path / "away")
        session.message("next", agent="a")
        assert file.read_bytes() == lines()

    def test_a_file_ahead_of_the_log_is_set_aside(self, log, session, file, lines, caplog):
        """Lines that the log does not have (an older database was restored) are kept, apart, and reported."""
        ahead = file.read_bytes() + b'{"v":1,"seq":6,"body":"only here"}\n'
        file.write_bytes(ahead)
        log.mirror.update("s")
        assert file.read_bytes() == lines()
        (aside,) = [path for path in file.parent.iterdir() if path != file]
        assert aside.read_bytes() == ahead
        assert aside.name in caplog.text
        assert faults(log) == []

    def test_a_restored_database_finds_its_mirror_ahead(self, store_path, tmp_path):
        """After a restore and one append the newer lines are still there, in a file aside."""
        with ConversationLog.open(store_path) as log:
            log.session("s").message("old", agent="a")
        subprocess.run(["cp", "-r", store_path, tmp_path / "backup"], check=True)
        with ConversationLog.open(store_path) as log:
            log.session("s").append_many(
                [Draft(type="message", agent="a", body=f"lost {n}") for n in range(9)]
            )
        subprocess.run(["cp", tmp_path / "backup" / "log.db", store_path / "log.db"], check=True)
        with ConversationLog.open(store_path) as log:
            log.session("s").message("new", agent="a")
            file = log.mirror.path("s")
            assert file.read_bytes() == b"".join(log.lines("s"))
            (aside,) = [path for path in file.parent.iterdir() if path != file]
            assert aside.read_bytes().count(b"lost") == 9
            assert faults(log) == []

    def test_a_file_of_another_store_is_replaced(self, log, session, file, lines, tmp_path):
        """Equal numbers are not enough: the last line must be the log's own."""
        with ConversationLog.open(tmp_path / "other") as other:
            for number in range(4):
                other.session("s").message(f"message {number}", agent="a")
            foreign = other.mirror.path("s").read_bytes()
        file.write_bytes(foreign)
        session.message("next", agent="a")
        assert file.read_bytes() == lines()


class TestHostilePlaces:
    def test_a_symbolic_link_is_not_followed(self, log, session, file):
        """A link in place of the file is an error that names it, and its target is not touched."""
        target = log.path.parent / "precious"
        target.write_text("precious")
        file.unlink()
        file.symlink_to(target)
        with pytest.raises(StoreIOError) as refused:
            log.mirror.update("s")
        assert refused.value.path == str(file)
        assert session.message("recorded all the same", agent="a").seq == 6
        assert log.mirror.problem is not None
        assert target.read_text() == "precious"
        file.unlink()
        session.message("again", agent="a")
        assert log.mirror.problem is None
        assert faults(log) == []

    def test_a_link_in_place_of_the_directory_is_not_followed(self, log, session, file):
        """Nor is a link in place of the session's directory."""
        elsewhere = log.path.parent / "elsewhere"
        file.parent.rename(elsewhere)
        file.parent.symlink_to(elsewhere)
        before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
        with pytest.raises(StoreError):
            log.mirror.update("s")
        session.message("recorded all the same", agent="a")
        assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before

    def test_a_link_where_a_file_is_rebuilt_is_not_followed(self, log, session, file, lines):
        """Whoever plants a link at the name used for rebuilding reaches nothing with it."""
        target = log.path.parent / "precious"
        target.write_text("precious")
        (file.parent / ".conversation.jsonl.new").symlink_to(target)
        file.write_bytes(b"garbage\n")
        session.message("next", agent="a")
        assert target.read_text() == "precious"

    def test_a_directory_in_place_of_the_file(self, log, session, file):
        """It is reported; the event is recorded."""
        file.unlink()
        file.mkdir()
        assert session.message("x", agent="a").seq == 6
        assert log.mirror.problem is not None
        with pytest.raises(StoreError):
            log.mirror.update("s")

    def test_one_bad_file_does_not_stop_the_others(self, log, session, file):
        """An exporter that cannot write one session reports it and keeps the others in step."""
        file.unlink()
        file.mkdir()
        log.mirror.start()
        try:
            log.session("t").message("x", agent="a")
            wait_for(
                lambda: log.mirror.path("t").exists() and log.mirror.path("t").read_bytes().count(b"\n") == 2
            )
            assert log.mirror.problem is not None
            file.rmdir()
            wait_for(lambda: log.mirror.problem is None)
            assert file.read_bytes() == b"".join(log.lines("s"))
        finally:
            log.mirror.stop()


class TestLocked:
    def test_a_locked_keystore_exports_nothing(self, log, session, file, monkeypatch, tmp_path):
        """Good lines stay: they are not overwritten by lines without content."""
        before = file.read_bytes()
        monkeypatch.setattr(log._store.keystore, "ciphers", lambda slots: [Locked() for _ in slots])
        for damaged in (before, before + b"garbage\n", before[:-10]):
            file.write_bytes(damaged)
            with pytest.raises(KeystoreUnusable):
                log.mirror.update("s", "_store") if damaged != before else log.export_to(tmp_path / "out")
            assert file.read_bytes().startswith(before[: before.rindex(b"\n", 0, -1) + 1])
        for path in (tmp_path / "out").rglob("*.jsonl"):
            assert path.read_bytes() == b""


class TestFullDisk:
    LIMIT = 96 * 1024

    @pytest.fixture
    def small(self, store_path):
        """A program that may not write files beyond a limit, which holds for the mirror only after many events."""
        return """
            import resource, signal, sys
            from convlog_sqlite import ConversationLog, StoreFull
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            with ConversationLog.open(sys.argv[1], durability="normal") as log:
                session = log.session("s")
                for number in range(10):
                    session.message("x" * 4000, agent="a")
                path = log.mirror.path("s")
                size = path.stat().st_size
                # The database may grow up to here and far beyond what the mirror may.
                exporter = log.exporter(sys.argv[2])
                resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2 + 1000, -1))
                try:
                    exporter.update("s")
                except StoreFull as full:
                    print("full", full.path)
                out = exporter.path("s")
                data = out.read_bytes()
                print(data == b"" or data.endswith(b"\\n"), len(data) < size)
                resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
                exporter.update("s")
                print(out.read_bytes() == path.read_bytes() == b"".join(log.lines("s")))
                exporter.close()
            """

    def test_a_full_disk_is_loud_and_leaves_whole_lines(self, store_path, small, tmp_path):
        """StoreFull with the path, no half line in the file, and once there is room everything is there."""
        done = start(small, store_path, tmp_path / "out")
        out, _ = done.communicate(timeout=SAFELY)
        assert out.splitlines() == [
            f"full {tmp_path / 'out' / 's' / 'conversation.jsonl'}",
            "True True",
            "True",
        ]

    def test_the_append_succeeds_although_the_mirror_cannot(
        self, log, session, file, lines, monkeypatch, caplog
    ):
        """The event is recorded and returned; the trouble is logged once and kept until the next success."""
        from convlog_sqlite import files, rewriting

        def full(_descriptor, _data):
            raise OSError(28, "No space left on device")

        before = file.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_all", full)
            patch.setattr(rewriting, "write_all", full)
            assert [session.message("x", agent="a").seq for _ in range(3)] == [6, 7, 8]
            assert file.read_bytes() == before
            assert "no space left" in log.mirror.problem
            assert log.status()["mirror"]["problem"] == log.mirror.problem
            with pytest.raises(StoreFull):
                log.mirror.update("s")
        assert len([record for record in caplog.records if "no space left" in record.message]) == 1
        session.message("room again", agent="a")
        assert log.mirror.problem is None
        assert file.read_bytes() == lines()

    def test_a_write_that_stops_half_way_is_taken_back(self, log, session, file, lines, monkeypatch):
        """The part of a line that did get written is cut off again at once."""
        from convlog_sqlite import files, rewriting

        def half(descriptor, data):
            os.write(descriptor, data[: len(data) // 2])
            raise OSError(28, "No space left on device")

        before = file.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_all", half)
            patch.setattr(rewriting, "write_all", half)
            session.message("x", agent="a")
            assert file.read_bytes() == before
            file.write_bytes(b"garbage\n")
            session.message("y", agent="a")
            assert sorted(path.name for path in file.parent.iterdir()) == ["conversation.jsonl"]
        session.message("z", agent="a")
        assert file.read_bytes() == lines()

    def test_an_exporter_goes_on_once_there_is_room(self, log, session, file, lines, monkeypatch):
        """It tries again by itself; nothing that came in between is lost."""
        from convlog_sqlite import files, rewriting

        real, full = rewriting.write_all, threading.Event()
        full.set()

        def maybe(descriptor, data):
            if full.is_set():
                raise OSError(28, "No space left on device")
            real(descriptor, data)

        monkeypatch.setattr(files, "write_all", maybe)
        monkeypatch.setattr(rewriting, "write_all", maybe)
        log.mirror.start()
        try:
            session.message("x", agent="a")
            wait_for(lambda: log.mirror.problem is not None)
            session.message("y", agent="a")
            full.clear()
            wait_for(lambda: file.read_bytes() == lines())
        finally:
            log.mirror.stop()
        assert log.mirror.problem is None


class TestExporter:
    def test_there_is_one_at_a_time(self, log, session, tmp_path):
        """A second exporter of the same files is refused while the first lives, and works after it was killed."""
        first = start(EXPORTER, log.path)
        assert first.stdout.readline() == "running\n"
        for attempt in (log.mirror.start, log.mirror.follow, log.mirror.update):
            with pytest.raises(MirrorBusy):
                attempt()
        elsewhere = log.exporter(tmp_path / "out")
        elsewhere.start()
        elsewhere.close()
        assert log.status()["mirror"]["exporter"] == [first.pid]
        first.kill()
        first.communicate()
        log.mirror.start()
        log.mirror.stop()
        assert log.mirror.update("s") == {"s": 0}

    def test_a_refused_start_can_be_tried_again(self, log, session):
        """After MirrorBusy nothing is left that would make the next start a no-op."""
        first = start(EXPORTER, log.path)
        assert first.stdout.readline() == "running\n"
        with pytest.raises(MirrorBusy):
            log.mirror.start()
        first.communicate("\n")
        log.mirror.start()
        assert log.status()["mirror"]["exporter"] == [os.getpid()]
        log.mirror.start()
        log.mirror.stop()
        log.mirror.stop()
        assert log.status()["mirror"]["exporter"] == []

    def test_an_appender_does_nothing_while_an_exporter_runs(self, log, session, file, lines):
        """The work is the exporter's alone: a stopped exporter leaves the file as it is until it goes on."""
        exporter = start(EXPORTER, log.path)
        assert exporter.stdout.readline() == "running\n"
        wait_for(lambda: file.read_bytes() == lines())
        os.kill(exporter.pid, signal.SIGSTOP)
        try:
            before = file.read_bytes()
            for number in range(5):
                session.message(f"while it stands still {number}", agent="a")
            assert file.read_bytes() == before
        finally:
            os.kill(exporter.pid, signal.SIGCONT)
        wait_for(lambda: file.read_bytes() == lines())
        exporter.communicate("\n")
        assert faults(log) == []

    def test_stopping_loses_no_line(self, log, session, file, lines):
        """Whatever was appended while an exporter let go is in the file once appends and stop have returned."""
        for _ in range(15):
            log.mirror.start()
            done = threading.Event()

            def write(done=done):
                while not done.is_set():
                    session.message("x", agent="a")

            writer = threading.Thread(target=write)
            writer.start()
            time.sleep(0.005)
            log.mirror.stop()
            done.set()
            writer.join()
            assert file.read_bytes() == lines()

    def test_only_the_named_sessions_are_exported(self, log, session, tmp_path):
        """An exporter of one session writes no other, not even when its own does not exist yet."""
        exporter, stop = log.exporter(tmp_path / "out"), threading.Event()
        thread = threading.Thread(target=exporter.follow, args=(["later"],), kwargs={"stop": stop})
        thread.start()
        session.message("x", agent="a")
        stop.set()
        thread.join(SAFELY)
        assert not thread.is_alive()
        assert [path.name for path in (tmp_path / "out").rglob("*.jsonl")] == []
        exporter.close()

    def test_a_session_that_comes_later_is_exported(self, log, tmp_path):
        """Naming a session before its first event is allowed: its lines come when it does."""
        exporter, stop = log.exporter(tmp_path / "out"), threading.Event()
        thread = threading.Thread(target=exporter.follow, args=(["later"],), kwargs={"stop": stop})
        thread.start()
        log.session("later").message("x", agent="a")
        out = tmp_path / "out" / "later" / "conversation.jsonl"
        wait_for(lambda: out.exists() and out.read_bytes() == b"".join(log.lines("later")))
        stop.set()
        thread.join(SAFELY)
        exporter.close()

    def test_an_exporter_comes_through_a_crowd(self, log, session):
        """Appenders hold the lock for a moment each: an exporter gets it although four processes append in a loop."""
        program = """
            import sys
            from convlog_sqlite import ConversationLog
            with ConversationLog.open(sys.argv[1], durability="normal") as log:
                session = log.session(sys.argv[2])
                session.message("x", agent="a")
                print("running", flush=True)
                for _ in range(100_000):
                    session.message("x", agent="a")
            """
        crowd = [start(program, log.path, f"crowd-{number}") for number in range(4)]
        try:
            for one in crowd:
                assert one.stdout.readline() == "running\n"
            for _ in range(3):
                log.mirror.start()
                log.mirror.stop()
        finally:
            for one in crowd:
                one.kill()
                one.communicate()

    def test_closing_the_log_stops_its_exporter(self, store_path):
        """close() ends the thread after a last look."""
        before = threading.active_count()
        with ConversationLog.open(store_path) as log:
            log.mirror.start()
            log.session("s").message("x", agent="a")
        assert threading.active_count() == before
        assert (store_path / "sessions" / "s" / "conversation.jsonl").read_bytes().count(b"\n") == 2


def test_lines_are_whole_at_all_times(log, session, file):
    """Whoever reads the file while processes append, an exporter included, finds complete JSON lines up to the last newline."""
    program = """
        import sys
        from convlog_sqlite import ConversationLog
        with ConversationLog.open(sys.argv[1], durability="normal") as log:
            for number in range(150):
                log.session("s").message(f"{number} " * 300, agent=sys.argv[2])
        """
    exporter = start(EXPORTER, log.path)
    assert exporter.stdout.readline() == "running\n"
    writers = [start(program, log.path, name) for name in ("a", "b")]
    seen = looks = 0
    while any(writer.poll() is None for writer in writers) or seen < 305:
        data = file.read_bytes()
        # A reader may come while the one write of many lines is under way, and see how far it is.
        data = data[: data.rfind(b"\n") + 1]
        numbers = [json.loads(line)["seq"] for line in data.splitlines()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= seen
        seen, looks = len(numbers), looks + 1
    for process in (*writers, exporter):
        process.communicate("\n")
        assert process.returncode == 0
    assert looks > 5
    assert file.read_bytes() == b"".join(log.lines("s"))


def test_the_limit_of_this_process_is_as_it_was():
    """No test of a full disk leaves its limit behind."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
