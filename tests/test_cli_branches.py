"""The command's verbs of branches and of time: fork, diff, replay, and --at."""

import io
import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from convlog_sqlite import ConversationLog
from convlog_sqlite.cli import main
from convlog_sqlite.cli.options import point


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

    def run(*arguments):
        with monkeypatch.context() as patch:
            out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            status = main(["--store", str(store_path), *map(str, arguments)])
            out.flush()
            err.flush()
            return Done(status, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())

    return run


@pytest.fixture
def events(store_path, clock):
    """A store with a session `build`, a message every ten seconds, seq 2 to 5, then a call; its events."""
    with ConversationLog.open(store_path, clock=clock) as log:
        session = log.session("build")
        for text in "abcd":
            clock.advance(10)
            session.message(text, agent="ann")
        session.tool_call("shell", {"command": "ls"}, agent="ann")
        return session.read()


def seqs(done):
    """The seqs that were printed."""
    assert done.status == 0, done.err
    return [line["seq"] for line in done.lines()]


class TestAt:
    def test_tail_ends_at_the_point(self, convlog, events):
        """By event, beginning of an id, seq and time."""
        for at in (events[2].id, events[2].id[:18], 3, events[2].ts, events[2].ts.replace("Z", "+00:00")):
            assert seqs(convlog("tail", "build", "--at", at)) == [1, 2, 3]
        assert seqs(convlog("tail", "build", "--at", 3, "-n", 1)) == [3]
        assert seqs(convlog("tail", "build", "--at", 3, "--after", 1)) == [2, 3]
        assert seqs(convlog("tail", "build", "--at", 3, "--type", "message", "--before", 3)) == [2]

    def test_a_time_without_a_zone_is_one_of_this_machine(self, convlog, events, monkeypatch):
        """And the library is given an instant."""
        import time

        monkeypatch.setenv("TZ", "America/Los_Angeles")
        time.tzset()
        try:
            assert seqs(convlog("tail", "build", "--at", "2026-01-01T19:04:25.9")) == [1, 2, 3]
            assert seqs(convlog("tail", "build", "--at", "2026-01-02")) == [1, 2, 3, 4, 5, 6]
        finally:
            monkeypatch.delenv("TZ")
            time.tzset()

    @pytest.mark.parametrize(
        ("arguments", "status"),
        [
            (("tail", "build", "--at", "7"), 3),
            (("tail", "build", "--at", "0"), 3),
            (("tail", "build", "--at", "-1"), 3),
            (("tail", "build", "--at", "9" * 40), 3),
            (("tail", "build", "--at", "nonsense"), 3),
            (("tail", "build", "--at", ""), 3),
            (("tail", "build", "--at", "1999-01-01"), 3),
            (("tail", "build", "--at", "2026-99-01"), 2),
            (("tail", "build", "--at", "3", "--follow"), 2),
            (("export", "build", "--at", "3", "--out", "x"), 2),
            (("export", "build", "--at", "3", "--mirror"), 2),
            (("export", "build", "--at", "3", "--follow"), 2),
            (("export", "--at", "3"), 2),
            (("export", "build", "--at", "77"), 3),
            (("show", "build", "5", "--at", "3"), 3),
            (("show", "build", "--at", "77"), 3),
            (("show", "build"), 3),
        ],
    )
    def test_what_is_no_point_is_told(self, convlog, events, arguments, status):
        """Refused or wrong usage, and nothing is printed."""
        done = convlog(*arguments)
        assert (done.status, done.out) == (status, ""), done.err
        assert done.err

    def test_show_gives_the_event_that_was_the_last(self, convlog, events):
        """Or one that was there already."""
        assert seqs(convlog("show", "build", "--at", events[3].ts)) == [4]
        assert seqs(convlog("show", "build", 2, "--at", 3)) == [2]
        assert seqs(convlog("show", events[1].id, "--at", 3)) == [2]

    def test_export_gives_the_lines_that_were_there(self, convlog, events):
        """Of every session that there was then, byte for byte the beginning of the export of today."""
        whole = convlog("export", "build").out
        assert convlog("export", "build", "--at", 3).out == "".join(whole.splitlines(keepends=True)[:3])
        convlog("append", "later", "--agent", "ann", "--body", "x")
        lines = convlog("export", "--at", events[2].ts).lines()
        assert [line["seq"] for line in lines if line["session"] == "build"] == [1, 2, 3]
        assert "later" not in {line["session"] for line in lines}

    @pytest.mark.parametrize(
        ("text", "found"),
        [("12", 12), ("01977123", "01977123"), ("0197A3C4", "0197a3c4"), ("0", "0")],
    )
    def test_digits_alone_are_a_seq_unless_they_begin_with_0(self, text, found):
        """Ids begin with 0 until the year 2527."""
        assert point(text) == found


