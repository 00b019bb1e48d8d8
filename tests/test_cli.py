"""The command: each verb, each exit status, and input that must be refused without a traceback."""

import io
import json
import os
import pty
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

from convlog_sqlite import Anchor, ConversationLog, PayloadLost, StoreBusy
from convlog_sqlite.cli import VERBS, main
from convlog_sqlite.cli.failing import status_of

# The content of the second events becomes unreadable, and nothing says that it was erased.
WIPE = "UPDATE payload SET sealed = zeroblob(length(sealed)) WHERE pos IN (SELECT pos FROM envelope WHERE seq = 2)"
TRANSCRIPT = Path(__file__).resolve().parent.parent / "tools" / "demo-transcript"


class Done(NamedTuple):
    """How a run ended, and what it printed."""

    status: int
    out: bytes
    err: str

    def lines(self):
        """The JSON lines on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def convlog(store_path, monkeypatch):
    """Run the command in this process, on the store of the test."""

    def run(*arguments, stdin=b"", store=True):
        with monkeypatch.context() as patch:
            out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
            err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            place = ["--store", str(store_path)] if store else []
            status = main([*place, *map(str, arguments)])
            out.flush()
            err.flush()
            return Done(status, out.buffer.getvalue(), err.buffer.getvalue().decode())

    return run


@pytest.fixture
def process(store_path):
    """Run the command in a process of its own."""

    def run(*arguments, stdin=b"", **more):
        command = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path), *map(str, arguments)]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False, **more)
        return Done(done.returncode, done.stdout, done.stderr.decode())

    return run


@pytest.fixture
def start(store_path):
    """Start the command and leave it running; it is killed after the test if it still does."""
    started = []

    def run(*arguments, **more):
        command = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path), *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more))
        return started[-1]

    yield run
    for running in started:
        running.kill()
        running.communicate()


@pytest.fixture
def build(convlog):
    """A session `build` with ten messages of `planner`, seq 2 to 11, behind its opening."""
    drafts = [{"type": "message", "agent": "planner", "body": str(number)} for number in range(10)]
    done = convlog("append", "build", "--jsonl", "-", stdin="\n".join(map(json.dumps, drafts)).encode())
    assert done.status == 0, done.err
    return done.lines()


def event_count(store_path):
    """How many events the store holds."""
    with ConversationLog.open(store_path, create=False) as log:
        return sum(1 for _ in log.lines())


def change(store_path, sql):
    """Run SQL on the database while no handle has it open."""
    connection = apsw.Connection(str(store_path / "log.db"))
    connection.execute(sql)
    connection.close()


def assert_refused(done, status, *words):
    """One line on stderr that says these words, nothing on stdout."""
    assert done.status == status, done
    assert done.out == b""
    first, *rest = done.err.splitlines()
    assert first.startswith("convlog: ")
    assert all(word in first for word in words), first
    assert [line for line in rest if not line.startswith("Try 'convlog")] == []


# init


def test_init_makes_a_store_and_says_that_the_mirror_is_plaintext(convlog, store_path):
    """`init` names what it made, and warns of plaintext where a person reads."""
    done = convlog("init")
    assert done.status == 0
    assert done.lines() == [{"store": str(store_path), "created": True, "mirror": True}]
    shown = convlog("--color", "init")
    assert b"plaintext" in shown.out


def test_init_leaves_a_store_as_it_is(convlog, build, store_path):
    """`init` where a store is says so, ends well and changes nothing."""
    before = event_count(store_path)
    done = convlog("init", "--no-mirror")
    assert (done.status, done.lines()[0]["created"], done.lines()[0]["mirror"]) == (0, False, True)
    assert event_count(store_path) == before
    assert b"already" in convlog("--color", "init").out


def test_init_without_mirror_writes_no_plaintext(convlog, store_path):
    """`--no-mirror` makes a store in which no file holds what was said."""
    convlog("init", "--no-mirror")
    convlog("append", "s", "-a", "u", "--body", "the secret word")
    files = [path for path in store_path.rglob("*") if path.is_file()]
    assert files
    assert not any(
        b"secret word" in path.read_bytes() for path in files if not path.name.startswith("log.db")
    )
    assert convlog("export", "--mirror").status == 3


def test_init_puts_the_keystore_elsewhere(convlog, store_path, tmp_path):
    """`--keys` puts the keystore there, and later calls find it."""
    keys = tmp_path / "elsewhere" / "keys"
    assert convlog("init", "--keys", keys).status == 0
    assert keys.exists()
    assert not (store_path / "log.keys").exists()
    assert convlog("append", "s", "-a", "u", "--body", "x").status == 0


# append


def test_append_prints_the_recorded_line(convlog, store_path):
    """`append` prints the line as an export has it, and makes a store that is not there, saying so."""
    done = convlog("append", "s", "--agent", "u", "--body", "Grüße 🙂")
    assert (done.status, done.lines()[0]["body"]) == (0, "Grüße 🙂")
    assert done.err == f"convlog: made a new store: {store_path}\n"
    assert convlog("export", "s").out.endswith(done.out)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--body", "hi"], {"type": "message", "body": "hi"}),
        (["--tool", "grep"], {"type": "tool_call", "tool": "grep"}),
        (["--tool", "grep", "--args", '{"a": [1, null]}'], {"type": "tool_call", "args": {"a": [1, None]}}),
        (["--kind", "state-set", "--value", "null"], {"type": "mutation", "value": None}),
        (["-t", "tool_call", "--tool", "x"], {"type": "tool_call"}),
    ],
)
def test_the_type_follows_from_what_is_given(convlog, options, expected):
    """--body makes a message, --tool a call, --kind a mutation."""
    done = convlog("append", "s", "-a", "u", *options)
    assert done.status == 0, done.err
    assert expected.items() <= done.lines()[0].items()


def test_a_call_is_answered_once(convlog):
    """--call-id makes a result, which takes over the tool; a second one is refused."""
    call = convlog("append", "s", "-a", "u", "--tool", "grep", "--task", "t1", "-q").out.decode().strip()
    answer = convlog(
        "append", "s", "-a", "u", "--call-id", call, "--result-text", "3 hits", "--status", "error"
    )
    said = {"type": "tool_result", "tool": "grep", "task_id": "t1", "status": "error", "result": "3 hits"}
    assert said.items() <= answer.lines()[0].items()
    assert_refused(convlog("append", "s", "-a", "u", "--call-id", call, "--result", "1"), 3, "/call_id", call)


def test_every_key_has_an_option(convlog):
    """Each key that a draft may have is recorded under its own name."""
    first = convlog("append", "s", "-a", "u", "--body", "1", "-q").out.decode().strip()
    done = convlog(
        *[
            "append",
            "s",
            "--agent",
            "u",
            "--body",
            "2",
            "--to",
            "a",
            "--to",
            "b",
            "--task",
            "t",
            "--thread",
            "h",
        ],
        *[
            "--parent",
            first,
            "--link",
            f"evidence={first}",
            "--link",
            f"derived_from={first}",
            "--role",
            "worker",
        ],
        *[
            "--performative",
            "inform",
            "--correlation",
            "c",
            "--content-type",
            "text/markdown",
            "--model",
            "m",
        ],
        *["--traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "--sensitivity", "restricted"],
        *["--purpose", "audit", "--subject", "Ada", "--meta", '{"k": 1}', "--usage", '{"tokens": 2}'],
        *["--idempotency-key", "once"],
    )
    assert done.status == 0, done.err
    event = done.lines()[0]
    assert len(event.pop("subjects")[0]) == 32
    ours = {key: item for key, item in event.items() if key not in ("v", "id", "seq", "ts", "session")}
    assert ours == {
        "agent": "u",
        "role": "worker",
        "type": "message",
        "to": ["a", "b"],
        "performative": "inform",
        "thread_id": "h",
        "task_id": "t",
        "parent_id": first,
        "links": {"evidence": [first], "derived_from": [first]},
        "correlation_id": "c",
        "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        "content_type": "text/markdown",
        "model": "m",
        "sensitivity": "restricted",
        "purposes": ["audit"],
        "body": "2",
        "usage": {"tokens": 2},
        "meta": {"k": 1},
    }
    mutation = convlog("append", "s", "-a", "u", "--kind", "state-set", "--state-key", "k", "--value", "1")
    assert mutation.lines()[0]["state_key"] == "k"


def test_standard_input_is_taken_as_it_is(convlog):
    """`--body -` keeps every byte, the line end included; `--args -` reads JSON."""
    assert (
        convlog("append", "s", "-a", "u", "--body", "-", stdin=b"two\nlines\n").lines()[0]["body"]
        == "two\nlines\n"
    )
    assert convlog("append", "s", "-a", "u", "--tool", "x", "--args", "-", stdin=b" [1] ").lines()[0][
        "args"
    ] == [1]


def test_the_environment_stands_in(convlog, monkeypatch):
    """CONVLOG_SESSION and CONVLOG_AGENT stand in for the argument and the option; a filter is not set by them."""
    monkeypatch.setenv("CONVLOG_SESSION", "s")
    monkeypatch.setenv("CONVLOG_AGENT", "env-agent")
    event = convlog("append", "--body", "x").lines()[0]
    assert (event["session"], event["agent"]) == ("s", "env-agent")
    convlog("append", "--agent", "other", "--body", "y")
    assert [line["agent"] for line in convlog("tail", "-n", "2").lines()] == ["env-agent", "other"]
    assert convlog("show", "2").lines()[0]["body"] == "x"


def test_the_store_is_named_before_or_behind_the_verb(convlog, tmp_path, monkeypatch):
    """--store may stand in front of the verb or behind it, or CONVLOG_STORE names the store."""
    other = tmp_path / "other"
    assert convlog("append", "s", "-a", "u", "--body", "x", "--store", other, store=False).status == 0
    assert convlog("--store", other, "tail", "s", store=False).status == 0
    monkeypatch.setenv("CONVLOG_STORE", str(other))
    assert len(convlog("tail", "s", store=False).lines()) == 2


def test_attachments_are_sealed_and_come_back(convlog, tmp_path):
    """--attach keeps a file, with the media type that was given or that its name suggests."""
    image = tmp_path / "a picture.png"
    image.write_bytes(b"\x89PNG\x00\xff")
    odd = tmp_path / "odd:text"
    odd.mkdir()
    (odd / "plain").write_bytes(b"plain")
    event = convlog(
        *[
            "append",
            "s",
            "-a",
            "u",
            "--attach",
            image,
            "--attach",
            f"{image}:application/x-own",
            "--attach",
            odd / "plain",
        ]
    ).lines()[0]
    types = [item["media_type"] for item in event["attachments"]]
    assert types == ["image/png", "application/x-own", "application/octet-stream"]
    assert convlog("show", event["id"], "--attachment", "1").out == b"\x89PNG\x00\xff"
    assert convlog("show", event["id"], "--attachment", "2").out == b"plain"
    assert_refused(convlog("show", event["id"], "--attachment", "3"), 3, "3 attachments")
    assert_refused(convlog("append", "s", "-a", "u", "--attach", tmp_path / "gone"), 2, "--attach", "gone")


def test_an_idempotency_key_gives_the_first_event(convlog):
    """The same key and content again is the same event; other content is a conflict."""
    once = ["append", "s", "-a", "u", "--idempotency-key", "k", "--body"]
    assert convlog(*once, "x").out == convlog(*once, "x").out
    assert_refused(convlog(*once, "y"), 3, "/idempotency_key")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["../x", "-a", "u", "--body", "x"], ["/session"]),
        (["a" * 300, "-a", "u", "--body", "x"], ["/session"]),
        (["", "-a", "u", "--body", "x"], ["/session"]),
        (["new\nline", "-a", "u", "--body", "x"], ["/session"]),
        (["BUILD", "-a", "u", "--body", "x"], ["/session", "case"]),
        (["_store", "-a", "u", "--body", "x"], ["/session"]),
        (["build", "-a", "a\x1b[31m", "--body", "x"], ["/agent"]),
        (["build", "-a", "u", "--body", "\udcff"], ["/body", "surrogate"]),
        (["build", "-a", "u", "--tool", "x", "--args", '{"a": NaN}'], ["/args/a", "NaN"]),
        (["build", "-a", "u", "--tool", "x", "--args", '{"a":1,"a":2}'], ["/args/a", "twice"]),
        (["build", "-a", "u", "--tool", "x", "--args", "[1, 590295810358705651712]"], ["/args/1", "64 bits"]),
        (["build", "-a", "u", "--tool", "x", "--args", '"\\ud800"'], ["/args", "surrogate"]),
        (["build", "-a", "u", "--tool", "x", "--args", "{"], ["/args", "not JSON"]),
        (["build", "-a", "u", "--tool", "x", "--args", "[" * 100_000], ["/args", "200"]),
        (["build", "-a", "u", "--body", "x", "--meta", "[]"], ["/meta"]),
        (["build", "-a", "u", "--body", "x", "--kind", "k"], ["/body"]),
        (["build", "-a", "u", "--kind", "Not Kebab"], ["/kind"]),
        (["build", "-a", "u", "--body", "x", "-t", "nonsense"], ["/type"]),
        (["build", "-a", "u", "--body", "x", "--performative", "shout"], ["/performative"]),
        (["build", "-a", "u", "--body", "x", "--link", "evidence=nope"], ["/links/evidence/0"]),
        (
            ["build", "-a", "u", "--call-id", "01a22e85-af7f-71d0-b40e-abce69bb6afa"],
            ["/call_id", "does not exist"],
        ),
    ],
)
def test_what_breaks_a_rule_is_refused_whole(convlog, build, store_path, arguments, words):
    """A refusal names the field and the rule on one line, ends with status 3, and writes nothing."""
    before = event_count(store_path)
    assert_refused(convlog("append", *arguments), 3, *words)
    assert event_count(store_path) == before


def test_what_breaks_a_rule_makes_no_store(convlog, store_path):
    """A first append that is refused leaves no store behind."""
    assert convlog("append", "../x", "-a", "u", "--body", "x").status == 3
    assert convlog("append", "s", "-a", "u", "--kind", "Not Kebab").status == 3
    assert convlog("append", "s", "--jsonl", "-", stdin=b"{}").status == 3
    assert not store_path.exists()


def test_more_than_one_event_may_hold_is_refused(convlog, build, store_path):
    """A body of 17 MiB from standard input is refused, and so is one without end."""
    before = event_count(store_path)
    assert_refused(
        convlog("append", "build", "-a", "u", "--body", "-", stdin=b"a" * (17 << 20)), 3, "16777216"
    )
    assert_refused(convlog("append", "build", "-a", "u", "--body", "-", stdin=b"a" * (65 << 20)), 3, "bytes")
    assert event_count(store_path) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["build", "-a", "u"], ["--body"]),
        (["build", "--body", "x"], ["--agent"]),
        (["build", "-a", "u", "--call-id", "x", "--result", "1", "--result-text", "1"], ["--result-text"]),
        (["build", "-a", "u", "--tool", "x", "--args", "-", "--meta", "-"], ["standard input"]),
        (["build", "-a", "u", "--body", "x", "--link", "evidence"], ["TYPE=ID"]),
        (["build", "--jsonl", "-", "--task", "x"], ["--jsonl", "--task"]),
        (["build", "--jsonl", "/no/such/file"], ["--jsonl", "/no/such/file"]),
        (["build", "-a", "u", "--bodi", "x"], ["--bodi"]),
        (["build", "extra", "-a", "u", "--body", "x"], ["extra"]),
    ],
)
def test_wrong_usage_of_append(convlog, build, arguments, words):
    """Arguments that make no sense end with status 2, one line, and where to read about them."""
    done = convlog("append", *arguments)
    assert_refused(done, 2, *words)
    assert done.err.splitlines()[1] == "Try 'convlog append --help'."


# append --jsonl


def test_a_batch_is_printed_line_by_line(convlog):
    """One draft a line is recorded in order; blank lines do not count, and --agent stands in where none is named."""
    stdin = b'{"type":"message","body":"1"}\n\n{"type":"message","agent":"b","body":"2"}\n'
    done = convlog("append", "s", "-a", "a", "--jsonl", "-", stdin=stdin)
    assert [(line["agent"], line["body"]) for line in done.lines()] == [("a", "1"), ("b", "2")]


def test_a_batch_is_read_from_a_file(convlog, tmp_path):
    """--jsonl takes a file too, and --quiet prints ids only."""
    path = tmp_path / "drafts.jsonl"
    path.write_text('{"type":"message","agent":"a","body":"1"}\n', encoding="utf-8")
    done = convlog("append", "s", "--jsonl", path, "--quiet")
    assert convlog("show", done.out.decode().strip()).lines()[0]["body"] == "1"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"not json", ["not JSON"]),
        (b"[1]", ["object"]),
        (b'{"type":"message","agent":"a","body":"x","extra/key":1}', ["/extra~1key", "unknown"]),
        (b'{"type":"message","agent":"a","body":"x","seq":1}', ["/seq", "only the store"]),
        (b'{"type":"message","agent":"a","body":"\xff"}', ["UTF-8"]),
        (b'{"type":"message","agent":"a","body":7}', ["/body"]),
        (b'{"type":"message","agent":"a","agent":"b","body":"x"}', ["/agent", "twice"]),
        (
            b'{"type":"tool_result","agent":"a","call_id":"01a22e85-af7f-71d0-b40e-abce69bb6afa"}',
            ["/call_id"],
        ),
    ],
)
def test_a_bad_line_refuses_the_batch(convlog, build, store_path, line, words):
    """Line 3 of 5 is named by its number, the pointer and the rule, and none of the five is written."""
    good = b'{"type":"message","agent":"a","body":"x"}'
    before = event_count(store_path)
    done = convlog("append", "build", "--jsonl", "-", stdin=b"\n".join([good, b"", line, good, good]))
    assert_refused(done, 3, "convlog: line 3: ", *words)
    assert event_count(store_path) == before


# tail


def bodies(done):
    """The bodies of the lines that were printed."""
    return [line.get("body") for line in done.lines()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-n", "2"], ["8", "9"]),
        (["-n", "0"], []),
        (["-n", "2", "--before", "6"], ["2", "3"]),
        (["--after", "8"], ["7", "8", "9"]),
        (["--after", "8", "-n", "2"], ["8", "9"]),
        (["--after", "4", "--before", "7"], ["3", "4"]),
        (["--after", "99"], []),
        (["-n", "3", "--agent", "planner"], ["7", "8", "9"]),
        (["-n", "3", "--agent", "nobody"], []),
        (["--type", "mutation"], [None]),
        (["--kind", "session-opened"], [None]),
    ],
)
def test_tail_prints_the_last_events(convlog, build, options, expected):
    """Number, range and filters select what is printed, oldest first."""
    done = convlog("tail", "build", *options)
    assert (done.status, bodies(done)) == (0, expected)


def test_tail_is_what_was_exported(convlog, build):
    """Lines of `tail` are the canonical bytes."""
    assert convlog("tail", "build").out == convlog("export", "build").out


def test_tail_goes_on_where_a_filtered_read_stopped(convlog, store_path):
    """A filter without an index is followed through as many bounded reads as it takes."""
    with ConversationLog.open(store_path, durability="normal") as log:
        session = log.session("long")
        session.message("needle", agent="a", performative="inform")
        from convlog_sqlite import Draft

        hay = [Draft(type="message", agent="a", body="hay")] * 5000
        for _ in range(5):
            session.append_many(hay)
    assert bodies(convlog("tail", "long", "--performative", "inform")) == ["needle"]
    assert bodies(convlog("tail", "long", "--performative", "inform", "--after", "0")) == ["needle"]


def test_tail_keeps_pairs_together(convlog):
    """With --pairs a result brings its call along, however far in front."""
    call = convlog("append", "s", "-a", "u", "--tool", "grep", "-q").out.decode().strip()
    for _ in range(3):
        convlog("append", "s", "-a", "u", "--body", "between")
    convlog("append", "s", "-a", "u", "--call-id", call, "--result", "1")
    assert [line["type"] for line in convlog("tail", "s", "-n", "1").lines()] == ["tool_result"]
    assert [line["type"] for line in convlog("tail", "s", "-n", "1", "--pairs").lines()] == [
        "tool_call",
        "tool_result",
    ]
    assert_refused(convlog("tail", "s", "--after", "1", "--pairs"), 2, "--pairs")


def test_an_unknown_session_is_named_with_close_ones(convlog, build):
    """A name that is not there ends with status 3 and a hint."""
    assert_refused(convlog("tail", "biuld"), 3, "'biuld' does not exist", "did you mean build")
    assert_refused(convlog("tail", "zzz"), 3, "`convlog sessions`")


@pytest.mark.parametrize(
    "options",
    [
        ["-n", "x"],
        ["-n", "-1"],
        ["--after", "99999999999999999999"],
        ["--before", "1.5"],
        ["-f", "--before", "3"],
    ],
)
def test_wrong_usage_of_tail(convlog, build, options):
    """What is no count is wrong usage, however large."""
    assert_refused(convlog("tail", "build", *options), 2)


def test_an_unknown_type_to_filter_by_is_refused(convlog, build):
    """A filter is held to the words there are."""
    assert_refused(convlog("tail", "build", "--type", "shout"), 3, "/type")


def next_line(running, seconds=20):
    """The next line that a running command prints."""
    assert select.select([running.stdout], [], [], seconds)[0], "nothing was printed"
    return json.loads(running.stdout.readline())


def test_tail_follows_a_session_that_is_not_there_yet(convlog, start):
    """`tail -f` waits for a session, prints each event as it lands, and ends quietly at Ctrl-C with status 130."""
    convlog("init")
    running = start("tail", "late", "-f", bufsize=0)
    for number in range(3):
        convlog("append", "late", "-a", "u", "--body", number)
    found = [next_line(running) for _ in range(4)]
    assert [event.get("body") for event in found] == [None, "0", "1", "2"]
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=20)
    assert (running.returncode, out, err) == (130, b"", b"")


def test_tail_follows_behind_what_it_printed(convlog, build, start):
    """`tail -n 1 -f` with a filter prints the last match, then only what comes, each once."""
    running = start("tail", "build", "-n", "1", "-f", "--agent", "planner", bufsize=0)
    assert next_line(running)["body"] == "9"
    convlog("append", "build", "-a", "other", "--body", "not this")
    convlog("append", "build", "-a", "planner", "--body", "this")
    assert next_line(running)["body"] == "this"


def test_tail_follows_through_a_view(convlog, build, start):
    """`tail -f --view` prints what the view shows as it lands, and nothing that it does not."""
    running = start("tail", "build", "-n", "1", "-f", "--view", "auditor", "--agent", "planner", bufsize=0)
    assert next_line(running)["withheld"]
    convlog("append", "build", "-a", "other", "--body", "not this")
    convlog("append", "build", "-a", "planner", "--body", "this")
    shown = next_line(running)
    assert (shown["agent"], shown["withheld"], shown.get("body")) == ("planner", True, None)


# show


def test_show_finds_an_event_by_id_beginning_or_place(convlog, build):
    """An id, the beginning of one, and session with seq name the same event."""
    event = build[3]
    by_id = convlog("show", event["id"])
    assert by_id.lines() == [event]
    assert convlog("show", event["id"].upper()).out == by_id.out
    assert convlog("show", "build", event["seq"]).out == by_id.out


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["01a22e85-af7f-71d0-b40e-abce69bb6afa"], 3),
        (["nonsense"], 3),
        (["build", "99"], 3),
        (["build", "0"], 3),
        (["build", "9" * 40], 3),
        (["nope", "1"], 3),
        (["build", "one"], 2),
        (["build", "1", "2"], 2),
        ([], 2),
    ],
)
def test_show_of_what_is_not_there(convlog, build, arguments, status):
    """What names no event is refused, and what is no name of one is wrong usage."""
    assert_refused(convlog("show", *arguments), status)


def test_show_full_gives_the_whole_value(convlog):
    """Where the line holds a preview, --full prints all of it: text as it is, anything else as JSON."""
    text = "ä" * 20_000
    event = convlog("append", "s", "-a", "u", "--body", "-", stdin=text.encode()).lines()[0]
    assert event["truncated"]
    assert convlog("show", event["id"], "--full").out == text.encode()
    assert json.loads(convlog("show", event["id"], "--full", "--json").out) == text
    args = {"list": list(range(5000))}
    event = convlog(
        "append", "s", "-a", "u", "--tool", "x", "--args", "-", stdin=json.dumps(args).encode()
    ).lines()[0]
    assert json.loads(convlog("show", event["id"], "--full").out) == args


def test_an_unreadable_payload_ends_with_5(convlog, build, store_path):
    """`show` prints the envelope and says why there is no more; --full prints nothing in place of content."""
    event = build[0]
    change(store_path, WIPE)
    done = convlog("show", event["id"])
    assert (done.status, done.lines()[0]["unreadable"]) == (5, "corrupt")
    assert done.err == f"convlog: {event['id']}: content is corrupt\n"
    assert_refused(convlog("show", event["id"], "--full"), 5, "corrupt")
    assert_refused(convlog("show", event["id"], "--attachment", "0"), 5, "corrupt")
    assert convlog("tail", "build").status == 0
    assert b"content is corrupt" in convlog("--color", "show", event["id"]).out


# sessions, export


def test_sessions_are_listed(convlog, build):
    """Each session has its extent and its open calls; the store's own is shown when asked for."""
    convlog("append", "a", "-a", "u", "--tool", "x")
    found = convlog("sessions").lines()
    assert [(item["id"], item["events"], item["open_calls"]) for item in found] == [
        ("a", 2, 1),
        ("build", 11, 0),
    ]
    assert "_store" in [item["id"] for item in convlog("sessions", "--all").lines()]
    shown = convlog("--color", "sessions").out.decode()
    assert shown.index("\na") < shown.index("\nbuild")


