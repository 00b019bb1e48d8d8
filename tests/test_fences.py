"""Fences: nothing more is recorded about a person, in any process, until the fence is lifted."""

import json
import subprocess
import sys
import textwrap
import threading

import pytest

from convlog_sqlite import (
    ConversationLog,
    Draft,
    InvalidEvent,
    NotAStore,
    StoreReadOnly,
    SubjectFenced,
    UnderHold,
    UnknownReference,
)
from convlog_sqlite.store import erasing


@pytest.fixture
def event(log):
    """An event about a person."""
    return log.session("build").message("content", agent="worker", subjects=["Ann Lee"])


def fence(log, name="Ann Lee", **more):
    """Erase what is about a person, and fence."""
    return log.redact(subject=name, reason="subject_request", by="ops", fence=True, **more)


def about(log, *names, **more):
    """Append an event about people."""
    return log.session("build").message("later", agent="worker", subjects=names, **more)


class TestFences:
    def test_later_appends_are_refused_in_every_handle(self, log, event):
        """The error names the place, the digest and the fence, and not the person; others are not concerned."""
        with ConversationLog.open(log.path) as other:
            about(other, "Ann Lee")
            assert fence(log).erased == 2
            for handle in (log, other):
                with pytest.raises(SubjectFenced) as refused:
                    about(handle, "Bob", "Ann Lee")
                (standing,) = handle.fences()
                assert (refused.value.pointer, refused.value.subject, refused.value.fence) == (
                    "/subjects/1",
                    standing.subject,
                    standing.id,
                )
                assert "Ann" not in str(refused.value)
            about(other, "Bob")
            other.session("build").message("about nobody", agent="worker")
        assert list(log.verify()) == []

    def test_it_is_a_mutation_of_the_store_without_content(self, log, event):
        """Who placed and who lifted it stands in `_store` and its mirror; the person is a keyed digest."""
        fence(log)
        log.lift_fence("Ann Lee", by="clerk")
        placed, lifted = log.session("_store").tail(2)
        assert (placed.kind, placed.agent, placed.content) == ("subject-fenced", "ops", {})
        assert (lifted.kind, lifted.agent, lifted.content) == ("fence-lifted", "clerk", {})
        assert placed.subjects == lifted.subjects == event.subjects
        assert log.mirror.path("_store").read_bytes() == b"".join(log.lines("_store"))
        assert b"Ann" not in b"".join(log.lines())

    def test_it_ends_when_it_is_lifted_and_may_stand_again(self, log, event):
        """Fenced twice it stands once; the newest word counts."""
        fence(log)
        fence(log)
        (standing,) = log.fences()
        assert log.lift_fence("Ann Lee", by="ops") == standing
        assert log.fences() == []
        about(log, "Ann Lee")
        with pytest.raises(UnknownReference) as refused:
            log.lift_fence("Ann Lee", by="ops")
        assert "Ann" not in str(refused.value)
        fence(log)
        assert log.fences()[0].id != standing.id
        with pytest.raises(SubjectFenced):
            about(log, "Ann Lee")

    def test_a_person_nobody_spoke_of_can_be_fenced(self, log):
        """There is nothing to erase, and the fence stands."""
        assert fence(log, "Carol").matched == 0
        with pytest.raises(SubjectFenced):
            about(log, "Carol")
        assert "build" not in log.reader.session_ids()

    def test_a_batch_with_one_such_draft_is_refused_whole(self, log, event):
        """The error says which; nothing of the batch is written, and appends that commit with it are not harmed."""
        fence(log)
        head = log.session("build").head
        drafts = [Draft(type="message", agent="a", body="x", subjects=who) for who in ((), ("Ann Lee",))]
        with pytest.raises(SubjectFenced) as refused:
            log.session("build").append_many(drafts)
        assert refused.value.index == 1
        assert log.session("build").head == head
        outcomes = log.append_together([("build", None, [draft]) for draft in drafts])
        assert isinstance(outcomes[1], SubjectFenced)
        assert outcomes[0][0].seq == head + 1

    def test_a_retry_of_what_was_recorded_gives_the_first_event(self, log):
        """The key outlives the fence too: nothing new is recorded."""
        first = about(log, "Ann Lee", idempotency_key="k")
        fence(log)
        assert about(log, "Ann Lee", idempotency_key="k").id == first.id

    def test_labels_pass_while_they_hold_no_content(self, log, event):
        """What was missed can still be found and erased."""
        missed = log.session("build").message("content", agent="worker")
        fence(log)
        log.label(missed.id, subjects=["Ann Lee"], by="ops")
        with pytest.raises(SubjectFenced):
            log.session("build").mutation(
                "event-labelled", "content", agent="a", subjects=["Ann Lee"], links={"evidence": [missed.id]}
            )
        fence(log)
        assert log.event(missed.id).answer == "erased"

    def test_a_refused_redaction_places_none(self, log, event):
        """Under a hold nothing is written: neither the erasure nor the fence."""
        log.place_hold(subject="Ann Lee", reason="legal_order", by="counsel")
        with pytest.raises(UnderHold):
            fence(log)
        assert log.fences() == []
        about(log, "Ann Lee")
        assert list(log.verify()) == []

    def test_a_dry_run_places_none(self, log, event):
        """It says what would be erased, and changes nothing."""
        assert fence(log, dry_run=True).erased == 1
        assert log.fences() == []

    def test_it_stands_when_the_erasure_was_cut_short(self, log, event, monkeypatch):
        """Fence and intent are one transaction: after a crash behind it the next open finishes, and the fence stands."""

        def crash(*_):
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(erasing.Eraser, "erase", crash)
            with pytest.raises(MemoryError):
                fence(log)
        with ConversationLog.open(log.path) as other:
            assert other.event(event.id).answer == "erased"
            with pytest.raises(SubjectFenced):
                about(other, "Ann Lee")

    def test_no_append_slips_between_the_erasure_and_the_fence(self, log):
        """Writers that append about the person all the while: what was acknowledged is erased, the rest refused."""
        done = threading.Event()
        acknowledged, refusals = [], []

        def write():
            with ConversationLog.open(log.path, durability="normal") as other:
                while not done.is_set():
                    try:
                        acknowledged.append(about(other, "Ann Lee").id)
                    except SubjectFenced as refused:
                        refusals.append(refused)
                        return

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(acknowledged) < 20:
            done.wait(0.01)
        fence(log)
        for thread in threads:
            thread.join(30)
        done.set()
        assert len(refusals) == 3
        assert {log.event(event_id).answer for event_id in acknowledged} == {"erased"}
        assert list(log.verify()) == []

    def test_bad_calls_are_refused(self, log, event):
        """A fence goes with a subject, is lifted by somebody, and needs a store that can be written."""
        with pytest.raises(InvalidEvent) as refused:
            log.redact(session="build", reason="test", by="ops", fence=True)
        assert refused.value.pointer == "/fence"
        for name, by in (("", "ops"), ("Ann Lee", "")):
            with pytest.raises(InvalidEvent):
                log.lift_fence(name, by=by)
        with ConversationLog.open(log.path, read_only=True) as reader, pytest.raises(StoreReadOnly):
            reader.lift_fence("Ann Lee", by="ops")
        with ConversationLog.ephemeral() as memory:
            for call in (lambda: fence(memory), lambda: memory.lift_fence("Ann Lee", by="ops")):
                with pytest.raises(NotAStore):
                    call()

    def test_callers_do_not_forge_one(self, log):
        """A mutation of that kind in another session fences nobody, and `_store` takes none."""
        about(log, "Ann Lee")
        log.session("build").mutation("subject-fenced", agent="mallory", subjects=["Ann Lee"])
        about(log, "Ann Lee")
        with pytest.raises(InvalidEvent):
            log.session("_store").mutation("fence-lifted", agent="mallory", subjects=["Ann Lee"])

    def test_another_process_is_refused(self, log, event):
        """One that opened the store before the fence was placed."""
        program = """
            import sys
            from convlog_sqlite import ConversationLog, SubjectFenced
            with ConversationLog.open(sys.argv[1]) as log:
                log.session("build").message("x", agent="a", subjects=["Ann Lee"])
                print("ready", flush=True)
                sys.stdin.readline()
                try:
                    log.session("build").message("x", agent="a", subjects=["Ann Lee"])
                except SubjectFenced:
                    print("refused")
        """
        command = [sys.executable, "-c", textwrap.dedent(program), str(log.path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            fence(log)
            assert process.communicate("go\n", timeout=30)[0] == "refused\n"


class TestCommand:
    def run(self, store_path, *arguments):
        """Run the command as a program does."""
        command = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path), *arguments]
        return subprocess.run(
            command, capture_output=True, check=False, text=True, timeout=60, stdin=subprocess.DEVNULL
        )

    def test_from_label_to_lifted(self, log, store_path):
        """label, redact --fence, the refusal with status 3, fence list, fence lift: as a person would do it."""
        event = log.session("build").message("content", agent="worker")
        who = ("--subject", "Ann Lee")
        labelled = self.run(store_path, "label", event.id, *who, "--sensitivity", "restricted", "--by", "ops")
        assert json.loads(labelled.stdout)["links"] == {"evidence": [event.id]}
        redact = ("redact", *who, "--reason", "subject_request", "--by", "ops")
        assert self.run(store_path, *redact, "--fence").returncode == 3, "nobody can be asked"
        assert json.loads(self.run(store_path, *redact, "--fence", "--yes").stdout)["erased"] == 2
        refused = self.run(store_path, "append", "build", "--agent", "a", "--body", "x", *who)
        assert (refused.returncode, refused.stdout) == (3, "")
        (standing,) = self.run(store_path, "fence", "list").stdout.splitlines()
        assert json.loads(standing)["by"] == "ops"
        assert self.run(store_path, "fence", "lift", "Ann Lee", "--by", "ops").returncode == 0
        assert self.run(store_path, "fence", "lift", "Ann Lee", "--by", "ops").returncode == 3
        assert self.run(store_path, "append", "build", "--agent", "a", "--body", "x", *who).returncode == 0

    @pytest.mark.parametrize(
        "arguments",
        [
            ("redact", "--fence", "--by", "ops", "--yes"),
            ("redact", "--session", "s", "--fence", "--reason", "test", "--by", "ops", "--yes"),
            ("label", "0197a3c4", "--by", "ops"),
        ],
    )
    def test_wrong_usage(self, log, store_path, arguments):
        """Status 2, and nothing is written."""
        assert self.run(store_path, *arguments).returncode == 2
        assert log.reader.session_ids() == ["_store"]
