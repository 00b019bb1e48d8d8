"""`tail` within a budget and in brief: what is printed fits, is JSON, and says what is not there."""

import json
import re

import pytest

from convlog_sqlite import ConversationLog
from convlog_sqlite.cli import main


@pytest.fixture
def store(store_path, monkeypatch):
    """A session of a call, nine long messages of a task with marks of a terminal in them, and its result."""
    monkeypatch.setenv("CONVLOG_STORE", str(store_path))
    with ConversationLog.init(store_path, mirror=False) as log:
        session = log.session("s")
        call = session.tool_call("shell", {"cmd": "make"}, agent="bob")
        for number in range(9):
            session.message(f"{number}\x1b[2J\0é " * 300, agent="lead", task_id="t", to=["bob"])
        session.tool_result(call, {"ok": True}, agent="bob")
    return store_path


@pytest.fixture
def run(store, capfdbinary):
    """(status, text on stdout, text on stderr) of the command."""

    def call(*arguments):
        status = main(arguments)
        out, err = capfdbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


def lines_of(out):
    """Each line as JSON."""
    return [json.loads(line) for line in out.encode().splitlines()]


@pytest.mark.parametrize("more", [[], ["--brief"], ["--at", "12"], ["--view", "everything"], ["--as", "bob", "--view", "everything"], ["--task", "t"]])  # fmt: skip
def test_what_is_printed_fits(run, more):
    """In every way to ask: at most so many characters, what is left out in front, the newest event last."""
    status, out, _ = run("tail", "s", "--max-chars", "2500", *more)
    assert status == 0
    assert 1000 < len(out) <= 2500
    first, *events = lines_of(out)
    of_task = "--task" in more
    assert first["left_out"]["events"] + len(events) == (9 if of_task else 12)
    assert first["left_out"]["cut"] > 0
    assert events[-1]["seq"] == (11 if of_task else 12)
    assert of_task or events[0]["tool"] == events[-1]["tool"] == "shell"


def test_what_fits_says_nothing_more(run):
    """Where nothing is left out the lines are those without a budget."""
    assert run("tail", "s", "--max-chars", "1000000") == run("tail", "s")
    assert run("tail", "s", "-n", "1", "--max-chars", "9999") == run("tail", "s", "-n", "1", "--pairs")


def test_a_budget_too_small_is_refused(run):
    """Status 3, nothing on stdout, and the smallest that works is named; that one works."""
    status, out, err = run("tail", "s", "--max-chars", "10")
    assert (status, out) == (3, "")
    smallest = err.split()[-1]
    assert run("tail", "s", "--max-chars", smallest)[0] == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--max-chars", "0"], "1 or more"),
        (["--max-chars", "-5"], "--max-chars"),
        (["--max-chars", "x"], "--max-chars"),
        (["--max-chars", "900", "-f"], "--follow"),
        (["--max-chars", "900", "--after", "3"], "-n"),
        (["--max-chars", "900", "--since-last", "--as", "bob", "--view", "everything"], "--since-last"),
    ],
)
def test_what_does_not_go_together_is_refused(run, more, said):
    """Status 2, and the option is named."""
    status, out, err = run("tail", "s", *more)
    assert (status, out) == (2, "")
    assert said in err


def test_after_and_n_narrow_what_is_weighed(run):
    """What is left out is of the events that were asked for; the call comes with its result."""
    _, out, _ = run("tail", "s", "--after", "6", "-n", "5", "--max-chars", "2500")
    first, *events = lines_of(out)
    assert first["left_out"]["from"] >= 8
    assert events[0]["seq"] == 2


def test_brief_lines_have_the_few_keys(run):
    """One short JSON line an event, also through a view and for what is new."""
    for more in ([], ["--view", "everything"], ["--since-last", "--as", "bob", "--view", "everything"]):
        _, out, _ = run("tail", "s", "--brief", *more)
        found = lines_of(out)
        assert len(found) == 12
        assert found[1] == {
            "seq": 2,
            "agent": "bob",
            "type": "tool_call",
            "tool": "shell",
            "args": {"cmd": "make"},
        }
        assert list(found[2]) == ["seq", "agent", "type", "to", "task_id", "body"]
    _, out, _ = run("tail", "s", "--brief", "--view", "auditor", "-n", "1")
    assert lines_of(out)[0]["withheld"] is True


def test_a_terminal_gets_a_line_an_event(run, monkeypatch):
    """For people: one line each, no wider than the screen, nothing that steers it, and what is left out in front."""
    monkeypatch.setenv("COLUMNS", "70")
    _, out, _ = run("--color", "tail", "s", "--brief", "--max-chars", "2500")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    first, *rest = plain.removesuffix("\n").split("\n")
    assert all(len(line) <= 70 for line in rest)
    assert "\x1b" not in plain
    assert "left out" in first
    assert "cut" in first
    assert "calls shell" in rest[0]
    assert '{"ok": true}' in rest[-1]
    assert "\0" not in out


def test_an_erased_event_is_brief_too(run, store):
    """What was erased says so in its brief line, for programs and for people."""
    with ConversationLog.open(store) as log:
        event = log.session("s").event(5)
        log.redact(events=[event.id], reason="user_delete", by="ops")
    _, out, _ = run("tail", "s", "--brief")
    gone = next(line for line in lines_of(out) if line["seq"] == 5)
    assert gone["redacted"]["reason"] == "user_delete"
    assert "body" not in gone
    assert "redacted by" in run("--color", "tail", "s", "--brief")[1]
