"""Many processes on one store, and processes that die: nothing lost, doubled, out of order, or waiting for a dead one.

The short form runs always. CONVLOG_TEST_FACTOR=20 makes each part that many times longer.
"""

import collections
import json
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from convlog_sqlite import (
    ConversationLog,
    Draft,
    KeystoreUnusable,
    NotAStore,
    StoreError,
    StoreReadOnly,
    UnsupportedFilesystem,
    import_transcripts,
)
from convlog_sqlite import filesystem as filesystems

FACTOR = int(os.environ.get("CONVLOG_TEST_FACTOR", "1"))
SAFELY = 60 * FACTOR  # seconds: a limit for what must come, not a pause
EVENTS = 120 * FACTOR  # of each appender
KILLS = 7 * FACTOR  # of each kind of process

APPENDER = """
import sys
from convlog_sqlite import ConversationLog, Draft
with ConversationLog.open(sys.argv[1]) as log:
    name, count = sys.argv[2], int(sys.argv[3])
    sys.stdin.readline()
    for number in range(count):
        session = log.session(f"s{number % 2}")
        if number % 10 == 9:
            session.append_many([Draft(type="message", agent=name, body=f"{name} {number} {n}") for n in range(3)])
        elif number % 10 == 5:
            call = session.tool_call("shell", {"n": f"{name} {number}"}, agent=name)
            session.tool_result(call, "ok", agent=name)
        else:
            session.message(f"{name} {number}", agent=name, to=["all"])
"""

FOLLOWER = """
import sys
from convlog_sqlite import ConversationLog
with ConversationLog.open(sys.argv[1], read_only=sys.argv[2] == "read-only") as log:
    print("ready", flush=True)
    session, last = log.session("s0"), 0
    for event in session.follow(0, timeout=5):
        print(event.line.decode(), end="", flush=True)
        page = session.tail(20)
        seqs = [found.seq for found in page]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), seqs
        assert seqs[-1] >= last >= 0
        last = seqs[-1]
"""

EXPORTER = """
import sys
from convlog_sqlite import ConversationLog
with ConversationLog.open(sys.argv[1]) as log:
    log.mirror.start()
    print("ready", flush=True)
    sys.stdin.readline()
    log.mirror.stop()
"""


