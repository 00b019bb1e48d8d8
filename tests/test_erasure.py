"""Erasure: after `redact` returned, the content is nowhere the store knows of, and no crash makes a false claim."""

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import apsw
import pytest

from convlog_sqlite import (
    AsyncConversationLog,
    Attachment,
    ConversationLog,
    Draft,
    FilesLeft,
    IdempotencyConflict,
    InvalidEvent,
    MirrorBusy,
    PayloadErased,
    Projection,
    StoreBusy,
    StoreIOError,
    StoreReadOnly,
    UnknownReference,
    import_transcripts,
    rewriting,
)
from convlog_sqlite import keystore as keystores
from convlog_sqlite.files import Replacement
from convlog_sqlite.keystore import SLOT_BYTES
from convlog_sqlite.locks import FileLock
from convlog_sqlite.redaction import Redactor
from convlog_sqlite.store import committing

MARK = "xyzzy-mark"
ROUNDS = int(os.environ.get("CONVLOG_TEST_ROUNDS", "60"))
WHY = {"reason": "test", "by": "operator"}
SLOTS_AT = 8192
TRANSCRIPT = Path(__file__).resolve().parent.parent / "tools" / "demo-transcript"


def run(program, *arguments, check=True):
    """A program in a process of its own; its status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def start(program, *arguments):
    """A program in a process of its own, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def marked_events(session):
    """Append marked content through every verb, of many sizes and shapes."""
    mark = MARK
    events = [session.message(f"{mark} {'x' * size}", agent="a") for size in (0, 1, 90, 900, 8000)]
    events += [session.message(f"{mark} " * size, agent="a", to=["b"]) for size in (900, 20_000, 200_000)]
    call = session.tool_call("shell", {"command": mark, "deep": [[{"k": mark}]]}, agent="a", task_id="t")
    events += [
        call,
        session.tool_result(call, {mark: [1, 2.5, None, mark]}, agent="a"),
        session.mutation("decision-made", {"why": mark}, agent="a", task_id="t"),
        session.message("plain", agent="a", meta={"note": mark}, usage={"model": mark}),
        session.message(f"é {mark} 漢字 \u0001", agent="a", subjects=["Ada"]),
        session.message(
            "with files",
            agent="a",
            attachments=[
                Attachment("text/plain", mark.encode() * 10),
                Attachment("image/png", mark.encode() * 300_000),
                Attachment("text/plain", b""),
            ],
        ),
        session.append(Draft(type="message", agent="a", body=mark, idempotency_key="k")),
        *session.append_many([Draft(type="message", agent="b", body=f"{mark}{n}") for n in range(50)]),
    ]
    return events


def slots_of(log, events):
    """Every slot of these events, blobs included."""
    wanted = {event.id.replace("-", "") for event in events}
    with log._store.database.read() as connection:
        rows = connection.execute(
            "SELECT hex(v.id), s.number FROM slot AS s JOIN envelope AS v ON v.pos = s.pos"
        ).fetchall()
    return [number for event_id, number in rows if event_id.lower() in wanted]


def secrets_of(log, events):
    """The data keys of these events, and their slots as they are in the file."""
    slots = slots_of(log, events)
    keystore = log._store.keystore
    return [*keystore.read(slots), *(keystore._one(slot) for slot in slots)]


def files_below(*directories):
    """Every file, but for those that SQLite locks in this process: those are read by another process."""
    return [path for directory in directories for path in directory.rglob("*") if path.is_file()]