def test_export_is_the_same_bytes_each_time(convlog, build):
    """Two exports agree, hold every session by id and seq, and each line parses."""
    convlog("append", "a", "-a", "u", "--body", "x")
    everything = convlog("export")
    assert everything.out == convlog("export").out
    places = [(line["session"], line["seq"]) for line in everything.lines()]
    assert places == sorted(places)
    assert convlog("export", "build", "a").out == convlog("export", "build").out + convlog("export", "a").out
    assert_refused(convlog("export", "build", "nope"), 3, "'nope' does not exist")


def test_export_to_a_directory(convlog, build, tmp_path):
    """--out writes the files, says how many lines are new, and the next time only what is new."""
    out = tmp_path / "out"
    first = {item["session"]: item for item in convlog("export", "build", "--out", out).lines()}
    assert first["build"]["lines"] == 11
    assert Path(first["build"]["path"]).read_bytes() == convlog("export", "build").out
    assert convlog("export", "build", "--out", out).lines()[0]["lines"] == 0
    assert b"Up to date" in convlog("--color", "export", "--out", out, "build").out


def test_export_brings_the_mirror_up_to_date(convlog, build, store_path):
    """--mirror makes a mirror file that was lost anew."""
    mirror = store_path / "sessions" / "build" / "conversation.jsonl"
    mirror.unlink()
    done = convlog("export", "--mirror", "build")
    assert (done.status, done.lines()[0]["lines"]) == (0, 11)
    assert mirror.read_bytes() == convlog("export", "build").out
    assert_refused(convlog("export", "--mirror", "--out", "x"), 2, "--mirror")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_exporter_runs_until_it_is_told_to_stop(convlog, build, start, store_path, ending):
    """`export --mirror --follow` keeps the files in step, lets no second exporter in, and ends well at a signal."""
    running = start("export", "--mirror", "--follow", bufsize=0)
    next_line(running)  # it reports, then follows
    mirror = store_path / "sessions" / "build" / "conversation.jsonl"
    deadline = time.monotonic() + 20
    while (busy := convlog("export", "--mirror")).status != 3:
        assert time.monotonic() < deadline, busy
    assert "another exporter" in busy.err
    convlog("append", "build", "-a", "u", "--body", "late")
    while b"late" not in mirror.read_bytes():
        assert time.monotonic() < deadline
    running.send_signal(ending)
    _, err = running.communicate(timeout=20)
    assert (running.returncode, err) == (0, b"")


