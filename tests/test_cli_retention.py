"""The command's verbs about what is kept: policy, hold, and applying the policies."""

import io
import json
import sys
import time
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import typer

from convlog_sqlite import ConversationLog
from convlog_sqlite.cli import main, retention
from convlog_sqlite.cli.failing import UsageError
from convlog_sqlite.cli.options import Settings

MONTH = 31 * 86_400


class Done(NamedTuple):
    """How a run ended, and what it printed."""

    status: int
    out: str
    err: str

    def lines(self):
        """The JSON lines on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal(io.TextIOWrapper):
    """Standard input of a person who answers."""

    def isatty(self):
        """Somebody sits there."""
        return True


@pytest.fixture
def run(monkeypatch):
    """Call something with the standard streams replaced; its exit status and what it printed."""

    def runs(what, stdin=b"", person=False):
        with monkeypatch.context() as patch:
            out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
            kind = Terminal if person else io.TextIOWrapper
            patch.setattr(sys, "stdin", kind(io.BytesIO(stdin), encoding="utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            try:
                status = what()
            except typer.Exit as left:
                status = left.exit_code
            except UsageError as wrong:
                err.write(wrong.format_message())
                status = 2
            out.flush()
            err.flush()
            return Done(status or 0, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())

    return runs


@pytest.fixture
def convlog(store_path, run):
    """Run the command in this process, on the store of the test."""
    return lambda *arguments: run(lambda: main(["--store", str(store_path), *arguments]))


@pytest.fixture
def apply(store_path, run):
    """Apply the policies as `redact` without a scope does."""

    def applied(stdin=b"", person=False, colour=False, **how):
        context = SimpleNamespace(obj=Settings(str(store_path), colour=colour or None))
        how = {"by": "ops", "yes": False, "dry_run": False} | how
        return run(lambda: retention.apply(context, **how), stdin, person)

    return applied


@pytest.fixture
def event(store_path, clock):
    """An event that is a month old in a store that exists."""
    clock.set(time.time_ns() - MONTH * 10**9)
    with ConversationLog.open(store_path, clock=clock) as log:
        return log.session("build").message("secret", agent="worker", subjects=["Ann Lee"])


def answer(store_path, event):
    """Whether the content of an event is there."""
    with ConversationLog.open(store_path, read_only=True) as log:
        return log.event(event.id).answer


class TestPolicy:
    def test_set_list_remove(self, convlog, event):
        """A policy is printed as it stands, with its version."""
        said = {"id": "chat", "target": "payload", "match": {"type": "message", "agent": "worker"}}
        said |= {"max_age": "30d", "min_age": "1d", "keep_last": 5, "version": 1}
        options = ("--type", "message", "--agent", "worker", "--max-age", "30d", "--min-age", "1d")
        done = convlog("policy", "set", "chat", *options, "--keep-last", "5", "--by", "ops")
        assert (done.status, done.lines()) == (0, [said])
        assert convlog("policy", "list").lines() == [said]
        assert convlog("policy", "remove", "chat", "--by", "ops") == Done(0, "", "")
        assert convlog("policy", "list").out == ""

    def test_lists_for_people(self, convlog, event):
        """Tables on a terminal, or words where there is nothing."""
        assert convlog("--no-color", "policy", "list").out == ""
        assert convlog("--color", "policy", "list").out == "No policies: everything is kept.\n"
        assert convlog("--color", "hold", "list").out == "No holds.\n"
        convlog("policy", "set", "chat", "--kind", "plan-set", "--max-age", "30d", "--by", "ops")
        convlog("hold", "place", "--session", "build", "--reason", "test", "--by", "ops")
        assert "chat@1  kind plan-set" in convlog("--color", "policy", "list").out
        assert "session build" in convlog("--color", "hold", "list").out

    @pytest.mark.parametrize("age", ["0d", "soon", "", "-1d"])
    def test_a_wrong_duration_is_refused(self, convlog, event, age):
        """Status 3, and the line names the place."""
        done = convlog("policy", "set", "chat", f"--max-age={age}", "--by", "ops")
        assert done.status == 3
        assert done.err.startswith("convlog: /max_age: ")

    def test_the_author_is_needed(self, convlog, event, monkeypatch):
        """Given, or in CONVLOG_AGENT."""
        arguments = ("policy", "set", "chat", "--max-age", "1d")
        assert convlog(*arguments).status == 2
        monkeypatch.setenv("CONVLOG_AGENT", "ops")
        assert convlog(*arguments).status == 0

    def test_unknown_ids(self, convlog, event):
        """Status 3, nothing written."""
        assert convlog("policy", "remove", "chat", "--by", "ops").status == 3
        assert convlog("policy", "explain", "00000000").status == 3
        assert convlog("hold", "release", event.id, "--by", "ops").status == 3
        assert convlog("hold", "place", "--session", "nowhere", "--reason", "test", "--by", "ops").status == 3

    def test_explain(self, convlog, event):
        """One line, whether for a person or a program."""
        convlog("policy", "set", "chat", "--max-age", "30d", "--by", "ops")
        (said,) = convlog("policy", "explain", event.id).lines()
        assert said["event"] == event.id
        assert said["explanation"].startswith("erased when retention is next applied: due since ")
        assert convlog("--color", "policy", "explain", event.id).out == said["explanation"] + "\n"

    def test_wrong_usage(self, convlog, event):
        """A group alone, or with a verb it has not, is status 2."""
        for arguments in (("policy",), ("policy", "bogus"), ("hold",), ("policy", "set")):
            assert convlog(*arguments).status == 2

    def test_no_store_is_made(self, convlog, store_path):
        """A policy is set in a store that exists."""
        assert convlog("policy", "set", "chat", "--max-age", "1d", "--by", "ops").status == 4
        assert not store_path.exists()


class TestHold:
    def test_place_list_release(self, convlog, event):
        """A hold is printed with the id that releases it."""
        (placed,) = convlog(
            "hold", "place", "--session", "build", "--reason", "legal_order", "--by", "ops"
        ).lines()
        assert (placed["scope"], placed["name"], placed["by"]) == ("session", "build", "ops")
        assert convlog("hold", "list").lines() == [placed]
        assert convlog("hold", "release", placed["id"], "--by", "ops") == Done(0, "", "")
        assert convlog("hold", "list").out == ""

    def test_one_scope(self, convlog, event):
        """None or two are wrong usage."""
        common = ("--reason", "test", "--by", "ops")
        assert convlog("hold", "place", *common).status == 2
        assert convlog("hold", "place", "--task", "a", "--agent", "b", *common).status == 2

    def test_a_person_is_shown_as_a_digest(self, convlog, event):
        """The name stands nowhere."""
        done = convlog("hold", "place", "--subject", "Ann Lee", "--reason", "test", "--by", "ops")
        assert done.lines()[0]["name"] == event.subjects[0]
        assert "Ann" not in convlog("hold", "list").out


class TestApplying:
    @pytest.fixture(autouse=True)
    def due(self, convlog, event):
        """A policy by which the event is due."""
        convlog("policy", "set", "chat", "--type", "message", "--max-age", "30d", "--by", "ops")

    def test_a_dry_run(self, apply, event, store_path):
        """It counts and changes nothing."""
        (said,) = apply(dry_run=True).lines()
        assert (said["erased"], said["policies"], said["dry_run"]) == (1, {"chat@1": 1}, True)
        assert apply(dry_run=True, colour=True).out == "1 would be erased by policy chat@1\n"
        assert answer(store_path, event) == "live"

    def test_yes(self, apply, event, store_path):
        """It erases without a question, and says how much."""
        done = apply(yes=True)
        assert (done.status, done.lines()[0]["erased"]) == (0, 1)
        assert answer(store_path, event) == "erased"
        assert apply(yes=True, colour=True).out == "Nothing is due.\n"

    def test_a_person_is_asked(self, apply, event, store_path):
        """The plan is shown first; no means no, with status 3."""
        done = apply(b"n\n", person=True)
        assert done.status == 3
        assert "1 would be erased by policy chat@1" in done.err
        assert answer(store_path, event) == "live"
        assert apply(b"y\n", person=True).lines()[0]["erased"] == 1
        assert answer(store_path, event) == "erased"

    def test_nobody_is_asked_where_nothing_is_due(self, apply):
        """It says so and ends well."""
        apply(yes=True)
        done = apply(person=True)
        assert (done.status, done.err) == (0, "Nothing is due.\n")

    def test_a_program_must_say_yes(self, apply, event, store_path):
        """Where nobody can be asked, nothing is erased."""
        done = apply()
        assert done.status == 2
        assert "--dry-run" in done.err
        assert answer(store_path, event) == "live"

    def test_what_is_held_is_kept_and_counted(self, apply, convlog, event, store_path):
        """The rest would be erased."""
        convlog("hold", "place", "--session", "build", "--reason", "test", "--by", "ops")
        done = apply(yes=True)
        assert (done.status, done.lines()[0]["held"], done.lines()[0]["erased"]) == (0, 1, 0)
        assert apply(yes=True, colour=True).out == "1 due, but kept by a hold\n"
        assert answer(store_path, event) == "live"

    def test_a_file_out_of_reach_is_status_6(self, apply, event, store_path, tmp_path):
        """It is named; once it is there again, applying the policies finishes it."""
        exports = tmp_path / "exports"
        with ConversationLog.open(store_path) as log:
            log.export_to(exports, "build")
        exports.rename(tmp_path / "away")
        done = apply(yes=True)
        assert done.status == 6
        assert str(exports) in done.err
        assert answer(store_path, event) == "erased"
        (tmp_path / "away").rename(exports)
        assert apply(yes=True).status == 0
        assert "secret" not in (exports / "build" / "conversation.jsonl").read_text()


class TestRemoving:
    @pytest.fixture(autouse=True)
    def due(self, convlog, event, store_path, clock):
        """A closed session, and a policy by which it is due; another that is kept by an open call."""
        with ConversationLog.open(store_path, clock=clock) as log:
            log.session("build").mutation("session-closed", agent="worker")
            log.session("waits").tool_call("shell", {}, agent="worker")
            log.session("waits").mutation("session-closed", agent="worker")
        convlog("policy", "set", "old", "--target", "envelope", "--max-age", "30d", "--by", "ops")

    def test_the_policy_is_shown(self, convlog):
        """What it is about stands in the list."""
        assert convlog("policy", "list").lines() == [
            {"id": "old", "target": "envelope", "max_age": "30d", "version": 1}
        ]
        assert "every session  envelope" in convlog("--color", "policy", "list").out
        refused = convlog(
            "policy", "set", "x", "--target", "envelope", "--type", "message", "--max-age", "1d"
        )
        assert refused.status == 2
        wrong = ("--target", "envelope", "--type", "message", "--max-age", "1d", "--by", "ops")
        assert convlog("policy", "set", "x", *wrong).status == 3

    def test_the_plan_names_the_sessions(self, apply):
        """Those that would go, and those that are due and stay, with the reason."""
        (said,) = apply(dry_run=True).lines()
        assert (said["removed"], said["kept"]) == ({"build": "old@1"}, {"waits": "open-call"})
        assert apply(dry_run=True, colour=True).out.splitlines() == [
            "3 would be erased by policy old@1",
            "session build would be removed whole by policy old@1",
            "session waits due, but kept: a call has no result",
        ]

    def test_it_goes_and_is_listed_as_removed(self, apply, convlog, event):
        """`sessions` leaves it out, `--all` says what became of it, reading it is status 3 and says why."""
        assert apply(yes=True).lines()[0]["removed"] == {"build": "old@1"}
        assert [one["id"] for one in convlog("sessions").lines()] == ["waits"]
        *_, gone = convlog("sessions", "--all").lines()
        assert (gone["id"], gone["events"], gone["removed"]["policy"]) == ("build", 3, "old@1")
        assert "build: removed 20" in convlog("--color", "sessions", "--all").out
        for verb in (
            ("tail", "build"),
            ("show", event.id),
            ("export", "build"),
            ("policy", "explain", event.id),
        ):
            done = convlog(*verb)
            assert (done.status, done.out) == (3, "")
            assert "was removed at" in done.err
            assert "policy old@1" in done.err
        assert convlog("append", "build", "--agent", "a", "--body", "x").status == 3
        assert b'"build"' not in convlog("export").out.encode().replace(b'"session":"build","reason"', b"")
        assert convlog("verify").status == 0

    def test_a_person_is_asked_though_all_content_is_erased(self, apply, event, store_path):
        """A session of which nothing is left to erase is removed as well, and asked about."""
        with ConversationLog.open(store_path) as log:
            log.redact(session="build", reason="test", by="ops")
        done = apply(stdin=b"y\n", person=True, colour=True)
        assert (done.status, "session build removed whole" in done.out) == (0, True)


def test_a_deleted_export_is_forgotten(convlog, apply, event, store_path, tmp_path):
    """Status 6 names the directory and what to do; forgetting it ends that. It is refused while a file is there."""
    exports = tmp_path / "exports"
    convlog("export", "--out", str(exports))
    assert convlog("export", "--forget", str(exports)).status == 3
    for left in sorted(exports.rglob("*"), reverse=True):
        left.rmdir() if left.is_dir() else left.unlink()
    exports.rmdir()
    convlog("policy", "set", "chat", "--type", "message", "--max-age", "30d", "--by", "ops")
    done = apply(yes=True)
    assert done.status == 6
    assert f"convlog export --forget {exports}" in done.err
    for wrong in (("build",), ("--mirror",), ("--out", "x"), ("--follow",)):
        assert convlog("export", "--forget", str(exports), *wrong).status == 2
    assert convlog("export", "--forget", str(exports)).status == 0
    assert apply(yes=True).status == 0
    assert convlog("export", "--forget", str(exports)).status == 3