def start(program, *arguments, **more):
    """A program in a process of its own, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )


def go(processes):
    """Let processes that wait for a line start together."""
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def assert_whole(log):
    """Every session counts without gaps, mirrors are byte for byte the log, verify has nothing to say."""
    for name in log.reader.session_ids():
        lines = list(log.lines(name))
        assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
        assert log.mirror.path(name).read_bytes() == b"".join(lines)
    assert list(log.verify()) == []


def test_many_processes_on_one_store(store_path):
    """Four append, two follow, one exports: nothing lost, doubled, gapped or reordered, and everyone saw the same."""
    ConversationLog.init(store_path).close()
    exporter = start(EXPORTER, store_path)
    followers = [start(FOLLOWER, store_path, how) for how in ("read-only", "read-write")]
    for process in (exporter, *followers):
        assert process.stdout.readline() == "ready\n"
    appenders = [start(APPENDER, store_path, f"agent-{number}", EVENTS) for number in range(4)]
    go(appenders)
    seen = [follower.communicate(timeout=SAFELY)[0].splitlines(keepends=True) for follower in followers]
    for appender in appenders:
        appender.communicate(timeout=SAFELY)
    exporter.communicate("\n", timeout=SAFELY)
    assert [process.returncode for process in (exporter, *followers, *appenders)] == [0] * 7
    with ConversationLog.open(store_path) as log:
        assert_whole(log)
        there = [line.decode() for line in log.lines("s0")]
        assert seen == [there, there], "each follower saw all, in order, as it is recorded"
        bodies = collections.Counter(
            event.body
            for name in ("s0", "s1")
            for event in log.session(name).follow(0, timeout=0)
            if event.body
        )
        said = [
            body
            for agent in range(4)
            for number in range(EVENTS)
            if number % 10 != 5
            for body in (
                [f"agent-{agent} {number} {n}" for n in range(3)]
                if number % 10 == 9
                else [f"agent-{agent} {number}"]
            )
        ]
        assert bodies == collections.Counter(said), "each once"
        calls = sum(1 for number in range(EVENTS) if number % 10 == 5) * 4
        results = list(log.session("s1").follow(0, timeout=0, type="tool_result"))
        assert len(results) == calls
        for agent in range(4):
            own = [
                event
                for event in log.session("s0").follow(0, timeout=0, agent=f"agent-{agent}")
                if event.body
            ]
            numbers = [int(event.body.split()[1]) for event in own]
            assert numbers == sorted(numbers), "each author's events in the order in which it wrote them"


class TestKilled:
    """kill -9 at random moments. The seeds are fixed, the moments are not: the machine adds its own chance."""

    @pytest.fixture
    def random(self, request):
        """Chances that are the same at each run."""
        return random.Random(request.node.name)

    def kill_at_random(self, process, moments, longest):
        time.sleep(moments.uniform(0, longest))
        process.send_signal(signal.SIGKILL)
        # `communicate` would leave out what an earlier readline has taken from the pipe beyond its line.
        said = process.stdout.read()
        process.communicate()
        return said

    def test_an_appender(self, store_path, random):
        """Every acknowledged event is there, none twice, retries with the same key included."""
        program = """
            import sys
            from convlog_sqlite import ConversationLog, Draft
            log = ConversationLog.open(sys.argv[1])
            session, number = log.session("s"), int(sys.argv[2])
            while True:
                if number % 4 == 3:
                    drafts = [
                        Draft(type="message", agent="a", body=f"{number}.{n}", idempotency_key=f"{number}.{n}")
                        for n in range(5)
                    ]
                    session.append_many(drafts)
                else:
                    session.message(f"{number}", agent="a", idempotency_key=f"{number}")
                print(number, flush=True)
                number += 1
            """
        number, acknowledged = 0, []
        with ConversationLog.open(store_path) as log:
            for _ in range(KILLS):
                process = start(program, store_path, number)
                process.stdout.readline()
                acknowledged.append(number)
                acknowledged += [
                    int(line) for line in self.kill_at_random(process, random, 0.15).split("\n") if line
                ]
                number = acknowledged[-1] + 1  # the one that may have been in flight is tried again
        with ConversationLog.open(store_path) as log:
            found = collections.Counter(
                event.body for event in log.session("s").follow(0, timeout=0) if event.body
            )
            expected = {
                body
                for one in acknowledged
                for body in ([f"{one}.{n}" for n in range(5)] if one % 4 == 3 else [f"{one}"])
            }
            assert expected <= set(found)
            assert set(found.values()) == {1}
            extra = set(found) - expected
            assert {body.split(".")[0] for body in extra} <= {str(number)}, (
                "at most the last, unacknowledged one"
            )
            assert len(extra) in (0, 1, 5)
            log.session("s").message("repair", agent="a")
            log.mirror.update()
            assert_whole(log)

    def test_an_importer(self, store_path, random, tmp_path):
        """An import that was killed is finished by the next one, and the result is that of one undisturbed run."""
        transcript = tmp_path / "0b1f3c5e-0000-4000-8000-000000000001.jsonl"
        transcript.write_text("".join(transcript_lines(3000)), encoding="utf-8")
        program = """
            import sys
            from convlog_sqlite import ConversationLog, import_transcripts
            with ConversationLog.open(sys.argv[1]) as log:
                print("ready", flush=True)
                import_transcripts(log, "claude-code", [sys.argv[2]])
            """
        reached = 0
        for _ in range(KILLS):
            process = start(program, store_path, transcript)
            process.stdout.readline()
            self.kill_at_random(process, random, 0.12)
            with ConversationLog.open(store_path) as log:
                assert [finding for finding in log.verify() if finding.severity == "fault"] == []
                head = log.session(transcript.stem).head
                assert head >= reached
                reached = head
        with ConversationLog.open(store_path) as log, ConversationLog.open(tmp_path / "undisturbed") as other:
            last = import_transcripts(log, "claude-code", [transcript])
            once = import_transcripts(other, "claude-code", [transcript])
            assert last.new + last.already == once.new == 3000
            assert last.refused == once.refused == 0
            mine, theirs = (
                [
                    (event.type, event.agent, event.source, event.content)
                    for event in each.session(transcript.stem).follow(0, timeout=0)
                ]
                for each in (log, other)
            )
            assert mine == theirs
            log.mirror.update()
            assert_whole(log)

    def test_an_exporter(self, log, random):
        """The mirror is right again after the next append or export, and no reader ever saw a wrong line."""
        program = """
            import sys
            from convlog_sqlite import ConversationLog
            with ConversationLog.open(sys.argv[1]) as log:
                log.mirror.start()
                print("ready", flush=True)
                sys.stdin.read()
            """
        session, number = log.session("s"), 0
        for kill in range(KILLS):
            process = start(program, log.path)
            process.stdout.readline()
            until = time.monotonic() + random.uniform(0, 0.1)
            while time.monotonic() < until:
                session.message(f"{number} " * 400, agent="a")
                number += 1
            process.kill()
            process.communicate()
            if kill % 2:
                session.message("the next", agent="a")
            else:
                log.mirror.update()
            assert log.mirror.path("s").read_bytes() == b"".join(log.lines("s"))
        assert_whole(log)

    def test_whoever_makes_a_store(self, store_path, random):
        """A process killed while it makes a store leaves none or a whole one, and the next makes it."""
        program = """
            import sys
            print("ready", flush=True)
            from convlog_sqlite import ConversationLog
            with ConversationLog.init(sys.argv[1]) as log:
                log.session("s").message("x", agent="a")
            """
        for kill in range(KILLS):
            path = store_path.with_name(f"store-{kill}")
            process = start(program, path)
            process.stdout.readline()
            self.kill_at_random(process, random, 0.35)
            with ConversationLog.open(path) as log:
                log.session("s").message("y", agent="a")
                log.mirror.update()
                assert_whole(log)
            assert not list(path.glob("log.db.new-*"))

    @pytest.mark.parametrize("where", ["keystore", "built", "pointer"])
    def test_making_a_store_stops_half_way(self, store_path, where, tmp_path):
        """A crash between the keystore and the database is no damage: the next `init` makes the store."""
        program = """
            import os, sys
            from convlog_sqlite import ConversationLog, schema
            from convlog_sqlite.store import opening
            where, keys = sys.argv[2], None
            if where == "keystore":
                schema.build = lambda *_: os._exit(0)
            elif where == "built":
                schema.link_into_place = lambda *_: os._exit(0)
            else:
                keys = sys.argv[3]
                opening._build = lambda *_, **__: os._exit(0)
            ConversationLog.init(sys.argv[1], keys=keys)
            """
        for _ in range(3):
            process = start(program, store_path, where, tmp_path / "elsewhere" / "keys")
            process.communicate()
        assert not (store_path / "log.db").exists()
        with ConversationLog.init(store_path) as log:
            assert log.created
            log.session("s").message("x", agent="a")
            assert log.status()["keystore"]["path"] == str(store_path / "log.keys")
            assert_whole(log)

    def test_a_dead_writer_keeps_nobody_waiting(self, log):
        """Locks die with their holder: after kill -9 inside a transaction the next append goes through at once."""
        program = """
            import sys, time
            from convlog_sqlite import ConversationLog
            log = ConversationLog.open(sys.argv[1])
            with log._store.database.write() as connection:
                connection.execute("INSERT INTO name (text) VALUES ('never')")
                print("held", flush=True)
                time.sleep(600)
            """
        holder = start(program, log.path)
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        holder.communicate()
        begun = time.monotonic()
        log.session("s").message("x", agent="a")
        assert time.monotonic() - begun < 5
        with log._store.database.read() as connection:
            assert connection.execute("SELECT 1 FROM name WHERE text = 'never'").fetchall() == []
        assert_whole(log)


def transcript_lines(count):
    """A Claude Code transcript of alternating messages, with calls and results in between."""
    session, parent = "0b1f3c5e-0000-4000-8000-000000000001", None
    for number in range(count):
        uuid = f"00000000-0000-4000-8000-{number:012x}"
        asked = number % 2 == 0
        content = f"message {number}"
        if number % 6 == 3:
            content = [
                {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"command": "ls"}}
            ]
        elif number % 6 == 4:
            content = [{"type": "tool_result", "tool_use_id": f"toolu_{number - 1}", "content": "files"}]
        record = {
            "type": "user" if asked else "assistant",
            "uuid": uuid,
            "parentUuid": parent,
            "sessionId": session,
            "timestamp": f"2026-01-01T00:{number // 60 % 60:02d}:{number % 60:02d}Z",
            "message": {"role": "user" if asked else "assistant", "content": content},
        }
        parent = uuid
        yield json.dumps(record) + "\n"


class TestPlaces:
    @pytest.mark.parametrize("left", ["closed", "killed"])
    def test_a_directory_that_cannot_be_written(self, left):
        """Reading either works or says StoreReadOnly, writing says StoreReadOnly; never is it called no store."""
        program = """
            import os, sys
            from convlog_sqlite import ConversationLog, schema
            if os.getuid() == 0:  # nothing is forbidden to root
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                try:
                    schema.known()
                except OSError:
                    sys.exit("out of reach")
            for read_only in (False, True):
                try:
                    with ConversationLog.open(sys.argv[1], read_only=read_only) as log:
                        print(log.session("s").tail()[-1].body)
                except Exception as error:
                    print(type(error).__name__)
            """
        append = """
            import os, sys
            from convlog_sqlite import ConversationLog
            log = ConversationLog.open(sys.argv[1])
            log.session("s").message("x", agent="a")
            if sys.argv[2] == "closed":
                log.close()
            os._exit(0)
            """
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            store = directory / "store"
            start(append, store, left).communicate()
            directory.chmod(0o755)
            for file in store.rglob("*"):
                file.chmod(0o555 if file.is_dir() else 0o444)
            store.chmod(0o555)
            reader = start(program, store, stderr=subprocess.PIPE)
            said, complaint = reader.communicate()
            store.chmod(0o700)
        if complaint == "out of reach\n":
            pytest.skip("the checkout is in a place that only root may enter")
        said = said.split()
        assert said[0] == "StoreReadOnly"
        assert said[1] in ("x", "StoreReadOnly")

    def test_a_missing_keystore(self, store_path):
        """It is never made anew for a store that has events: KeystoreUnusable, and nothing is created."""
        with ConversationLog.open(store_path) as log:
            log.session("s").message("x", agent="a")
        (store_path / "log.keys").rename(store_path.parent / "kept")
        for attempt in (ConversationLog.open, ConversationLog.init):
            with pytest.raises(KeystoreUnusable):
                attempt(store_path)
        assert not (store_path / "log.keys").exists()
        with ConversationLog.open(store_path, keys=store_path.parent / "kept") as log:
            assert log.session("s").tail()[-1].body == "x"

    def test_a_keystore_without_its_database(self, store_path):
        """A keystore with keys and no database is a damaged store, not a new one."""
        with ConversationLog.open(store_path) as log:
            log.session("s").append_many([Draft(type="message", agent="a", body="x")] * 100)
        for file in store_path.glob("log.db*"):
            file.unlink()
        with pytest.raises(KeystoreUnusable):
            ConversationLog.open(store_path)
        assert not (store_path / "log.db").exists()

    @pytest.mark.parametrize("copies", [(0,), (4096,), (0, 4096)])
    def test_a_damaged_keystore_header(self, store_path, copies):
        """One damaged copy does no harm and is mended; with both the store says so and keeps the file as it is."""
        with ConversationLog.open(store_path) as log:
            log.session("s").message("x", agent="a")
        good = (store_path / "log.keys").read_bytes()
        with (store_path / "log.keys").open("r+b") as file:
            for at in copies:
                file.seek(at)
                file.write(os.urandom(600))
        damaged = (store_path / "log.keys").read_bytes()
        if len(copies) == 2:
            with pytest.raises(KeystoreUnusable):
                ConversationLog.open(store_path)
        else:
            with ConversationLog.open(store_path) as log:
                assert log.session("s").tail()[-1].body == "x"
        assert (store_path / "log.keys").read_bytes() == (damaged if len(copies) == 2 else good)

    def test_a_keystore_of_another_store(self, store_path, tmp_path):
        """Keys of another store open nothing here, and are not tried."""
        ConversationLog.open(store_path).close()
        ConversationLog.open(tmp_path / "another").close()
        (store_path / "log.keys").write_bytes((tmp_path / "another" / "log.keys").read_bytes())
        with pytest.raises(KeystoreUnusable):
            ConversationLog.open(store_path)

    def test_a_keystore_elsewhere(self, store_path, tmp_path):
        """`keys` puts it there, later handles find it, and the directory holds none."""
        keys = tmp_path / "secret" / "keys"
        with ConversationLog.init(store_path, keys=keys) as log:
            log.session("s").message("x", agent="a")
        assert stat.S_IMODE(keys.stat().st_mode) == 0o600
        assert not (store_path / "log.keys").exists()
        with ConversationLog.open(store_path) as log:
            assert log.session("s").tail()[-1].body == "x"
            assert log.status()["keystore"]["path"] == str(keys)

    def test_a_directory_with_the_path_of_a_file(self, tmp_path):
        """A file where the store should be is a StoreError."""
        (tmp_path / "file").write_text("")
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(StoreError):
                ConversationLog.open(path)

    def test_a_handle_keeps_restoring_out(self, log):
        """While a handle is open, whoever needs the store alone does not get it, and the other way round."""
        import fcntl

        descriptor = os.open(log.path / "log.open", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        log.close()
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(StoreError) as refused:
            ConversationLog.open(log.path)
        assert "restored" in refused.value.rule
        os.close(descriptor)


class TestFilesystems:
    MOUNTS = textwrap.dedent(
        r"""
        21 1 8:1 / / rw - ext4 /dev/sda1 rw
        22 21 0:30 / /home rw,relatime shared:1 - nfs4 server:/home rw
        23 22 0:31 / /home/me/local rw - xfs /dev/sdb1 rw
        24 21 0:32 / /mnt/with\040space rw - cifs //server/share rw
        25 21 0:33 / /over rw - nfs server:/x rw
        26 25 0:34 / /over rw - tmpfs tmpfs rw
        27 21 0:35 / /mnt/c rw - 9p drvfs rw
        """
    ).lstrip()

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/etc", "ext4"),
            ("/home/me/project", "nfs4"),
            ("/home/me/local/project", "xfs"),
            ("/homestead", "ext4"),
            ("/mnt/with space/x", "cifs"),
            ("/over/x", "tmpfs"),
            ("/mnt/c/Users", "9p"),
        ],
    )
    def test_the_kind_is_that_of_the_innermost_mount(self, tmp_path, path, kind):
        """The longest mount point that holds the path counts, and of two on one point the later."""
        mountinfo = tmp_path / "mountinfo"
        mountinfo.write_text(self.MOUNTS)
        assert filesystems.filesystem_kind(path, str(mountinfo)) == kind

    def test_where_nothing_is_known_nothing_is_refused(self, tmp_path):
        """Without mountinfo (macOS) the kind is None."""
        assert filesystems.filesystem_kind(tmp_path, str(tmp_path / "missing")) is None

    @pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "fuse.sshfs"])
    def test_a_network_file_system_is_refused(self, store_path, monkeypatch, kind):
        """With its name and the way round: nothing is made there unless the environment names that very kind."""
        monkeypatch.setattr(filesystems, "filesystem_kind", lambda *_: kind)
        with pytest.raises(UnsupportedFilesystem) as refused:
            ConversationLog.open(store_path)
        assert refused.value.kind == kind
        assert not (store_path / "log.db").exists()
        monkeypatch.setenv("CONVLOG_ALLOW_FILESYSTEM", "another")
        with pytest.raises(UnsupportedFilesystem):
            ConversationLog.open(store_path)
        monkeypatch.setenv("CONVLOG_ALLOW_FILESYSTEM", kind)
        with ConversationLog.open(store_path) as log:
            log.session("s").message("x", agent="a")
        monkeypatch.delenv("CONVLOG_ALLOW_FILESYSTEM")
        for read_only in (False, True):
            with pytest.raises(UnsupportedFilesystem):
                ConversationLog.open(store_path, read_only=read_only)

    @pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "apfs", None])
    def test_a_local_file_system_is_taken(self, store_path, monkeypatch, kind):
        """What is local, or unknown, is used."""
        monkeypatch.setattr(filesystems, "filesystem_kind", lambda *_: kind)
        ConversationLog.open(store_path).close()


class TestFullDisk:
    def test_an_append_that_does_not_fit_is_not_written(self, store_path):
        """The store is full: StoreFull, nothing of the call is there, and it goes on once there is room."""
        program = """
            import json, resource, signal, sys
            from convlog_sqlite import ConversationLog, StoreFull
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            with ConversationLog.open(sys.argv[1]) as log:
                session, recorded = log.session("s"), []
                recorded.append(session.message("first", agent="a").seq)
                resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, -1))
                refused = 0
                for number in range(400):
                    try:
                        recorded.append(session.message("x" * 6000, agent="a").seq)
                    except StoreFull:
                        refused += 1
                        if refused == 5:
                            break
                resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
                recorded.append(session.message("room", agent="a").seq)
                print(json.dumps([refused, recorded, session.head, [f.to_dict() for f in log.verify()]]))
            """
        process = start(program, store_path)
        out, _ = process.communicate(timeout=SAFELY)
        refused, recorded, head, findings = json.loads(out)
        assert refused == 5
        assert recorded == list(range(2, len(recorded) + 2))
        assert head == recorded[-1]
        assert findings == []


def test_errors_of_opening_are_told_apart(tmp_path, store_path):
    """No store, and a store that cannot be written, are different classes: none is read from a text."""
    with pytest.raises(NotAStore):
        ConversationLog.open(tmp_path / "nothing", create=False)
    ConversationLog.open(store_path).close()
    with ConversationLog.open(store_path, read_only=True) as log, pytest.raises(StoreReadOnly):
        log.session("s").message("x", agent="a")