def test_export_follows_on_standard_output(convlog, build, start):
    """`export --follow` prints what there is and then what comes."""
    running = start("export", "build", "--follow", bufsize=0)
    assert [next_line(running)["seq"] for _ in range(11)] == list(range(1, 12))
    convlog("append", "build", "-a", "u", "--body", "late")
    assert next_line(running)["body"] == "late"


# import


def test_import_reports_and_repeats_without_effect(convlog):
    """An import says what it found, and the same one again adds nothing."""
    first = convlog("import", "claude-code", TRANSCRIPT)
    assert first.status == 0, first.err
    report = first.lines()[0]
    assert report["new"] == report["events"] > 0
    again = convlog("import", "claude-code", TRANSCRIPT).lines()[0]
    assert (again["new"], again["already"]) == (0, report["new"])
    assert b"unanswered calls" in convlog("--color", "import", "claude-code", TRANSCRIPT).out


def test_a_dry_run_writes_nothing(convlog, store_path):
    """--dry-run reports, with a store or without one, and makes none."""
    done = convlog("import", "claude-code", TRANSCRIPT, "--dry-run")
    assert (done.status, done.lines()[0]["dry_run"]) == (0, True)
    assert done.lines()[0]["new"] > 0
    assert not store_path.exists()
    convlog("import", "claude-code", TRANSCRIPT)
    assert convlog("import", "claude-code", TRANSCRIPT, "--dry-run").lines()[0]["new"] == 0