def residue(needles, *directories, held=()):
    """Where any of the needles is found: searched by a process of its own, which cannot drop SQLite's locks."""
    program = """
        import json, sys
        needles = [bytes.fromhex(needle) for needle in json.loads(sys.stdin.readline())]
        for path in json.loads(sys.stdin.readline()):
            with open(path, "rb") as file:
                data = file.read()
            print(*[path + "\\n" for needle in needles if needle in data], sep="", end="")
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        input=json.dumps([needle.hex() for needle in needles])
        + "\n"
        + json.dumps([str(path) for path in files_below(*directories)]),
        capture_output=True,
        text=True,
        check=True,
    )
    kept = [
        str(number)
        for number, descriptor in enumerate(held)
        if any(needle in os.pread(descriptor, 1 << 30, 0) for needle in needles)
    ]
    return done.stdout.split() + kept


def tombstones(log):
    """How many there are."""
    with log._store.database.read() as connection:
        return connection.execute("SELECT count(*) FROM tombstone").get


def pending(log):
    """How many erasures are decided and not done."""
    with log._store.database.read() as connection:
        return connection.execute("SELECT count(*) FROM intent").get


@pytest.fixture
def session(log):
    """A session."""
    return log.session("s")


class TestResidue:
    def test_nothing_is_left_in_any_file(self, log, session, tmp_path):
        """Content of every verb, size and shape: no mark, key or wrapped slot is left, not even in old inodes."""
        events = marked_events(session)
        out = tmp_path / "out"
        log.export_to(out)
        files = [log.mirror.path("s"), out / "s" / "conversation.jsonl"]
        held = [os.open(path, os.O_RDONLY) for path in files]
        needles = [MARK.encode(), *secrets_of(log, events)]
        assert len(set(residue(needles, log.path, out, held=held))) >= 5
        done = log.redact(session="s", **WHY)
        assert done.complete
        assert (done.matched, done.erased, done.protected) == (len(events) + 1, len(events) + 1, 0)
        assert residue(needles, log.path, out, held=held) == []
        for descriptor in held:
            os.close(descriptor)
        assert [event.answer for event in session.read(limit=1000)][:-1] == ["erased"] * (len(events) + 1)
        assert files[0].read_bytes() == files[1].read_bytes() == b"".join(log.lines("s"))
        assert list(log.verify()) == []
        assert all(path.name == "conversation.jsonl" for path in files_below(log.path / "sessions", out))

    def test_one_event_of_many(self, log, session):
        """Only the one that was named is gone; its envelope, place and chain stay."""
        events = marked_events(session)
        chosen = events[7]
        needles = secrets_of(log, [chosen])
        log.redact(events=[chosen.id], **WHY)
        assert residue(needles, log.path) == []
        found = {event.id: event for event in session.read(limit=1000)}
        assert [event_id for event_id, event in found.items() if event.answer != "live"] == [chosen.id]
        gone = found[chosen.id]
        assert (gone.seq, gone.agent, gone.to) == (chosen.seq, "a", ["b"])
        redaction = log.event(gone.redacted["by"])
        assert (redaction.kind, redaction.agent, redaction.value["events"]) == ("redaction", "operator", 1)
        assert gone.redacted["reason"] == redaction.value["reason"] == "test"

    def test_with_a_reader_open(self, log, session):
        """A snapshot held open keeps the WAL, which holds sealed bytes only; no key or text is left."""
        events = marked_events(session)
        needles = [MARK.encode(), *secrets_of(log, events)]
        reader = start(
            """
            import sys, apsw
            connection = apsw.Connection(sys.argv[1])
            connection.execute("BEGIN"); connection.execute("SELECT count(*) FROM payload").get
            print("ready", flush=True); sys.stdin.read()
            """,
            log.path / "log.db",
        )
        reader.stdout.readline()
        done = log.redact(session="s", **WHY)
        assert done.complete
        assert not done.wal_truncated
        assert residue(needles, log.path) == []
        reader.communicate("")

    def test_an_old_database_gives_nothing(self, log, session, tmp_path):
        """A copy of the database from before opens nothing of what was erased, and everything else."""
        events = marked_events(session)
        with log._store.database.write():  # nobody else writes while it is copied
            copied = apsw.Connection(str(tmp_path / "old.db"))
            with copied.backup("main", log._store.database._reader, "main") as backup:
                backup.step()
            copied.close()
        log.redact(events=[events[0].id], **WHY)
        log.close()
        for name in ("log.db-wal", "log.db-shm"):
            (log.path / name).unlink(missing_ok=True)
        shutil.copy(tmp_path / "old.db", log.path / "log.db")
        with ConversationLog.open(log.path) as restored:
            answers = {event.id: event.answer for event in restored.session("s").read(limit=1000)}
            assert answers.pop(events[0].id) == "erased"
            assert set(answers.values()) == {"live"}
            (fault,) = [finding for finding in restored.verify() if finding.rule == "tombstone"]
            assert fault.event_id == events[0].id
            assert "older database" in fault.detail
            assert restored.redact(events=[events[0].id], **WHY).complete
            assert [finding.rule for finding in restored.verify()] == []

    def test_what_a_crash_left_beside_a_file_goes_too(self, log, session):
        """A half-written new file, a half-destroyed old one and files set aside are overwritten and removed."""
        event = session.message(MARK, agent="a")
        file = log.mirror.path("s")
        held = []
        for name in (".conversation.jsonl.new", ".conversation.jsonl.old", "conversation.jsonl.ahead-1"):
            beside = file.with_name(name)
            shutil.copy(file, beside)
            held.append(os.open(beside, os.O_RDONLY))
        log.redact(events=[event.id], **WHY)
        assert residue([MARK.encode()], log.path, held=held) == []
        assert sorted(path.name for path in file.parent.iterdir()) == ["conversation.jsonl"]

    def test_a_mirror_is_never_emptied_by_what_a_crash_left(self, log, session):
        """A crash between the second name and the new file leaves two names of one file: it stays readable."""
        event = session.message(MARK, agent="a")
        file = log.mirror.path("s")
        os.link(file, file.with_name(".conversation.jsonl.old"))
        seen = []
        real = Replacement.put

        def spy(new):
            seen.append(file.read_bytes())
            real(new)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Replacement, "put", spy)
            log.redact(events=[event.id], **WHY)
        assert MARK.encode() in seen[0]
        assert residue([MARK.encode()], log.path) == []

    def test_in_memory(self):
        """An ephemeral log erases too, and goes on."""
        with ConversationLog.ephemeral() as log:
            session = log.session("s")
            event = session.message(MARK, agent="a")
            assert log.redact(events=[event.id], reason="test", by="a").complete
            assert session.message("next", agent="a").seq == 4
            assert session.tail(3)[0].answer == "erased"
            assert list(log.verify()) == []


class TestWhatIsErased:
    def test_again_is_already(self, log, session):
        """What is erased is counted as such, and nothing is written for it."""
        event = session.message(MARK, agent="a")
        first = log.redact(events=[event.id], **WHY)
        head = session.head
        again = log.redact(events=[event.id, event.id], **WHY)
        assert (first.erased, first.already) == (1, 0)
        assert (again.matched, again.erased, again.already, again.redactions) == (1, 0, 1, [])
        assert session.head == head
        assert log.event(event.id).redacted["by"] == first.redactions[0]

    @pytest.mark.parametrize(
        "unknown",
        [
            {"events": ["0197a000-0000-7000-8000-000000000000"]},
            {"events": ["no-id"]},
            {"session": "nowhere"},
        ],
    )
    def test_unknown_names_are_refused_whole(self, log, session, unknown):
        """An id that does not exist is an error, and the others of the call are not erased either."""
        event = session.message(MARK, agent="a")
        with pytest.raises(UnknownReference):
            log.redact(**{"events": [event.id], **unknown} if "session" not in unknown else unknown, **WHY)
        if "events" in unknown:
            with pytest.raises(UnknownReference):
                log.redact(events=[event.id, *unknown["events"]], **WHY)
        assert log.event(event.id).body == MARK
        assert pending(log) == tombstones(log) == 0

    @pytest.mark.parametrize(
        "wrong",
        [
            {},
            {"events": []},
            {"session": "s", "agent": "a"},
            {"session": "s", "reason": "because"},
            {"session": "s", "by": ""},
        ],
    )
    def test_nonsense_is_refused(self, log, session, wrong):
        """No scope, two scopes, a reason that is none, an author that is none."""
        session.message(MARK, agent="a")
        with pytest.raises(InvalidEvent):
            log.redact(**{**WHY, **wrong})
        assert pending(log) == tombstones(log) == 0

    def test_read_only(self, log, session):
        """A read-only handle erases nothing."""
        event = session.message(MARK, agent="a")
        with ConversationLog.open(log.path, read_only=True) as other, pytest.raises(StoreReadOnly):
            other.redact(events=[event.id], **WHY)

    def test_redactions_and_the_store_are_protected(self, log, session):
        """What was erased and by whom cannot be erased, nor what the store says of itself."""
        event = session.message(MARK, agent="a")
        log.redact(events=[event.id], **WHY)
        whole = log.redact(session="s", **WHY)
        assert (whole.matched, whole.already, whole.protected) == (3, 1, 1)
        own = log.redact(session="_store", **WHY)
        assert own.protected == own.matched > 0
        assert {event.answer for event in log.session("_store").read()} == {"live"}
        kept = [event for event in session.read() if event.kind == "redaction"]
        assert [event.answer for event in kept] == ["live", "live"]

    def test_scopes(self, log):
        """A task, an agent, a subject: in every session, and nothing else."""
        for name in ("one", "two"):
            session = log.session(name)
            session.message("task", agent="x", task_id="t")
            session.message("agent", agent="ada")
            session.message("subject", agent="x", subjects=["Ada Lovelace"])
            session.message("kept", agent="x", task_id="u", subjects=["Bob"])
        for scope in ({"task": "t"}, {"agent": "ada"}, {"subject": "Ada Lovelace"}):
            plan = log.redact(**scope, **WHY, dry_run=True)
            done = log.redact(**scope, **WHY)
            assert plan.erased == done.erased == 2
            assert len(done.redactions) == 2
        for name in ("one", "two"):
            live = [
                event.body for event in log.session(name).read() if event.type == "message" and event.body
            ]
            assert live == ["kept"]
        assert log.redact(subject="Nobody", **WHY).matched == 0
        for redaction in (event for event in log.session("one").read() if event.kind == "redaction"):
            assert "Ada" not in json.dumps(redaction.to_dict())
        assert list(log.verify()) == []

    def test_a_dry_run_changes_nothing(self, log, session):
        """Not one byte of the store differs."""
        event = session.message(MARK, agent="a")
        before = log.anchor().chain
        plan = log.redact(events=[event.id], **WHY, dry_run=True)
        assert (plan.dry_run, plan.erased, plan.redactions) == (True, 1, [])
        assert log.anchor().chain == before
        assert log.event(event.id).body == MARK

    def test_a_scope_covers_what_was_there_at_the_intent(self, log, session, monkeypatch):
        """What is appended once the intent is committed is new, and stays."""
        first = session.message(MARK, agent="a")
        later = []
        real = keystores.Keystore.destroy

        def destroy(keystore, records):
            later.append(session.message("later", agent="a"))
            real(keystore, records)

        monkeypatch.setattr(keystores.Keystore, "destroy", destroy)
        log.redact(agent="a", **WHY)
        assert log.event(first.id).answer == "erased"
        assert log.event(later[0].id).body == "later"

    def test_idempotency_keys_outlive_erasure(self, log, session):
        """The key gives the first event, whatever the content; nothing is recorded again."""
        first = session.message(MARK, agent="a", idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            session.message("other", agent="a", idempotency_key="k")
        log.redact(events=[first.id], **WHY)
        for body in (MARK, "other"):
            again = session.message(body, agent="a", idempotency_key="k")
            assert (again.id, again.answer) == (first.id, "erased")

    def test_an_import_again_brings_nothing_back(self, log, tmp_path):
        """Erased events of a transcript are known, and stay erased."""
        place = tmp_path / "transcripts"
        shutil.copytree(TRANSCRIPT, place)
        import_transcripts(log, "claude-code", [place])
        (name,) = [summary.id for summary in log.sessions() if summary.id != "_store"]
        head = log.session(name).head
        log.redact(session=name, **WHY)
        import_transcripts(log, "claude-code", [place])
        events = log.session(name).read(limit=10_000)
        assert len(events) == head + 1
        assert {event.answer for event in events[:-1]} == {"erased"}

    def test_an_older_event_object_gives_no_blob(self, log, session):
        """Attachments and whole values are asked of the log, which says that they are erased."""
        event = session.message("x" * 20_000, agent="a", attachments=[Attachment("text/plain", b"file")])
        log.redact(events=[event.id], **WHY)
        with pytest.raises(PayloadErased):
            session.attachment(event, 0)
        with pytest.raises(PayloadErased):
            session.content(event)


# Patches a step so that the process dies there, or before it.
DYING = """
    import os, signal, sys
    from convlog_sqlite import ConversationLog, files, mirror, redaction, rewriting
    from convlog_sqlite.keystore import DiskFile, Keystore
    from convlog_sqlite.store import committing, erasing

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def die_after(owner, name, times=1):
        real, calls = getattr(owner, name), []
        def step(*arguments, **more):
            done = real(*arguments, **more)
            calls.append(1)
            if len(calls) == times:
                die()
            return done
        setattr(owner, name, step)

    unsynced = []

    def forget_unsynced():
        # A power loss: what was written to the keystore and not synced is as it was before.
        write, sync = DiskFile.write, DiskFile.sync
        def remember(file, data, offset):
            unsynced.append((file, file.read(len(data), offset), offset))
            write(file, data, offset)
        def synced(file):
            sync(file)
            unsynced.clear()
        DiskFile.write, DiskFile.sync = remember, synced
        global die
        kill = die
        def die(*_, **__):
            for file, before, offset in reversed(unsynced):
                write(file, before, offset)
            kill()

    log = ConversationLog.open(sys.argv[1])
