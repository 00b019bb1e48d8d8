"""convlog memory: from evidence to a claim in the shell, what lists show, and how refusals end."""

import json
import os
import subprocess
import sys

import pytest

from convlog_sqlite import ConversationLog


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


def done(path, *arguments, **more):
    """What a command printed, a JSON value for each line."""
    ended = convlog(path, *arguments, **more)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.fixture
def store(store_path):
    """A closed store of a session with two messages; gives its path and their ids."""
    with ConversationLog.init(store_path) as log:
        session = log.session("build")
        return store_path, [session.message(f"said {n}", agent="user").id for n in range(2)]


def promoted(path, event, claim, *more, by="backend"):
    """The id of a claim, made in the shell."""
    proposed = convlog(path, "memory", "propose", event, "--claim", claim, "--by", by, *more)
    assert proposed.returncode == 0, proposed.stderr
    (accepted,) = done(path, "approve", json.loads(proposed.stdout)["id"], "--as", "alice")
    return done(path, "memory", "promote", accepted["id"], "--by", by)[0]["id"]


def test_from_evidence_to_memory_and_out_again(store):
    """Propose, approve, promote, list, show, export, retract."""
    path, (event, other) = store
    (proposal,) = done(
        path, "memory", "propose", event, other[:30], "--claim", "-", "--scope", "store", "--key", "jwt",
        "--purpose", "build", text="15 minutes", CONVLOG_AGENT="backend",
    )  # fmt: skip
    assert (proposal["kind"], proposal["value"]) == ("memory-proposed", "15 minutes")
    (accepted,) = done(path, "approve", proposal["id"], "--as", "alice")
    (claim,) = done(path, "memory", "promote", accepted["id"], "--by", "backend")
    (listed,) = done(path, "memory", "list")
    assert listed["event"] == claim["id"]
    assert [one["event"] for one in listed["evidence"]] == [event, other]
    assert done(path, "memory", "show", claim["id"]) == done(path, "memory", "export", "build") == [listed]
    assert done(path, "memory", "list", "--purpose", "build") == [listed]
    assert done(path, "memory", "list", "--purpose", "other") == []
    assert done(path, "memory", "list", "--scope", "session") == []
    (gone,) = done(path, "memory", "retract", claim["id"], "--by", "alice")
    assert gone["kind"] == "memory-retracted"
    assert done(path, "memory", "list") == done(path, "memory", "export") == []
    assert [one["status"] for one in done(path, "memory", "list", "--all")] == ["retracted"]


def test_a_refusal_names_its_rules(store):
    """Status 3, nothing on standard output, every rule on standard error."""
    path, (event, _) = store
    (proposal,) = done(path, "memory", "propose", event, "--value", '{"a": 1}', "--by", "backend")
    refused = convlog(path, "memory", "promote", proposal["id"], "--by", "backend")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert f"approval-missing ({proposal['id']})" in refused.stderr
    promoted(path, event, "one", "--key", "k")
    (again,) = done(path, "memory", "propose", event, "--claim", "two", "--key", "k", "--by", "backend")
    (accepted,) = done(path, "approve", again["id"], "--as", "alice")
    refused = convlog(path, "memory", "promote", accepted["id"], "--by", "alice")
    assert refused.returncode == 3
    for rule in ("conflict", "approval-own", "approval-other"):
        assert rule in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("propose", "{event}", "--by", "b"), 2),
        (("propose", "{event}", "--claim", "c", "--value", "1", "--by", "b"), 2),
        (("propose", "{event}", "--claim", "c"), 2),
        (("propose", "{event}", "--claim", "c", "--by", "b", "--expires", "soon"), 2),
        (("propose", "{event}", "--value", "[", "--by", "b"), 3),
        (("propose", "{event}", "--claim", "c", "--by", "b", "--scope", "all"), 3),
        (("propose", "0197a3c4", "--claim", "c", "--by", "b"), 3),
        (("promote", "0197a3c4", "--by", "b"), 3),
        (("list", "nowhere"), 3),
        (("list", "--scope", "all"), 3),
        (("list", "--as", "nobody"), 3),
        (("show", "{event}"), 3),
        (("retract", "{event}", "--by", "b"), 3),
        (("ceiling", "internal"), 2),
        (("ceiling", "high", "--by", "b"), 3),
    ],
)
def test_bad_input(store, arguments, status):
    """One line and a status, and nothing is written."""
    path, (event, _) = store
    before = convlog(path, "anchor").stdout
    ended = convlog(path, "memory", *(word.format(event=event) for word in arguments))
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert json.loads(convlog(path, "anchor").stdout)["chain"] == json.loads(before)["chain"]