def test_bad_lines_are_named(convlog, tmp_path):
    """A damaged line is counted and named with file and line, and the rest is imported."""
    path = tmp_path / "broken.jsonl"
    record = {
        "type": "user",
        "uuid": "11111111-1111-4111-8111-111111111111",
        "sessionId": "22222222-2222-4222-8222-222222222222",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "message": {"role": "user", "content": "hello"},
    }
    path.write_text(
        json.dumps(record) + "\n{broken\n" + json.dumps(record | {"type": "summary"}) + "\n", encoding="utf-8"
    )
    report = convlog("import", "claude-code", path).lines()[0]
    assert (report["bad_lines"], report["problems"][0]["line"]) == (1, 2)
    assert f"{path}:2: ".encode() in convlog("--color", "import", "claude-code", path).out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["netscape"], 2, ["'netscape'", "claude-code"]),
        (["claude-code", "/no/such/place"], 3, ["/no/such/place"]),
        (["claude-code", "--since", "yesterday"], 2, ["--since", "7d"]),
        (["claude-code", "--since", "2026-13-01"], 2, ["--since"]),
        (["claude-code", str(TRANSCRIPT), "--session", "nope"], 3, ["nope"]),
    ],
)
def test_imports_that_cannot_be(convlog, arguments, status, words):
    """An unknown harness is wrong usage and the known ones are named; a place that is not there is refused."""
    convlog("init")
    assert_refused(convlog("import", *arguments), status, *words)