"""
REDACT = """
    log.redact(session="s", reason="test", by="operator")
    print("returned")
"""
STEPS = {
    "the intent is committed": "die_after(erasing.Eraser, 'intend')",
    "before the slots are overwritten": "Keystore.destroy = die",
    "some slots are overwritten": "die_after(DiskFile, 'write', 3)",
    "the slots are overwritten and not synced": "DiskFile.sync = die",
    "the slots are overwritten": "die_after(Keystore, 'destroy')",
    "inside the transaction that wipes": "die_after(committing.Writer, 'record_inside')",
    "the content is wiped": "die_after(erasing.Eraser, 'erase')",
    "a file is half rewritten": "die_after(rewriting, 'write_all')",
    "a file has a second name": "die_after(os, 'link')",
    "a file is rewritten": "die_after(files.Replacement, 'put')",
    "an old file is overwritten": "die_after(files, 'destroy', 4)",
    "one file of two is rewritten": "die_after(mirror.Mirror, 'rewrite')",
    "before the intent is forgotten": "erasing.Eraser.settle = die",
}


@pytest.fixture
def dying(log, session, tmp_path):
    """Run a redaction that dies at a step; gives what must be found nowhere afterwards."""
    events = [session.message(f"{MARK} {n}", agent="a") for n in range(700)]
    events.append(
        session.message(MARK * 3000, agent="a", attachments=[Attachment("text/plain", b"file" * 99)])
    )
    log.session("other").message("kept", agent="a")
    out = tmp_path / "out"
    log.export_to(out)
    needles = [MARK.encode(), *secrets_of(log, events)]
    log.close()

    def die_at(step, redact=REDACT):
        done = run(DYING + f"    {step}\n" + redact, log.path, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        return needles, out

    return die_at


class TestCrashes:
    @pytest.mark.parametrize("step", STEPS)
    def test_the_next_open_finishes_what_a_kill_left(self, dying, store_path, step):
        """After kill -9 at each step nothing false is claimed, and one open for writing completes the erasure."""
        needles, out = dying(STEPS[step])
        with ConversationLog.open(store_path, read_only=True) as log:
            said = [finding for finding in log.verify() if finding.rule != "mirror-behind"]
            assert said == []
            assert pending(log) == 1
        with ConversationLog.open(store_path) as log:
            assert pending(log) == 0
            assert residue(needles, store_path, out) == []
            events = log.session("s").read(limit=1000)
            assert {event.answer for event in events[:-1]} == {"erased"}
            assert events[-1].kind == "redaction"
            assert len({event.id for event in events}) == len(events) == 703
            assert log.session("other").tail(1)[0].body == "kept"
            assert list(log.verify()) == []
            assert log.mirror.path("s").read_bytes() == b"".join(log.lines("s"))
            assert log.redact(session="s", **WHY).already == 702

    @pytest.mark.parametrize("step", STEPS)
    def test_power_loss(self, dying, store_path, step):
        """Where what was not synced is lost too, a tombstone still stands only where the key is gone."""
        needles, out = dying(
            "forget_unsynced()\n    "
            + STEPS[step].replace("DiskFile.sync = die", "DiskFile.sync = lambda _: die()")
        )
        with ConversationLog.open(store_path, read_only=True) as log:
            assert [finding for finding in log.verify() if finding.rule != "mirror-behind"] == []
        with ConversationLog.open(store_path) as log:
            assert pending(log) == 0
            assert residue(needles, store_path, out) == []
            assert list(log.verify()) == []

    def test_the_reversed_order_would_fail(self, dying, store_path):
        """Tombstones before the keystore is synced: the same power loss leaves a tombstone and a live key."""
        reversed_order = """
    def erase(self, intent):
        from convlog_sqlite.database import fetch
        with self._database.read() as connection:
            events = fetch(connection, erasing.SELECT_INTENT_EVENTS, (intent.id,))
            parts = fetch(connection, erasing.SELECT_BLOB_SLOTS, (intent.id,))
        self._wipe(intent, events, parts)
        record = erasing.erasure_record(intent.id, intent.at // 1000, intent.reason)
        DiskFile.sync = lambda _: die()
        self._keystore.destroy({slot: record for _, _, slot in events})
    erasing.Eraser.erase = erase
"""
        dying("forget_unsynced()", reversed_order + REDACT)
        with ConversationLog.open(store_path, read_only=True) as log:
            assert "tombstone" in {finding.rule for finding in log.verify()}

    def test_a_failed_sync_claims_nothing(self, log, session, monkeypatch):
        """The error is raised, no tombstone is written, the intent stays; the next call finishes it."""
        event = session.message(MARK, agent="a")
        with monkeypatch.context() as patch:

            def fail(_):
                raise OSError(5, "Input/output error")

            patch.setattr(keystores, "sync", fail)
            with pytest.raises(StoreIOError):
                log.redact(events=[event.id], **WHY)
            assert (pending(log), tombstones(log)) == (1, 0)
            assert all(finding.rule == "mirror-behind" for finding in log.verify())
            with ConversationLog.open(log.path) as other:  # it cannot be finished, and the store can be used
                assert pending(other) == 1
                assert other.session("other").head == 0
        again = log.redact(events=[event.id], **WHY)
        assert (again.already, again.complete, len(again.redactions)) == (1, True, 1)
        assert (pending(log), tombstones(log)) == (0, 1)
        assert residue([MARK.encode()], log.path) == []

    def test_a_slot_that_does_not_read_back_claims_nothing(self, log, session, monkeypatch):
        """A write that the disk swallowed is noticed."""
        event = session.message(MARK, agent="a")
        with monkeypatch.context() as patch:
            patch.setattr(keystores.DiskFile, "write", lambda *_: None)
            with pytest.raises(StoreIOError):
                log.redact(events=[event.id], **WHY)
        assert tombstones(log) == 0

    def test_a_living_redactor_is_not_disturbed(self, log, session):
        """Opening a store does not wait for an erasure that somebody is at."""
        session.message(MARK, agent="a")
        lock = FileLock(log.path / "log.erase")
        with lock.held(1):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("convlog_sqlite.store.erasing.Eraser.erase", lambda *_: 1 / 0)
                patch.setattr("convlog_sqlite.redaction._Alone.__enter__", lambda alone: log._store.database)
                patch.setattr("convlog_sqlite.redaction._Alone.__exit__", lambda *_: None)
                with pytest.raises(ZeroDivisionError):
                    log.redact(session="s", **WHY)
            began = time.monotonic()
            with ConversationLog.open(log.path) as other:
                assert time.monotonic() - began < 2
                assert pending(other) == 1
        lock.close()
        with ConversationLog.open(log.path) as other:
            assert pending(other) == 0


class TestUnreachable:
    def test_an_export_that_is_away(self, log, session, tmp_path):
        """It is named, the erasure stays pending, and the next call with the export back finishes it."""
        event = session.message(MARK, agent="a")
        out, away = tmp_path / "out", tmp_path / "away"
        log.export_to(out)
        out.rename(away)
        done = log.redact(events=[event.id], **WHY)
        assert not done.complete
        assert done.unreachable == [str(out / "s" / "conversation.jsonl")]
        assert log.event(event.id).answer == "erased"
        assert residue([MARK.encode()], log.path) == []
        assert pending(log) == 1
        again = log.redact(events=[event.id], **WHY)
        assert (again.complete, again.already, again.unreachable) == (False, 1, done.unreachable)
        away.rename(out)
        finished = log.redact(events=[event.id], **WHY)
        assert finished.complete
        assert pending(log) == 0
        assert residue([MARK.encode()], log.path, out) == []

    def test_the_next_open_finishes_too(self, log, session, tmp_path):
        """And what was reached is not rewritten again while it waits."""
        event = session.message(MARK, agent="a")
        out, away = tmp_path / "out", tmp_path / "away"
        log.export_to(out)
        out.rename(away)
        log.redact(events=[event.id], **WHY)
        file = log.mirror.path("s").stat().st_ino
        with ConversationLog.open(log.path) as other:
            assert pending(other) == 1
        assert log.mirror.path("s").stat().st_ino == file
        away.rename(out)
        with ConversationLog.open(log.path) as other:
            assert pending(other) == 0
        assert residue([MARK.encode()], log.path, out) == []

    @pytest.mark.parametrize("what", ["directory", "link"])
    def test_something_else_in_its_place(self, log, session, tmp_path, what):
        """A directory or a symbolic link where the file should be is named, and never followed."""
        event = session.message(MARK, agent="a")
        file = log.mirror.path("s")
        elsewhere = tmp_path / "elsewhere"
        file.rename(elsewhere)
        if what == "directory":
            file.mkdir()
        else:
            file.symlink_to(elsewhere)
        done = log.redact(events=[event.id], **WHY)
        assert done.unreachable == [str(file)]
        assert MARK.encode() in elsewhere.read_bytes()


class TestForgotten:
    """An export that was deleted is forgotten by whoever answers for it, and by nobody else."""

    @pytest.fixture
    def gone(self, log, session, tmp_path):
        """An export that was deleted, and an erasure that waits for it."""
        event = session.message(MARK, agent="a")
        out = tmp_path / "out"
        log.export_to(out)
        shutil.rmtree(out)
        assert not log.redact(events=[event.id], **WHY).complete
        return out

    def test_nothing_waits_for_it_any_more(self, log, session, gone):
        """The erasure that waited is done, and the next one does not look there."""
        assert log.exports() == [str(gone)]
        assert pending(log) == 1
        log.forget_export(gone)
        assert log.exports() == []
        assert pending(log) == 0
        assert log.redact(session="s", **WHY).complete
        assert not gone.exists()
        with pytest.raises(UnknownReference):
            log.forget_export(gone)

    def test_what_waits_for_another_place_too_goes_on_waiting(self, log, session, gone, tmp_path):
        """Only what waited for this directory alone is done."""
        other, away = tmp_path / "other", tmp_path / "away"
        event = session.message(MARK, agent="a")
        log.export_to(other)
        other.rename(away)
        log.redact(events=[event.id], **WHY)
        log.forget_export(gone)
        assert pending(log) == 1
        away.rename(other)
        assert log.redact(events=[event.id], **WHY).complete
        assert residue([MARK.encode()], other) == []

    @pytest.mark.parametrize(
        "name", ["conversation.jsonl", ".conversation.jsonl.old", "conversation.jsonl.ahead-1"]
    )
    def test_it_is_refused_while_a_file_is_there(self, log, session, gone, name):
        """The file itself, and what a crash or a restore left beside it, of any session, are named."""
        (gone / "long-gone").mkdir(parents=True)
        left = gone / "long-gone" / name
        left.write_text(MARK)
        with pytest.raises(FilesLeft) as refused:
            log.forget_export(gone)
        assert (refused.value.directory, refused.value.files) == (str(gone), (str(left),))
        assert log.exports() == [str(gone)]
        left.unlink()
        log.forget_export(gone)
        assert log.exports() == []

    def test_it_is_refused_while_somebody_exports(self, log, session, tmp_path):
        """And an export that begins afterwards writes the directory down again before its first byte."""
        exporter = log.exporter(tmp_path / "out")
        exporter.start()
        with pytest.raises(MirrorBusy):
            log.forget_export(tmp_path / "out")
        exporter.stop()
        shutil.rmtree(tmp_path / "out")
        log.forget_export(tmp_path / "out")
        assert log.exports() == []
        exporter.close()
        session.message("later", agent="a")
        exporter.update()
        exporter.close()
        assert log.exports() == [str(tmp_path / "out")]

    def test_the_mirror_is_no_export(self, log, session):
        """The store's own files cannot be forgotten."""
        with pytest.raises(UnknownReference):
            log.forget_export(log.path / "sessions")


class TestNoticing:
    """A handle that stays open finishes at an append what a redactor left that died."""

    @pytest.fixture
    def left(self, log, session, tmp_path, monkeypatch):
        """Keys destroyed, nothing else done: by a process that died, while this handle is open."""
        monkeypatch.setattr(committing, "LOOK_SECONDS", 0)
        session.message(MARK, agent="a")
        log.export_to(tmp_path / "out")
        session.message("kept", agent="a")
        step = STEPS["the slots are overwritten"]
        done = run(DYING + f"    {step}\n" + REDACT, log.path, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert pending(log) == 1

    @pytest.mark.parametrize("how", ["append", "decision", "import"])
    def test_the_next_append_finishes_it(self, log, session, left, tmp_path, how):
        """Whichever way something is recorded; the append itself is recorded too."""
        if how == "decision":
            log.place_hold(agent="x", reason="test", by="ops")
        if how == "import":
            import_transcripts(log, "claude-code", [TRANSCRIPT])
        event = session.message("next", agent="a")
        assert pending(log) == 0
        assert log.event(event.id).body == "next"
        assert residue([MARK.encode()], log.path, tmp_path / "out") == []
        assert [found.answer for found in session.tail(20)].count("erased") == 3
        assert list(log.verify()) == []

    def test_asyncio_too(self, log, session, monkeypatch):
        """The twins are the same appends."""
        monkeypatch.setattr(committing, "LOOK_SECONDS", 0)
        session.message(MARK, agent="a")

        async def append():
            async with AsyncConversationLog.open(log.path) as other:
                there = other.session("s")
                await there.message("one", agent="b")
                run(DYING + f"    {STEPS['the slots are overwritten']}\n" + REDACT, log.path, check=False)
                assert pending(log) == 1
                await there.message("two", agent="b")
                assert pending(log) == 0

        asyncio.run(append())
        assert list(log.verify()) == []

    def test_not_while_its_redactor_lives(self, log, session, left):
        """It is left to a living one, and finished once that is gone, though nobody else committed since."""
        lock = FileLock(log.path / "log.erase")
        with lock.held(1):
            session.message("one", agent="a")
            assert pending(log) == 1
        lock.close()
        session.message("two", agent="a")
        assert pending(log) == 0

    def test_once_if_it_cannot_be_done(self, log, session, left, tmp_path, monkeypatch):
        """Where a file is out of reach, appends do not try again and again; the next redact does."""
        (tmp_path / "out").rename(tmp_path / "away")
        tries = []
        real = Redactor.finish
        monkeypatch.setattr(Redactor, "finish", lambda redactor: tries.append(1) or real(redactor))
        for number in range(5):
            session.message(f"{number}", agent="a")
            with ConversationLog.open(log.path) as other:
                other.session("other").message("x", agent="b")
        assert pending(log) == 1
        assert (
            len(tries) == 1 + 2 * 5
        )  # this handle once, and each of the others at its opening and its append
        (tmp_path / "away").rename(tmp_path / "out")
        assert log.redact(session="s", **WHY).complete

    def test_it_costs_a_lone_writer_nothing(self, log, session, monkeypatch):
        """Nobody looks while no other handle commits, and with others not more often than each second."""
        looked = []
        real = committing.fetch

        def spy(connection, statement, *rest):
            looked.append(statement)
            return real(connection, statement, *rest)

        monkeypatch.setattr(committing, "fetch", spy)
        for number in range(50):
            session.message(f"{number}", agent="a")
        assert looked == [committing.SELECT_UNDONE]
        monkeypatch.setattr(committing.time, "monotonic", lambda: 1e9)
        with ConversationLog.open(log.path) as other:
            for number in range(20):
                other.session("other").message("x", agent="b")
                session.message(f"{number}", agent="a")
        assert len(looked) == 3


class TestRaces:
    def test_who_appends_does_not_wait_for_a_rewriting(self, log, session, monkeypatch):
        """While a mirror is written anew, appends go on, and their lines are in the new file."""
        event = session.message(MARK, agent="a")
        written, go_on = threading.Event(), threading.Event()
        real = rewriting.sync

        def pause(descriptor):
            written.set()
            assert go_on.wait(60)
            real(descriptor)

        monkeypatch.setattr(rewriting, "sync", pause)
        redactor = threading.Thread(target=lambda: log.redact(events=[event.id], **WHY))
        redactor.start()
        assert written.wait(60)
        for number in range(20):
            session.message(f"meanwhile {number}", agent="b")
        go_on.set()
        redactor.join()
        text = log.mirror.path("s").read_bytes()
        assert text == b"".join(log.lines("s"))
        assert text.count(b"meanwhile") == 20
        assert residue([MARK.encode()], log.path) == []

    def test_no_read_after_it_returned_gives_the_content(self, log, session):
        """Processes that read in a tight loop: not one read begun after `redact` returned opens the event."""
        program = """
            import sys
            from convlog_sqlite import ConversationLog
            with ConversationLog.open(sys.argv[1], read_only=True) as log:
                session = log.session("s")
                print("ready", flush=True)
                for line in sys.stdin:  # "<seq>": sent once its redaction returned
                    seq = int(line)
                    event = session.event(seq)
                    lines = b"".join(session.jsonl(after=seq - 1, before=seq + 1))
                    print(event.answer, b"xyzzy" in lines, flush=True)
                    session.tail(5)
            """
        readers = [start(program, log.path) for _ in range(2)]
        for reader in readers:
            assert reader.stdout.readline() == "ready\n"
        for number in range(150):
            event = session.message(f"{MARK} {number}", agent="a")
            log.redact(events=[event.id], **WHY)
            for reader in readers:
                reader.stdin.write(f"{event.seq}\n")
                reader.stdin.flush()
            assert [reader.stdout.readline() for reader in readers] == ["erased False\n"] * 2
            assert MARK.encode() not in log.mirror.path("s").read_bytes()
        for reader in readers:
            reader.communicate()

    def test_with_writers_an_exporter_and_a_follower(self, log, session, tmp_path):
        """Four processes append, two exporters, a follower and one that keeps snapshots run flat out: no erased text is left."""
        writer = """
            import sys
            from convlog_sqlite import ConversationLog
            with ConversationLog.open(sys.argv[1], durability="normal") as log:
                session = log.session("s")
                for n in range(150):
                    session.message(f"kept {sys.argv[2]} {n} " + "y" * 500, agent=sys.argv[2])
            """
        exporter = """
            import sys, threading
            from convlog_sqlite import ConversationLog
            stop = threading.Event()
            with ConversationLog.open(sys.argv[1]) as log:
                keeper = log.mirror if len(sys.argv) == 2 else log.exporter(sys.argv[2])
                threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
                print("ready", flush=True)
                keeper.follow(stop=stop)
            """
        snapshotter = """
            import sys, threading
            from convlog_sqlite import ConversationLog, Projection
            stop = threading.Event()
            bodies = Projection("bodies", lambda state, event: state | {str(event.seq): event.body})
            with ConversationLog.open(sys.argv[1]) as log:
                threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
                print("ready", flush=True)
                while not stop.is_set():
                    log.session("s").state(bodies, rebuild=True)
            """
        out = tmp_path / "out"
        bodies = Projection("bodies", lambda state, event: state | {str(event.seq): event.body})
        marked = session.append_many(
            [Draft(type="message", agent="m", body=f"{MARK} {n}") for n in range(ROUNDS)]
        )
        needles = secrets_of(log, marked)
        exporters = [start(exporter, log.path), start(exporter, log.path, out), start(snapshotter, log.path)]
        for process in exporters:
            process.stdout.readline()
        follower = start(
            """
            import sys
            from convlog_sqlite import ConversationLog
            with ConversationLog.open(sys.argv[1], read_only=True) as log:
                for event in log.session("s").follow(after=0, timeout=3):
                    pass
            """,
            log.path,
        )
        writers = [start(writer, log.path, f"w{n}") for n in range(4)]
        for event in marked:
            assert log.redact(events=[event.id], **WHY).complete
            line = next(iter(session.jsonl(after=event.seq - 1, before=event.seq + 1)))
            assert b'"redacted"' in line
            assert session.state(bodies)[str(event.seq)] is None
            for root in (log.path / "sessions", out):
                text = (root / "s" / "conversation.jsonl").read_bytes()
                assert f'"{MARK} {event.body.split()[1]}"'.encode() not in text
        for process in writers:
            process.communicate()
            assert process.returncode == 0
        for process in exporters:
            process.communicate("")
            assert process.returncode == 0
        follower.communicate(timeout=60)
        assert follower.returncode == 0
        log.export_to(out)
        assert residue([MARK.encode(), *needles], log.path, out) == []
        kept = [event for event in session.read(limit=10_000) if event.agent.startswith("w")]
        assert len(kept) == 600
        assert all(event.answer == "live" and event.body.startswith("kept") for event in kept)
        assert list(log.verify()) == []

    def test_concurrent_redactors_and_writers(self, log, session):
        """Processes that append and erase their own: no slot is used twice, no innocent event is harmed."""
        program = """
            import sys
            from convlog_sqlite import ConversationLog
            with ConversationLog.open(sys.argv[1]) as log:
                session = log.session(f"s{int(sys.argv[2]) % 2}")
                for n in range(40):
                    event = session.message(f"own {n}", agent=sys.argv[2])
                    if n % 4 == 0:
                        done = log.redact(events=[event.id], reason="test", by=sys.argv[2])
                        assert done.complete and done.erased == 1, done
            """
        processes = [start(program, log.path, n) for n in range(4)]
        checks = 0
        while any(process.poll() is None for process in processes):
            assert [finding for finding in log.verify() if finding.rule != "mirror-behind"] == []
            checks += 1
        assert checks
        for process in processes:
            process.communicate()
            assert process.returncode == 0
        for name in ("s0", "s1"):
            for event in log.session(name).read(limit=1000, type="message"):
                # Each agent's own count stands in its live bodies; every fourth is erased.
                assert event.answer == "erased" or int(event.body.split()[1]) % 4
        erased = [
            event
            for name in ("s0", "s1")
            for event in log.session(name).read(limit=1000, type="message")
            if event.answer == "erased"
        ]
        assert len(erased) == 40
        with log._store.database.read() as connection:
            slots = [n for (n,) in connection.execute("SELECT slot FROM payload").fetchall()]
        assert len(set(slots)) == len(slots)
        assert list(log.verify()) == []

    def test_threads_of_one_handle(self, log, session):
        """One handle appends and erases from several threads."""
        rest = random.Random(7)
        wrong = []

        def work(name):
            try:
                for n in range(20):
                    event = session.message(f"{name} {n}", agent=name)
                    if rest.random() < 0.5:
                        log.redact(events=[event.id], reason="test", by=name)
            except Exception as error:  # noqa: BLE001 shown below
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert list(log.verify()) == []

    def test_two_redactors_of_the_same_events(self, log, session):
        """Each event is erased by exactly one of them."""
        session.append_many([Draft(type="message", agent="a", body=MARK) for _ in range(200)])
        program = """
            import json, sys
            from convlog_sqlite import ConversationLog
            with ConversationLog.open(sys.argv[1]) as log:
                sys.stdin.readline()
                print(json.dumps(log.redact(agent="a", reason="test", by="r").to_dict()))
            """
        processes = [start(program, log.path) for _ in range(3)]
        done = [json.loads(process.communicate("\n")[0]) for process in processes]
        assert sum(one["erased"] for one in done) == 201  # the opening of the session too
        assert tombstones(log) == 201
        assert len([event for event in session.read(limit=1000) if event.kind == "redaction"]) == 1
        assert list(log.verify()) == []

    def test_a_redactor_waits_for_another(self, log, session, monkeypatch):
        """One at a time; who waits in vain is told."""
        session.message(MARK, agent="a")
        monkeypatch.setattr("convlog_sqlite.redaction.BUSY_SECONDS", 0.05)
        monkeypatch.setattr("convlog_sqlite.redaction._Alone.__init__.__defaults__", (0.05,))
        with FileLock(log.path / "log.erase").held(1), pytest.raises(StoreBusy):
            log.redact(session="s", **WHY)


class TestOldKeystore:
    def test_it_is_destroyed_again_at_the_next_open(self, log, session, tmp_path):
        """A keystore restored from before loses again what tombstones name, blobs included, and nothing else."""
        events = marked_events(session)
        kept = log.session("other").message("kept", agent="a")
        needles = secrets_of(log, events)
        shutil.copy(log.path / "log.keys", tmp_path / "old.keys")
        (redaction,) = log.redact(session="s", **WHY).redactions
        log.close()
        shutil.copy(tmp_path / "old.keys", log.path / "log.keys")
        assert residue(needles, log.path)
        with ConversationLog.open(log.path, read_only=True) as other:
            assert {finding.rule for finding in other.verify("s")} == {"tombstone"}
            there = [other.event(event.id) for event in events]
            assert {event.answer for event in there} == {"erased"}
            assert {event.redacted["by"] for event in there} == {redaction}
            assert MARK not in json.dumps([event.to_dict() for event in other.session("s").read(limit=1000)])
        with ConversationLog.open(log.path) as other:
            assert residue(needles, log.path) == []
            answers = [event.answer for event in other.session("s").read(limit=1000)]
            assert answers[:-1] == ["erased"] * (len(answers) - 1)
            assert other.event(kept.id).body == "kept"
            # The redaction event's own key came after the copy: it is lost, and that is what is said.
            assert {(finding.rule, finding.seq) for finding in other.verify("s")} <= {
                ("key-lost", len(answers)),
                ("mirror-differs", len(answers)),
            }

    def test_a_current_keystore_is_left_alone(self, log, session, monkeypatch):
        """At most 64 slots are looked at, and nothing is destroyed."""
        session.append_many([Draft(type="message", agent="a", body=str(n)) for n in range(300)])
        log.redact(session="s", **WHY)
        digest = hashlib.sha256((log.path / "log.keys").read_bytes()).digest()
        asked = []
        real = keystores.Keystore.read
        monkeypatch.setattr(
            keystores.Keystore, "read", lambda self, slots: asked.append(len(slots)) or real(self, slots)
        )
        monkeypatch.setattr(keystores.Keystore, "destroy", lambda *_: 1 / 0)
        with ConversationLog.open(log.path):
            pass
        assert sum(asked) <= 64 + 1
        assert hashlib.sha256((log.path / "log.keys").read_bytes()).digest() == digest


class TestVerify:
    def tamper(self, log, *statements):
        """Change rows behind the store's back."""
        log.close()
        program = """
            import sys, json, apsw
            database = apsw.Connection(sys.argv[1])
            for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
                database.execute(f"DROP TRIGGER {name}")
            for statement in json.loads(sys.argv[2]):
                database.execute(statement)
            """
        run(program, log.path / "log.db", json.dumps(statements))

    def findings(self, path):
        """What verify says of tombstones."""
        with ConversationLog.open(path, read_only=True) as log:
            said = [finding for finding in log.verify() if not finding.rule.startswith("mirror")]
        assert {finding.rule for finding in said} <= {"tombstone"}
        return sorted({finding.detail for finding in said})

    @pytest.fixture
    def erased(self, log, session):
        """A store with one erased event of two."""
        event = session.message("x" * 9000, agent="a")
        session.message("kept", agent="a")
        log.redact(events=[event.id], **WHY)
        with log._store.database.read() as connection:
            self.pos, self.slot = connection.execute("SELECT pos, slot FROM tombstone").fetchall()[0]
        return log

    @pytest.mark.parametrize("blob", [False, True])
    def test_a_tombstone_over_a_live_key(self, erased, blob):
        """The slot of the payload, or of a blob, does not say that it is erased."""
        with (erased.path / "log.keys").open("r+b") as file:
            if blob:
                with erased._store.database.read() as connection:
                    slot = connection.execute("SELECT number FROM slot WHERE part = 1").get
            else:
                slot = self.slot
            file.seek(SLOTS_AT + slot * SLOT_BYTES)
            file.write(os.urandom(SLOT_BYTES))
        (said,) = self.findings(erased.path)
        assert "its key may be there" in said

    def test_an_erased_slot_that_nothing_names(self, erased):
        """Without tombstone and intent it is a fault, and says which redaction did it."""
        self.tamper(erased, "DELETE FROM tombstone")
        (said,) = self.findings(erased.path)
        assert "which this log does not have" in said

    @pytest.mark.parametrize(
        ("statement", "said"),
        [
            ("UPDATE tombstone SET redaction = 9999", "names no redaction event"),
            ("UPDATE tombstone SET redaction = 3", "names no redaction event"),
            ("UPDATE tombstone SET slot = 0", "another slot"),
            ("UPDATE payload SET sealed = x'01' WHERE sealed = x''", "was not wiped"),
            ("INSERT INTO tombstone VALUES (9999, 0, 1, 0, 7)", "where no event is"),
        ],
    )
    def test_a_changed_tombstone(self, erased, statement, said):
        """Each is found by its rule and no other."""
        self.tamper(erased, statement)
        (found,) = self.findings(erased.path)
        assert said in found

    def test_another_redaction(self, erased):
        """The slot and the tombstone must name the same one."""
        erased.redact(events=[erased.session("s").event(3).id], **WHY)
        self.tamper(
            erased, f"UPDATE tombstone SET redaction = (SELECT max(pos) FROM envelope) WHERE pos = {self.pos}"
        )
        (found,) = self.findings(erased.path)
        assert "different redactions" in found

    def test_an_erasure_is_no_finding(self, erased):
        """By which redaction an event was erased is what the event says."""
        assert list(erased.verify()) == []
        by = erased.session("s").event(2).redacted["by"]
        assert erased.event(by).kind == "redaction"
