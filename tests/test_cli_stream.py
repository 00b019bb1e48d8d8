"""`convlog append SESSION --stream`: one draft a line in, one acknowledgement a line out, as each lands."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from convlog_sqlite import ConversationLog, Draft, StoreFull, StoreReplaced, database
from convlog_sqlite.cli import main
from convlog_sqlite.cli.stream import LONGEST

SOON = 60  # seconds: a limit for what must come, not a pause


def line(body, **keys):
    """A draft as a line."""
    return json.dumps({"type": "message", "body": body, **keys}).encode() + b"\n"


def answers(out):
    """The acknowledgements in what was printed."""
    return [json.loads(found) for found in out.splitlines()]


@pytest.fixture
def start(store_path):
    """Start `append s --stream --agent me` in a process of its own; it is killed after the test if it still runs."""
    started = []

    def run(*arguments, **more):
        command = [
            sys.executable,
            "-m",
            "convlog_sqlite",
            "--store",
            str(store_path),
            "append",
            "s",
            "--stream",
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen([*command, "--agent", "me", *arguments], **pipes | more))
        return started[-1]

    yield run
    for running in started:
        running.kill()
        running.wait()
        for pipe in (running.stdin, running.stdout, running.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def stream(store_path, monkeypatch):
    """Run it in this process on what stands in a pipe already: (status, acknowledgements, what stderr says)."""

    def run(data, capsys):
        taken, given = os.pipe()
        printed, out = os.pipe()
        os.write(given, data)
        os.close(given)
        with monkeypatch.context() as patch, os.fdopen(taken) as stdin, os.fdopen(out, "w") as stdout:
            patch.setattr(sys, "stdin", stdin)
            patch.setattr(sys, "stdout", stdout)
            status = main(["--store", str(store_path), "append", "s", "--stream", "--agent", "me"])
        with os.fdopen(printed, "rb") as found:
            return status, answers(found.read()), capsys.readouterr().err

    return run


def ask(process, data):
    """Write one line and wait for its answer."""
    process.stdin.write(data)
    process.stdin.flush()
    return json.loads(process.stdout.readline())


class TestAnswers:
    """What comes back for what goes in."""

    def test_one_line_is_answered_at_once(self, log, start):
        """Whoever writes one line and waits gets its id and seq, and by then every process sees the event."""
        process = start()
        for number in range(1, 6):
            answer = ask(process, line(f"{number}"))
            event = log.event(answer["id"])
            assert answer == {"line": number, "id": event.id, "seq": event.seq}
            assert (event.body, event.agent) == (f"{number}", "me")
        out, err = process.communicate(timeout=SOON)
        assert (out, err, process.returncode) == (b"", b"", 0)

    def test_ten_thousand_lines(self, log, start):
        """All land in order and each is acknowledged in order, although nobody reads before all were written."""
        process = start()
        process.stdin.write(b"".join(line(f"{number}") for number in range(10_000)))
        found = answers(process.communicate(timeout=SOON)[0])
        assert process.returncode == 0
        assert [answer["line"] for answer in found] == list(range(1, 10_001))
        events = list(log.session("s").follow(1, timeout=0))
        assert [(event.id, event.seq) for event in events] == [
            (answer["id"], answer["seq"]) for answer in found
        ]
        assert [event.body for event in events] == [f"{number}" for number in range(10_000)]
        assert [finding for finding in log.verify() if finding.severity == "fault"] == []

    def test_what_waits_together_is_committed_together(self, stream, monkeypatch, capsys):
        """Lines that stand in the pipe already are committed a hundred at a time."""
        sizes = []
        together = ConversationLog.append_together
        monkeypatch.setattr(
            ConversationLog,
            "append_together",
            lambda log, appends: (sizes.append(len(appends)), together(log, appends))[1],
        )
        status, found, _ = stream(b"".join(line(f"{number}") for number in range(300)), capsys)
        assert (status, len(found), sum(sizes)) == (0, 300, 300)
        assert max(sizes) == 100, "no more: other writers wait for them"

    def test_a_bad_line_harms_no_other(self, store_path, start):
        """Each refusal names its class and what it tells; the others land; blank lines count and are passed over."""
        good = line("good", agent="other")
        bad = (
            b"{\n"
            b'{"type":"tool_call","tool":"t","args":{"x":1e999}}\n'
            b"\n"
            b"  \t \r\n"
            b"[]\n"
            b'{"type":"message","body":"b","extra":1}\n'
            b'{"type":"tool_result","call_id":"01920000-0000-7000-8000-000000000000"}\n'
            b"\xff\n"
        )
        out, err = start().communicate(good + bad + good, timeout=SOON)
        found = answers(out)
        assert err.decode() == f"convlog: made a new store: {store_path}\n"
        assert [answer["line"] for answer in found] == [1, 2, 3, 6, 7, 8, 9, 10]
        assert [answer.get("error") for answer in found] == [
            None,
            *["InvalidEvent"] * 4,
            "UnknownReference",
            "InvalidEvent",
            None,
        ]
        assert found[2] == {
            "line": 3,
            "error": "InvalidEvent",
            "pointer": "/args/x",
            "rule": "this number would not come back the same (64-bit integers and floats only)",
        }
        assert found[5] == {
            "line": 8,
            "error": "UnknownReference",
            "field": "call_id",
            "value": "01920000-0000-7000-8000-000000000000",
        }
        with ConversationLog.open(store_path) as log:
            assert [event.agent for event in log.session("s").tail()] == ["other", "other", "other"]

    def test_the_last_line_needs_no_newline(self, start):
        """What stands behind the last newline is a line too, and status 3 says that one was refused."""
        process = start()
        out, _ = process.communicate(line("a") + line("b")[:-1], timeout=SOON)
        assert [answer["seq"] for answer in answers(out)] == [2, 3]
        assert process.returncode == 0
        process = start()
        out, _ = process.communicate(line("a") + line("b")[:-4], timeout=SOON)
        assert [answer.get("error") for answer in answers(out)] == [None, "InvalidEvent"]
        assert process.returncode == 3

    def test_a_line_that_is_too_long(self, start):
        """It is refused with its size, without being held in memory; the lines around it land."""
        process = start()
        assert "seq" in ask(process, line("before"))
        long, block = LONGEST * 4, b"x" * (1 << 20)
        for _ in range(long // len(block)):
            process.stdin.write(block)
        assert ask(process, b"\n") == {"line": 2, "error": "EventTooLarge", "size": long, "limit": LONGEST}
        assert "seq" in ask(process, line("after"))
        status = Path(f"/proc/{process.pid}/status")
        if status.exists():
            peak = next(found for found in status.read_text().splitlines() if found.startswith("VmHWM"))
            assert int(peak.split()[1]) << 10 < long * 3 // 4
        process.communicate(timeout=SOON)
        assert process.returncode == 3

    def test_a_reader_that_comes_late(self, log, start):
        """Acknowledgements that fill the pipe wait for their reader, and none is lost."""
        process = start()
        process.stdin.write(b"".join(line(f"{number}") for number in range(3000)))
        process.stdin.close()
        until = time.monotonic() + SOON
        while log.session("s").head < 3001 and time.monotonic() < until:
            time.sleep(0.01)
        assert process.poll() is None, "what it has to say does not fit in the pipe"
        assert [answer["line"] for answer in answers(process.stdout.read())] == list(range(1, 3001))
        assert process.wait(SOON) == 0


class TestTheStore:
    """What the store cannot do."""

    def test_a_busy_store(self, log, stream, monkeypatch, capsys):
        """Nothing was written, the line says so and that it may be tried again; status 4."""
        monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
        log.session("s").message("first", agent="a")
        held, release = threading.Event(), threading.Event()

        def hold():
            with ConversationLog.open(log.path) as other, other._store.database.write():
                held.set()
                release.wait(SOON)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(SOON)
        status, found, _ = stream(line("a") + b"{}\n", capsys)
        release.set()
        holder.join()
        assert status == 4
        assert [answer["error"] for answer in found] == ["StoreBusy", "InvalidEvent"]
        assert (found[0]["retry"], found[0]["holder"]) == (True, os.getpid())
        assert log.session("s").head == 2

    @pytest.mark.parametrize(("error", "goes_on"), [(StoreFull, True), (StoreReplaced, False)])
    def test_a_store_that_fails(self, store_path, stream, monkeypatch, capsys, error, goes_on):
        """What may pass is tried again with the next line; with what stays, it is acknowledged and ends."""
        calls = []

        def fail(_log, appends):
            calls.append(len(appends))
            return [error(store_path)] * len(appends)

        monkeypatch.setattr(ConversationLog, "append_together", fail)
        monkeypatch.setattr("convlog_sqlite.cli.stream._MOST_LINES", 1)
        monkeypatch.setattr("convlog_sqlite.cli.stream._CHUNK", len(line("a")))
        status, found, err = stream(line("a") * 2, capsys)
        assert status == 4
        assert [answer["error"] for answer in found] == [error.__name__] * (2 if goes_on else 1)
        assert [answer.get("retry") for answer in found] == ([True, True] if goes_on else [None])
        assert (error.rule in err) is not goes_on

    def test_no_store(self, store_path, start):
        """What is at its place and is no store is status 4 before anything is read."""
        store_path.mkdir()
        (store_path / "log.db").write_bytes(b"something else" * 100)
        process = start()
        out, err = process.communicate(line("a"), timeout=SOON)
        assert (process.returncode, out) == (4, b"")
        assert err.count(b"\n") == 1


class TestEnds:
    """However it ends, what was acknowledged is in the log."""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signals(self, log, start, number):
        """A signal ends it with status 130 and nothing on stderr, after the acknowledgements of what was written."""
        process = start()
        first = ask(process, line("a"))
        process.send_signal(number)
        assert process.wait(SOON) == 130, "while its input is still open"
        out, err = process.communicate(timeout=SOON)
        assert (out, err, process.returncode) == (b"", b"", 130)
        assert [event.id for event in log.session("s").tail()][1:] == [first["id"]]

    def test_a_signal_while_nobody_reads(self, start):
        """A reader that does not read keeps nobody from ending it."""
        process = start()
        process.stdin.write(line("a") * 3000)
        process.stdin.close()
        process.stdout.read(1)
        begun = time.monotonic()
        process.terminate()
        assert process.wait(SOON) == 130
        assert time.monotonic() - begun < SOON / 2

    def test_a_reader_that_left(self, log, start):
        """An acknowledgement that cannot be written ends it, without a word."""
        process = start()
        ask(process, line("a"))
        process.stdout.close()
        process.stdin.write(line("b"))
        process.stdin.flush()
        assert process.wait(SOON) == 0
        assert process.stderr.read() == b""
        assert log.session("s").head == 3

    def test_killed_and_tried_again(self, log, start):
        """After kill -9 whatever was acknowledged is there; all lines again, with their keys, make nothing twice."""
        lines = [line(f"{number}", idempotency_key=f"{number}") for number in range(2000)]
        acknowledged = []
        for kill_at in (1, 500, 1100):
            process = start()
            writer = threading.Thread(target=_feed, args=(process.stdin, b"".join(lines)))
            writer.start()
            found = [json.loads(process.stdout.readline()) for _ in range(kill_at)]
            process.kill()
            found += [
                json.loads(left)
                for left in process.stdout.read().splitlines(keepends=True)
                if left.endswith(b"\n")
            ]
            writer.join(SOON)
            acknowledged += [(answer["line"], answer["id"]) for answer in found]
        process = start()
        writer = threading.Thread(target=_feed, args=(process.stdin, b"".join(lines)))
        writer.start()
        final = answers(process.stdout.read())
        writer.join(SOON)
        assert process.wait(SOON) == 0
        ids = {answer["line"]: answer["id"] for answer in final}
        assert len(ids) == len(lines)
        assert all(ids[number] == event_id for number, event_id in acknowledged)
        bodies = [event.body for event in log.session("s").follow(1, timeout=0)]
        assert bodies == [f"{number}" for number in range(2000)]


def _feed(pipe, data):
    """Write all, unless whoever reads dies."""
    with contextlib.suppress(BrokenPipeError):
        pipe.write(data)
        pipe.close()


@pytest.mark.parametrize(
    "arguments", [("--body", "x"), ("--jsonl", "-"), ("--quiet",), ("--to", "x")], ids=lambda found: found[0]
)
def test_what_cannot_stand_beside_it(start, store_path, arguments):
    """Lines are whole drafts: of the other keys only --agent may be given. Usage, and no store is made."""
    process = start(*arguments)
    _, err = process.communicate(timeout=SOON)
    assert process.returncode == 2
    assert b"--stream" in err
    assert not store_path.exists()


def test_the_same_rules_as_the_library(log, start):
    """A line is refused just where the library refuses the draft."""
    too_large = line("x" * (17 << 20))
    out, _ = start().communicate(too_large, timeout=SOON)
    (answer,) = answers(out)
    with pytest.raises(Exception, match="at most") as refused:
        log.session("s").append(Draft(type="message", agent="me", body="x" * (17 << 20)))
    assert answer == {
        "line": 1,
        "error": "EventTooLarge",
        "size": refused.value.size,
        "limit": refused.value.limit,
    }