@pytest.mark.parametrize("since", ["30m", "12h", "7d", "2w", "2020-01-01", "2020-01-01T10:00:00+02:00"])
def test_since_takes_spans_and_dates(convlog, since):
    """--since takes minutes, hours, days, weeks, or a date."""
    assert convlog("import", "claude-code", TRANSCRIPT, "--since", since, "--dry-run").status == 0


# status, verify, anchor


def test_status_says_where_and_how(convlog, build, store_path):
    """`status` is one JSON object, and readable on a terminal."""
    found = convlog("status").lines()[0]
    assert (found["store"], found["sessions"]) == (str(store_path), 2)
    assert str(store_path).encode() in convlog("--no-color", "status").out
    assert b"keystore" in convlog("--color", "status").out


def test_verify_finds_nothing_in_a_sound_store(convlog, build):
    """A sound store has no findings, and the summary says so on stderr."""
    done = convlog("verify")
    assert done == (0, b"", "convlog: no faults, no notes\n")
    assert convlog("verify", "build").status == 0
    assert_refused(convlog("verify", "nope"), 3, "'nope'")


def test_verify_ends_with_1_at_a_fault(convlog, build, store_path):
    """Each finding is a JSON line, the faults are counted, and the status is 1."""
    change(store_path, WIPE)
    done = convlog("verify")
    assert done.status == 1
    assert "payload-corrupt" in [
        finding["rule"] for finding in done.lines() if finding["severity"] == "fault"
    ]
    assert "fault" in done.err
    assert b"payload-corrupt" in convlog("--color", "verify").out


