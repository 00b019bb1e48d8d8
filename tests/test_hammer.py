"""tools/hammer: its judges see what is wrong, and its quickest part runs."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from convlog_sqlite import ConversationLog

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.fixture
def hammering(monkeypatch):
    """The modules of the tool."""
    monkeypatch.syspath_prepend(str(TOOLS))
    from hammering import command, effects, findings, judging, steps

    return SimpleNamespace(command=command, effects=effects, findings=findings, judging=judging, steps=steps)


@pytest.fixture
def said(log, hammering):
    """What an appender was told of thirty steps."""
    return {
        event.correlation_id: hammering.judging.Acknowledged(event.session, event.seq, event.id)
        for number in range(30)
        for events in hammering.steps.take(log, 1, "a", number, 1000)
        for event in events
    }


def faults(hammering, log, said):
    """What the judges find."""
    found = hammering.findings.Findings("test")
    hammering.judging.judge_events(log, said, found)
    hammering.judging.judge_store(log, found)
    return found.faults


def test_nothing_is_wrong(hammering, log, said):
    """A step taken twice is the same events, and of a whole store nothing is said."""
    for number in range(30):
        for events in hammering.steps.take(log, 1, "a", number, 1000):
            assert all(said[event.correlation_id].id == event.id for event in events)
    assert faults(hammering, log, said) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda said: said.popitem(), "never acknowledged"),
        (lambda said: said.update({"a/99/0": next(iter(said.values()))}), "1 acknowledged events are lost"),
        (lambda said: said.update({"a/0/0": said["a/1/0"]}), "a/0/0 is "),
    ],
    ids=["too many", "lost", "moved"],
)
def test_events_that_are_wrong(hammering, log, said, change, fault):
    """An event too many, too few or elsewhere is a fault."""
    change(said)
    assert [fault in found for found in faults(hammering, log, said)] == [True]


def test_a_mirror_that_is_wrong(hammering, log, said):
    """A line that is not in the log is a fault, and so is one that is missing."""
    path = log.mirror.path("s0")
    whole = path.read_bytes()
    for doctored in (whole.replace(b'"seq":2,', b'"seq":3,'), whole[:-2], whole + b"{}\n"):
        path.write_bytes(doctored)
        assert any("mirror" in found for found in faults(hammering, log, said))
    path.write_bytes(whole)
    assert faults(hammering, log, said) == []


def test_a_store_that_is_wrong(hammering, store_path, log, said):
    """What verify finds is a fault, and so is a gap."""
    log.close()
    connection = apsw.Connection(str(store_path / "log.db"))
    triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    for (name,) in connection.execute(triggers).fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    last = max(place.seq for place in said.values() if place.session == "s0")
    for table in ("event", "envelope"):
        where = "session = (SELECT session FROM envelope WHERE id = ?) AND seq = ?"
        middle = next(place for place in said.values() if place.session == "s0" and place.seq < last)
        identity = bytes.fromhex(middle.id.replace("-", ""))
        connection.execute(f"DELETE FROM {table} WHERE {where}", (identity, middle.seq))
    connection.close()
    with ConversationLog.open(store_path) as opened:
        found = faults(hammering, opened, said)
    assert any("verify" in one for one in found)
    assert any("gap" in one for one in found)


def test_it_runs():
    """The quickest part prints its seed and a table, and ends with status 0."""
    command = [sys.executable, str(TOOLS / "hammer"), "many", "--short", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "seed 3"
    assert any("most descriptors" in line for line in rest)
    assert "none" in rest[-1]


def test_effects_under_kill_happen_once():
    """Eight workers killed at random: outside each effect is counted once, or the log lists it as in doubt."""
    command = [sys.executable, str(TOOLS / "hammer"), "effects", "--short"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    print(done.stdout, done.stderr)  # the seed
    assert done.returncode == 0
    assert "24 committed, each charged once" in done.stdout


def test_a_second_charge_and_a_lost_one_are_faults(hammering, log, tmp_path):
    """What was charged twice, or was charged and is not in the log, is seen."""
    ledger = tmp_path / "ledger"
    session = log.session(hammering.effects.SESSION)
    for key in ("a", "b"):
        session.once("w", "charge", {"key": key}, idempotency_key=key, run=lambda key: key)
    for charges, fault in (
        ("a\nb\n", None),
        ("a\nb\na\n", "twice"),
        ("a\nb\nc\n", "['c']"),
        ("a\n", "0 times"),
    ):
        ledger.write_text(charges)
        found = hammering.findings.Findings("test")
        assert hammering.effects._judge(log, ledger, found) == 0
        assert bool(found.faults) == (fault is not None)
        assert fault is None or any(fault in one for one in found.faults)


def test_a_fault_is_exit_status_1(hammering, tmp_path, monkeypatch, capsys):
    """What a part finds wrong is printed below the table, and what it left is kept."""

    def wrong(how, found):
        (how.directory / "left").touch()
        found.expect(ok=False, otherwise="it is wrong")

    monkeypatch.setitem(hammering.command.PARTS, "many", wrong)
    assert hammering.command.main(["many", "--directory", str(tmp_path)]) == 1
    assert "FAULT many: it is wrong" in capsys.readouterr().out
    assert [path.name for path in tmp_path.rglob("left")] == ["left"]
