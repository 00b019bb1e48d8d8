"""The command's verbs of participants: join, seen, tail --as and --since-last, and what append says."""

import io
import json
import sys
from typing import NamedTuple

import pytest

from convlog_sqlite import ConversationLog
from convlog_sqlite.cli import main


class Done(NamedTuple):
    """How a run ended, and what it printed."""

    status: int
    out: str
    err: str

    def lines(self):
        """The JSON lines on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def convlog(store_path, monkeypatch):
    """Run the command in this process, on the store of the test."""

    def run(*arguments, stdin=""):
        with monkeypatch.context() as patch:
            out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
            status = main(["--store", str(store_path), *map(str, arguments)])
            out.flush()
            err.flush()
            return Done(status, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())

    return run


@pytest.fixture
def session(store_path):
    """A session in which a user asked a worker, who takes part."""
    with ConversationLog.open(store_path) as log:
        session = log.session("build")
        session.message("Add JWT auth.", agent="user", to=["w"])
        session.join("w", role="worker")
        yield session


def test_join_says_as_what_and_leaves(convlog, session):
    """Once; what it has is kept; whoever leaves can come again."""
    assert convlog("join", "build", "--as", "x", "--role", "verifier").lines() == [
        {"agent": "x", "role": "verifier", "view": "verifier@0", "heard": 0}
    ]
    assert convlog("join", "build", "--as", "x").lines()[0]["role"] == "verifier"
    assert convlog("--color", "join", "build", "--as", "x").out.startswith("x takes part as verifier")
    assert convlog("join", "build", "--as", "x", "--leave").status == 0
    assert convlog("join", "build", "--as", "x", "--leave").status == 2
    assert [event.kind for event in session.read(agent="x")] == ["agent-joined", "agent-left"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["join", "build", "--as", "y"], 3, "has no role"),
        (["join", "build", "--as", "y", "--view", "nope"], 3, "/view: 'nope'"),
        (["join", "build", "--as", "y", "--role", "nope"], 3, "/role: 'nope'"),
        (["join", "build", "--as", "y", "--leave", "--role", "worker"], 2, "stands alone"),
        (["join", "build", "--as", "y", "--listening", "perhaps"], 3, "/listening"),
        (["tail", "build", "--as", "y"], 3, "has no role"),
        (["tail", "build", "--since-last"], 2, "--as"),
        (["tail", "build", "--as", "w", "--since-last", "--task", "t"], 2, "filter"),
        (["tail", "build", "--as", "w", "--since-last", "--after", "2"], 2, "--after"),
        (["tail", "build", "--as", "w", "--since-last", "--pairs"], 2, "--pairs"),
        (["tail", "build", "--as", "w", "-n", "0"], 2, "1 event"),
        (["tail", "nowhere", "--as", "w"], 3, "does not exist"),
        (["seen", "nobody", "build"], 3, "/agent"),
        (["seen", "w", "nowhere"], 3, "/session"),
        (["seen", "w", "build", "--at", "99"], 3, "/at"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_with_the_rule(convlog, session, arguments, status, said):
    """Never with nothing, as if nothing were there; and nothing is written."""
    before = session.head
    done = convlog(*arguments)
    assert (done.status, done.out) == (status, "")
    assert said in done.err
    assert session.head == before


def test_reading_as_an_agent_is_noted_once_it_is_printed(convlog, session):
    """And its next append says so, whichever way the command gets it."""
    assert [line["seq"] for line in convlog("tail", "build", "--as", "w").lines()] == [2, 3]
    (reading,) = session.readings()
    assert (reading.reader, reading.role, reading.view, reading.upto) == ("w", "worker", "worker", 3)
    said = convlog("append", "build", "--as", "w", "--body", "x").lines()[0]
    assert (said["seen"], said["role"]) == ({"seq": 3, "view": "worker@0"}, "worker")
    other_role = ["append", "build", "--as", "w", "--role", "reviewer", "--body", "y"]
    assert convlog(*other_role).lines()[0]["role"] == "reviewer"
    drafts = "\n".join(
        json.dumps({"type": "message", "agent": agent, "body": "x"}) for agent in ("w", "user")
    )
    one, other = convlog("append", "build", "--jsonl", "-", stdin=drafts).lines()
    assert (one["seen"], other.get("seen")) == ({"seq": 3, "view": "worker@0"}, None)
    assert one["role"] == "worker"


def test_a_look_at_a_chosen_part_is_not_noted(convlog, session):
    """With a filter, a place or a time it may leave out what the agent was to see."""
    for narrowed in (["--task", "t"], ["--after", 1], ["--before", 3], ["--at", 2], ["--at", 2, "--pairs"]):
        assert convlog("tail", "build", "--as", "w", *narrowed).status == 0
    assert convlog("tail", "build", "--view", "auditor").status == 0
    assert session.readings() == []
    assert [line["seq"] for line in convlog("tail", "build", "--as", "w", "--at", 2).lines()] == [2]
    assert [line["seq"] for line in convlog("tail", "build", "--as", "w", "--after", 2).lines()] == [3]


def test_since_last_gives_what_is_new(convlog, session):
    """All of it the first time, oldest first; at most N of it where that is asked, and the rest the next time."""
    new = ("tail", "build", "--as", "w", "--since-last")
    assert [line["seq"] for line in convlog(*new, "-n", 1).lines()] == [2]
    assert [line["seq"] for line in convlog(*new).lines()] == [3]
    assert convlog(*new).out == ""
    session.message("more", agent="user", to=["w"])
    session.message("not yours", agent="user")
    assert [line.get("body") for line in convlog(*new).lines()] == ["more"]
    head = session.head
    assert convlog(*new).out == ""
    assert session.head == head, "to look is no event"


def test_a_stale_append_ends_with_status_3(convlog, session):
    """Where the session requires it; once it has listened, it may."""
    assert convlog("join", "build", "--as", "ops", "--listening", "require").status == 0
    stale = convlog("append", "build", "--as", "w", "--body", "x")
    assert stale.status == 3
    assert "listen first" in stale.err
    convlog("tail", "build", "--as", "w", "--since-last")
    assert convlog("append", "build", "--as", "w", "--body", "x").status == 0


def test_a_stream_says_what_was_missed(convlog, session, store_path):
    """The answer to a line that is refused holds what the error tells."""
    import os
    import subprocess
    from pathlib import Path

    session.listening("require", by="ops")
    command = [
        sys.executable,
        "-m",
        "convlog_sqlite",
        "--store",
        str(store_path),
        "append",
        "build",
        "--stream",
    ]
    done = subprocess.run(
        command,
        input=b'{"type":"message","agent":"w","body":"x"}\n{"type":"message","agent":"user","body":"y"}\n',
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
        check=False,
        timeout=60,
    )
    refused, taken = map(json.loads, done.stdout.splitlines())
    assert (refused["error"], refused["agent"], refused["seen"], refused["seq"]) == (
        "StaleContext",
        "w",
        0,
        2,
    )
    assert "id" in taken
    assert done.returncode == 3


def test_seen_shows_the_slice(convlog, session):
    """At an event of the agent, what it was written on; the status says where it is not the same any more."""
    convlog("tail", "build", "--as", "w")
    event = convlog("append", "build", "--as", "w", "--body", "x").lines()[0]
    secret = session.tail(3)[0]
    (found,) = convlog("seen", "w", "build", "--at", event["id"][:13]).lines()
    assert (found["event"], found["matches"], [e["seq"] for e in found["events"]]) == (
        event["id"],
        True,
        [2, 3],
    )
    assert "had in front of it: 2 events, 2 to 3" in convlog("--color", "seen", "w", "build").out
    convlog("redact", "--event", secret.id, "--reason", "test", "--by", "ops")
    (found,) = convlog("seen", "w", "build", "--at", event["id"]).lines()
    assert found["erased"] == [secret.id]
    assert "erased after" in convlog("--color", "seen", "w", "build").out
    convlog("label", secret.id, "--sensitivity", "restricted", "--by", "ops")
    done = convlog("seen", "w", "build", "--at", event["id"])
    assert (done.status, done.lines()[0]["matches"]) == (1, False)
    assert "not what was read" in convlog("--color", "seen", "w", "build").out
    assert convlog("seen", "user", "build").lines() == [
        {"agent": "user", "at": session.head, "missing": "unread", "events": []}
    ]


def test_why_says_what_each_had_in_front_of_it(convlog, session):
    """As JSON and for people."""
    convlog("tail", "build", "--as", "w")
    event = convlog("append", "build", "--as", "w", "--body", "x").lines()[0]
    first, second = convlog("why", event["id"]).lines()
    assert (first["reading"]["upto"], "reading" in second) == (3, False)
    assert "had in front of it" in convlog("--color", "why", event["id"]).out


def test_readings_have_a_policy_of_their_own(convlog, session):
    """Shown by the plan, applied by `redact` alone, and said by `seen`."""
    convlog("tail", "build", "--as", "w")
    event = convlog("append", "build", "--as", "w", "--body", "x").lines()[0]
    convlog("tail", "build", "--as", "w")
    policy = ["policy", "set", "who-read", "--target", "reading", "--max-age", "1m", "--by", "ops"]
    assert convlog(*policy, "--type", "message").status == 3
    assert convlog(*policy, "--keep-last", 3).status == 3
    assert convlog(*policy, "--agent", "w").status == 0
    assert "every reading" not in convlog("--color", "policy", "list").out
    assert convlog("redact", "--by", "ops", "--yes").lines()[0]["readings"] == {}, "nothing is that old"
    assert convlog("seen", "w", "build", "--at", event["id"]).lines()[0]["matches"]