def test_an_anchor_shows_what_was_cut_off(convlog, build, tmp_path):
    """What `anchor` printed is accepted by `verify` for that store, and not for another."""
    head = tmp_path / "head.json"
    printed = convlog("anchor")
    head.write_bytes(printed.out)
    assert Anchor(**printed.lines()[0]).pos == 13
    convlog("append", "build", "-a", "u", "--body", "more")
    assert convlog("verify", "--anchor", head).status == 0
    assert convlog("verify", "--anchor", "-", stdin=printed.out).status == 0
    ahead = json.dumps(printed.lines()[0] | {"pos": 99}).encode()
    assert convlog("verify", "--anchor", "-", stdin=ahead).status == 1
    assert_refused(convlog("verify", "--anchor", tmp_path / "gone"), 2, "--anchor")
    for text in (b"{}", b"nonsense", b"[]", b"7"):
        assert_refused(convlog("verify", "--anchor", "-", stdin=text), 2, "--anchor")


# Stores that cannot be used


def test_reads_never_make_a_store(convlog, store_path):
    """Every verb that reads ends with status 4 where no store is, and makes none."""
    for verb in (
        ["tail", "s"],
        ["show", "s", "1"],
        ["sessions"],
        ["export"],
        ["status"],
        ["verify"],
        ["anchor"],
    ):
        assert_refused(convlog(*verb), 4, "no convlog store", "convlog init")
    assert_refused(convlog("export", "--mirror"), 4)
    assert not store_path.exists()


