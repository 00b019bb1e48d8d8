"""convlog redact: the plan, the question, what it prints and how it ends."""

import json
import os
import pty
import subprocess
import sys

import pytest

from convlog_sqlite import ConversationLog

REDACT = ("redact", "--reason", "test", "--by", "ops")


def convlog(path, *arguments, text="", **environment):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "convlog_sqlite", "--store", str(path), *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=60,
    )


@pytest.fixture
def store(store_path):
    """A closed store of three messages; gives its path and their ids."""
    with ConversationLog.init(store_path) as log:
        session = log.session("s")
        ids = [session.message(f"body {n}", agent="a", task_id="t", subjects=["Ada"]).id for n in range(3)]
    return store_path, ids


def answers(path):
    """The answer of each message."""
    with ConversationLog.open(path, read_only=True) as log:
        return [event.answer for event in log.session("s").read(type="message")]


def test_an_event(store):
    """Named events go ahead without a question, and the result is JSON."""
    path, ids = store
    done = convlog(path, *REDACT, "--event", ids[0], "--event", ids[1][:30])
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["matched"], said["erased"], said["complete"]) == (2, 2, True)
    assert answers(path) == ["erased", "erased", "live"]


def test_ids_from_standard_input(store):
    """Whatever separates them."""
    path, ids = store
    done = convlog(path, *REDACT, "--event", "-", text="\n".join(ids[:2]) + "\n")
    assert json.loads(done.stdout)["erased"] == 2
    assert convlog(path, *REDACT, "--event", "-").returncode == 3
    assert answers(path) == ["erased", "erased", "live"]


@pytest.mark.parametrize(
    "scope", [("--session", "s"), ("--task", "t"), ("--agent", "a"), ("--subject", "Ada")]
)
def test_what_is_wider_needs_a_yes(store, scope):
    """Where nobody can be asked it is refused with a hint, and --yes does it."""
    path, _ = store
    refused = convlog(path, *REDACT, *scope)
    assert refused.returncode == 3
    assert "--yes" in refused.stderr
    plan = convlog(path, *REDACT, *scope, "--dry-run")
    assert json.loads(plan.stdout)["dry_run"] is True
    assert answers(path) == ["live"] * 3
    done = convlog(path, *REDACT, *scope, "--yes")
    assert done.returncode == 0, done.stderr
    assert answers(path) == ["erased"] * 3


def test_unknown_ids_are_refused_whole(store):
    """Status 3, and nothing is erased."""
    path, ids = store
    done = convlog(path, *REDACT, "--event", ids[0], "--event", "0197a000-0000-7000-8000-000000000000")
    assert done.returncode == 3
    assert convlog(path, *REDACT, "--session", "nowhere", "--yes").returncode == 3
    assert answers(path) == ["live"] * 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("redact", "--by", "ops", "--session", "s", "--yes"),
        ("redact", "--reason", "test", "--session", "s", "--yes"),
        (*REDACT, "--session", "s", "--agent", "a", "--yes"),
        REDACT,
    ],
)
def test_wrong_usage(store, arguments):
    """A reason, an author and one scope are needed."""
    path, _ = store
    assert convlog(path, *arguments).returncode == 2
    assert answers(path) == ["live"] * 3


def test_a_reason_that_is_none(store):
    """Status 3, and the list."""
    path, ids = store
    done = convlog(path, "redact", "--event", ids[0], "--reason", "because", "--by", "ops")
    assert done.returncode == 3
    assert "secret_leak" in done.stderr


def test_the_author_from_the_environment(store):
    """CONVLOG_AGENT stands in for --by; CONVLOG_SESSION never for a scope."""
    path, ids = store
    done = convlog(
        path, "redact", "--event", ids[0], "--reason", "test", CONVLOG_AGENT="me", CONVLOG_SESSION="s"
    )
    assert done.returncode == 0, done.stderr
    assert answers(path) == ["erased", "live", "live"]
    with ConversationLog.open(path, read_only=True) as log:
        assert log.event(json.loads(done.stdout)["redactions"][0]).agent == "me"


def test_a_file_that_is_away(store, tmp_path):
    """Status 6 and its name; again with the file back, status 0."""
    path, ids = store
    out, away = tmp_path / "out", tmp_path / "away"
    with ConversationLog.open(path) as log:
        log.export_to(out)
    out.rename(away)
    done = convlog(path, *REDACT, "--event", ids[0])
    assert done.returncode == 6
    assert str(out / "s" / "conversation.jsonl") in done.stderr
    assert json.loads(done.stdout)["complete"] is False
    away.rename(out)
    assert convlog(path, *REDACT, "--event", ids[0]).returncode == 0
    assert "body 0" not in (out / "s" / "conversation.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize(("answer", "status", "left"), [("y", 0, "erased"), ("n", 3, "live")])
def test_on_a_terminal_it_asks(store, answer, status, left):
    """The plan is shown, and nothing is done without a yes."""
    path, _ = store
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "convlog_sqlite", "--store", str(path), *REDACT, "--session", "s"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(ours, f"{answer}\n".encode())
    _, said = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == status, said
    assert "4 of 4 events would be erased" in said
    assert answers(path) == [left] * 3


def test_people_read_who_erased_it(store):
    """`show` and `tail` say by which redaction, when and why; show ends with status 5."""
    path, ids = store
    by = json.loads(convlog(path, *REDACT, "--event", ids[0]).stdout)["redactions"][0]
    for shown in (convlog(path, "--color", "show", ids[0]), convlog(path, "--color", "tail", "s")):
        assert f"redacted by {by} at 20" in shown.stdout
        assert " UTC for test" in shown.stdout
        assert "body 0" not in shown.stdout
    assert convlog(path, "show", ids[0]).returncode == 5
    line = json.loads(convlog(path, "tail", "s", "--json").stdout.splitlines()[1])
    assert line["redacted"]["by"] == by