def test_conflicts_are_seen(store):
    """In the list of a terminal, and left out of an export, which says so."""
    path, (event, other) = store
    first = promoted(path, event, "15 minutes", "--scope", "store", "--key", "jwt")
    promoted(path, other, "an hour", "--scope", "store", "--key", "jwt", "--contested")
    assert [one["status"] for one in done(path, "memory", "list")] == ["conflicting"] * 2
    shown = convlog(path, "--color", "memory", "list")
    assert shown.stdout.count("conflicting") == 2
    assert "contradict" in shown.stderr
    exported = convlog(path, "memory", "export")
    assert (exported.returncode, exported.stdout) == (0, "")
    assert "left out: 2" in exported.stderr
    done(path, "memory", "retract", first, "--by", "alice")
    assert [one["claim"] for one in done(path, "memory", "export")] == ["an hour"]


def test_erased_evidence(store):
    """The claim goes with it, and with --keep-derived shows that it is gone; status 5 where a claim is erased."""
    path, (event, other) = store
    kept = promoted(path, event, "kept", "--key", "a")
    gone = promoted(path, other, "gone", "--key", "b")
    redact = ("redact", "--reason", "test", "--by", "ops")
    assert done(path, *redact, "--event", event, "--keep-derived")[0]["derived_kept"] == 2
    plan = convlog(path, "--color", *redact, "--event", other, "--dry-run")
    assert "2 of them are claims" in plan.stdout
    assert done(path, *redact, "--event", other)[0]["derived"] == 2
    shown = convlog(path, "memory", "show", kept)
    assert (shown.returncode, json.loads(shown.stdout)["claim"]) == (0, "kept")
    assert json.loads(shown.stdout)["evidence"][0]["redacted"]["reason"] == "test"
    assert "evidence erased: 1 of 1" in convlog(path, "--color", "memory", "list").stdout
    assert "erased by" in convlog(path, "--color", "memory", "show", kept).stdout
    shown = convlog(path, "memory", "show", gone)
    assert (shown.returncode, json.loads(shown.stdout)["status"]) == (5, "erased")


def test_as_an_agent(store):
    """What the view of its role lets through; the ceiling is read by anybody and set by who answers for it."""
    path, (event, other) = store
    promoted(path, event, "plain", "--key", "a", "--scope", "store")
    promoted(path, other, "secret", "--key", "b", "--scope", "store", "--sensitivity", "confidential")
    assert convlog(path, "role", "grant", "vera", "verifier", "--by", "ops").returncode == 0
    assert [one["claim"] for one in done(path, "memory", "list", "--as", "vera")] == ["plain"]
    assert [one["claim"] for one in done(path, "memory", "export", "--as", "vera")] == ["plain"]
    assert convlog(path, "memory", "ceiling").stdout == "confidential\n"
    assert convlog(path, "memory", "ceiling", "internal", "--by", "ops").returncode == 0
    assert convlog(path, "memory", "ceiling").stdout == "internal\n"
    refused = convlog(
        path, "memory", "propose", event, "--claim", "c", "--sensitivity", "confidential", "--by", "b"
    )
    assert (refused.returncode, "sensitivity" in refused.stderr) == (3, True)


def test_nothing_steers_the_terminal(store):
    """What a claim says is shown with its control characters escaped, in one line of a list."""
    path, (event, _) = store
    promoted(path, event, "\x1b[2Jgone\nnext")
    shown = convlog(path, "--color", "memory", "list").stdout
    assert "\x1b[2J" not in shown
    assert "gone next" in shown


def test_expiry(store):
    """A claim that is over stands no more; a time without a zone is of this machine."""
    path, (event, _) = store
    promoted(path, event, "for long", "--expires", "2999-01-31T12:00", "--key", "a", by="b")
    assert [one["expires"][:4] for one in done(path, "memory", "list")] == ["2999"]
    refused = convlog(
        path, "memory", "propose", event, "--claim", "c", "--by", "b", "--expires", "2001-01-31T12:00"
    )
    assert (refused.returncode, "expired" in refused.stderr) == (3, True)