def test_a_store_without_its_keystore(convlog, build, store_path):
    """A keystore that is gone is said to be gone; nothing is called erased, no new one is made."""
    (store_path / "log.keys").unlink()
    assert_refused(convlog("tail", "build"), 4, "log.keys")
    assert_refused(convlog("append", "build", "-a", "u", "--body", "x"), 4, "log.keys")
    assert not (store_path / "log.keys").exists()


def test_the_keystore_of_another_store(convlog, build, tmp_path):
    """A foreign keystore is refused."""
    other = tmp_path / "other"
    convlog("--store", other, "init", store=False)
    assert_refused(convlog("--keys", other / "log.keys", "tail", "build"), 4, "keys")


def test_a_store_of_a_newer_convlog(convlog, build, store_path):
    """A store that a newer convlog wrote is left alone."""
    change(
        store_path,
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('convlog', '9999_later', 'now')",
    )
    assert_refused(convlog("tail", "build"), 4, "newer")
    assert_refused(convlog("append", "build", "-a", "u", "--body", "x"), 4, "newer")


def test_a_file_that_is_no_database(convlog, store_path):
    """What is no SQLite file is no store."""
    store_path.mkdir()
    (store_path / "log.db").write_bytes(b"something else entirely" * 100)
    assert_refused(convlog("tail", "s"), 4)
    assert_refused(convlog("append", "s", "-a", "u", "--body", "x"), 4)


def test_a_file_where_the_directory_should_be(convlog, store_path):
    """A path that is a file cannot be a store."""
    store_path.write_text("", encoding="utf-8")
    assert_refused(convlog("append", "s", "-a", "u", "--body", "x"), 4)
    assert_refused(convlog("tail", "s"), 4)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(convlog, build, store_path):
    """Appending to a read-only directory ends with status 4."""
    store_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert_refused(convlog("append", "build", "-a", "u", "--body", "x"), 4)
    finally:
        store_path.chmod(stat.S_IRWXU)


def test_every_error_has_a_status():
    """The table maps the errors of each branch."""
    assert status_of(StoreBusy("x")) == 4
    assert status_of(PayloadLost("x")) == 5


# The command as a process


def test_no_verb_is_the_help(convlog):
    """Without a verb the help is printed, with its panels, and the status is that of wrong usage."""
    done = convlog(store=False)
    assert done.status == 2
    text = done.out.decode()
    assert all(name in text for name in VERBS)
    assert text.index("daily") < text.index("care")


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_has_help_with_an_example(convlog, name, monkeypatch):
    """`--help` of a verb ends with an example and status 0."""
    monkeypatch.setenv("COLUMNS", "200")
    done = convlog(name, "--help", store=False)
    assert done.status == 0
    assert f"Example: {VERBS[name].example}" in " ".join(done.out.decode().split())


def test_an_unknown_verb_is_wrong_usage(convlog):
    """A verb that is not there is named with one that is close."""
    assert_refused(convlog("sho", store=False), 2, "'sho'", "'show'")


def test_the_version_is_printed(process):
    """`--version` works as a process, and before any store."""
    done = process("--version")
    assert done.status == 0
    assert done.out.startswith(b"convlog ")


def test_a_reader_that_had_enough_is_no_error(process, build, store_path):
    """`| head -1` ends the command quietly."""
    many = b'{"type":"message","agent":"a","body":"' + b"x" * 1000 + b'"}\n'
    assert process("append", "big", "--jsonl", "-", "-q", stdin=many * 500).status == 0
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path), "export"]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_that_cannot_be_written_is_no_success(build, store_path):
    """A full disk behind `>` ends with status 4 and one line."""
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path), "export"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (4, b"convlog: standard output: No space left on device\n")