class TestFork:
    def test_a_fork_prints_its_opening(self, convlog, events):
        """And its reads cross into what it shares, while its export is its own."""
        (opening,) = convlog("fork", "build", "b2", "--at", 3, "--agent", "bo").lines()
        assert (opening["session"], opening["seq"], opening["kind"]) == ("b2", 4, "session-opened")
        assert seqs(convlog("tail", "b2")) == [1, 2, 3, 4]
        assert seqs(convlog("export", "b2")) == [4]
        (listed,) = [line for line in convlog("sessions").lines() if line["id"] == "b2"]
        assert (listed["parent"], listed["base"], listed["events"]) == ("build", 3, 1)
        assert "b3" in convlog("--color", "fork", "build", "b3", "--as", "bo").out

    @pytest.mark.parametrize(
        ("arguments", "status"),
        [
            (("build", "build", "--agent", "bo"), 3),
            (("build", "Build", "--agent", "bo"), 3),
            (("build", "a/b", "--agent", "bo"), 3),
            (("build", "_store", "--agent", "bo"), 3),
            (("_store", "b2", "--agent", "bo"), 3),
            (("nowhere", "b2", "--agent", "bo"), 3),
            (("build", "b2", "--agent", "bo", "--at", "99"), 3),
            (("build", "b2"), 2),
            (("build",), 2),
        ],
    )
    def test_what_cannot_be_forked_is_refused(self, convlog, events, store_path, arguments, status):
        """Nothing is written."""
        done = convlog("fork", *arguments)
        assert (done.status, done.out) == (status, "")
        with ConversationLog.open(store_path, read_only=True) as log:
            assert {one.id for one in log.sessions()} == {"_store", "build"}


class TestDiff:
    def test_it_says_where_they_part_and_what_came_since(self, convlog, events):
        """A line for the parting, then for each event, call and piece of state that differs."""
        convlog("fork", "build", "b2", "--agent", "bo")
        convlog("append", "build", "--agent", "ann", "--call-id", events[5].id, "--result-text", "x")
        convlog("append", "b2", "--agent", "bo", "--kind", "state-set", "--state-key", "k", "--value", "1")
        parting, *rest = convlog("diff", "build", "b2").lines()
        assert parting == {"a": "build", "b": "b2", "seq": 6, "event": events[5].id, "heads": [7, 8]}
        since = [(one["in"], one["line"]["seq"]) for one in rest if "line" in one]
        assert since == [("build", 7), ("b2", 7), ("b2", 8)]
        assert [one for one in rest if "open_call" in one] == [{"in": "b2", "open_call": events[5].id}]
        (state,) = [one for one in rest if "state_key" in one]
        assert (state["state_key"], state["a"], len(state["b"])) == ("k", [], 1)

    def test_a_person_reads_it(self, convlog, events):
        """In colour, for each side."""
        convlog("fork", "build", "b2", "--at", 5, "--agent", "bo")
        shown = convlog("--color", "diff", "build", "b2").out
        assert "They part behind event 5" in shown
        assert "Only in build:" in shown
        assert "Waits for its result only in build" in shown
        assert "share nothing" in convlog("--color", "diff", "build", "_store").out
        assert "nothing came since" in convlog("--color", "diff", "build", "build").out

    def test_an_unknown_session_is_named(self, convlog, events):
        """With those that are close."""
        done = convlog("diff", "build", "buidl")
        assert (done.status, done.out) == (3, "")
        assert "did you mean build" in done.err


class TestReplay:
    def test_each_line_has_its_mark(self, convlog, events):
        """In front of the canonical line, which stays as it is."""
        done = convlog("replay", "build")
        assert [line["mark"] for line in done.lines()] == ["fact"] * 5 + ["intent"]
        exported = convlog("export", "build").out.splitlines()
        assert [line.partition(",")[2] for line in done.out.splitlines()] == [line[1:] for line in exported]

    def test_its_ends_are_points(self, convlog, events):
        """Both belong to it."""
        assert seqs(convlog("replay", "build", "--from", 2, "--to", events[3].id)) == [2, 3, 4]
        assert seqs(convlog("replay", "build", "--from", events[4].ts)) == [5, 6]
        assert convlog("replay", "build", "--from", 4, "--to", 2).status == 3

    def test_a_person_reads_it(self, convlog, events):
        """The mark stands in front of each heading."""
        shown = convlog("--color", "replay", "build", "--from", 5).out
        assert "fact " in shown
        assert "intent" in shown

    @pytest.mark.parametrize("speed", ["fast", "0", "-1", "0x", "x", "1e9", "nan", ""])
    def test_wrong_speeds_are_usage(self, convlog, events, speed):
        """max, real, or a number."""
        assert convlog("replay", "build", "--speed", speed).status == 2

    def test_lines_come_when_they_are_due(self, events, store_path):
        """At a hundred times the speed, forty seconds take 0.4; each line is written as it is due."""
        import time

        command = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path)]
        command += ["replay", "build", "--speed", "100x"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
            running.stdout.readline()
            begun = time.monotonic()
            assert len(running.stdout.read().splitlines()) == 5
        assert running.returncode == 0
        assert time.monotonic() - begun > 0.3