def test_closed_standard_streams_do_no_harm(process, build, store_path):
    """Without standard streams an event is recorded all the same, and no file of the store is printed into."""
    command = f'exec "{sys.executable}" -m convlog_sqlite --store "{store_path}" append build -a u --body x <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", command], timeout=60, check=False).returncode == 0
    assert process("verify").status == 0
    assert bodies(process("tail", "build", "-n", "1")) == ["x"]


def test_bytes_that_are_no_text_are_refused(process, build):
    """Bytes in an argument or on standard input that are no UTF-8 are refused, not replaced."""
    assert_refused(process("append", "build", "-a", "u", "--body", "\udcff"), 3, "/body")
    assert_refused(process("append", "build", "-a", "u", "--body", "-", stdin=b"\xff"), 3, "/body")


def test_starting_imports_only_what_is_needed(store_path, build):
    """An append and a tail import neither rich, pydantic, sqlite_utils nor an adapter."""
    program = "import sys; from convlog_sqlite.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    heavy = {"rich", "pydantic", "sqlite_utils", "sqlite3", "apsw.ext", "importlib.metadata", "asyncio"}
    for verb in (["append", "build", "-a", "u", "--body", "x"], ["tail", "build"]):
        command = [sys.executable, "-c", program, "--store", str(store_path), *verb]
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        imported = set(done.stderr.decode().split())
        assert not imported & heavy
        assert not [name for name in imported if name.startswith("convlog_sqlite.adapters.")]


def test_processes_append_at_once(start, convlog, build):
    """Several processes append at the same time; no event is lost and none stands twice."""
    running = [start("append", "build", "-a", f"a{number}", "--body", "x") for number in range(6)]
    for one in running:
        _, err = one.communicate(timeout=60)
        assert one.returncode == 0, err
    found = convlog("tail", "build", "-n", "6").lines()
    assert sorted(event["agent"] for event in found) == [f"a{number}" for number in range(6)]
    assert [event["seq"] for event in found] == list(range(12, 18))


# On a terminal


def on_terminal(store_path, *arguments, **environment):
    """What the command shows on a terminal, and its status."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path), *arguments]
    running = subprocess.Popen(
        command, stdout=theirs, stdin=theirs, env=os.environ | {"TERM": "xterm"} | environment
    )
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:  # how a terminal says on Linux that its other end is gone
        pass
    os.close(ours)
    return shown.decode(), running.wait(timeout=60)


def test_a_terminal_gets_readable_text(convlog, build, store_path):
    """On a terminal events are shown for people, in colour unless NO_COLOR is set, and --json gives lines."""
    shown, status = on_terminal(store_path, "tail", "build", "-n", "2")
    assert status == 0
    assert "\x1b[" in shown
    assert "planner" in shown
    assert '{"v"' not in shown
    assert "\x1b[" not in on_terminal(store_path, "tail", "build", NO_COLOR="1")[0]
    assert on_terminal(store_path, "tail", "build", "--json")[0].startswith('{"v":1,')


def test_what_was_said_cannot_steer_a_terminal(convlog, store_path):
    """Control characters and marks that turn text around are shown escaped."""
    evil = "\x1b]0;owned\x07 \x9b31m \u202etxet \r over"
    event = convlog("append", "s", "-a", "u", "--body", evil).lines()[0]
    assert event["body"] == evil
    for arguments in (["tail", "s"], ["show", event["id"]], ["show", event["id"], "--full"]):
        shown = on_terminal(store_path, *arguments, NO_COLOR="1")[0].replace("\r\n", "\n")
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(shown)
        assert "\\u001b]0;owned" in shown


def test_long_content_is_cut_on_a_terminal(convlog, store_path):
    """`tail` shows the beginning of long text and says how to see the rest."""
    event = convlog("append", "s", "-a", "u", "--body", "\n".join(map(str, range(100)))).lines()[0]
    shown = convlog("--no-color", "tail", "s").out  # not a terminal: lines
    assert shown.startswith(b"{")
    readable = convlog("--color", "tail", "s", "-n", "1").out.decode()
    assert f"convlog show --full {event['id']}" in readable
    assert "\n       50" not in readable


def test_each_type_is_shown(convlog):
    """Calls, results, mutations, recipients, tasks and threads are shown for what they are."""
    call = (
        convlog("append", "s", "-a", "u", "--tool", "grep", "--args", "{}", "--task", "t9", "-q")
        .out.decode()
        .strip()
    )
    convlog("append", "s", "-a", "u", "--call-id", call, "--result", "[1]", "--status", "error")
    convlog("append", "s", "-a", "u", "--kind", "task-done", "--task", "t9", "--thread", "h7")
    convlog("append", "s", "-a", "u", "--body", "x", "--to", "v", "--performative", "inform")
    shown = convlog("--color", "tail", "s").out.decode()
    for words in ("calls grep", "grep error", "task-done", "task t9", "thread h7", "→ v", "inform"):
        assert words in shown


def test_shells_complete_sessions(process, build, store_path):
    """Completion knows the verbs, the options and the sessions of the store."""
    environment = os.environ | {"CONVLOG_STORE": str(store_path), "_CONVLOG_COMPLETE": "complete_bash"}
    for words, expected in (
        ("convlog ta", b"tail"),
        ("convlog tail bu", b"build"),
        ("convlog tail --fo", b"--follow"),
    ):
        asked = environment | {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        program = "import sys; sys.argv[0] = 'convlog'; from convlog_sqlite.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", program], env=asked, capture_output=True, timeout=60, check=False
        )
        assert done.stdout.split() == [expected]
