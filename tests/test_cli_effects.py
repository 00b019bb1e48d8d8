"""The verbs about effects, and the steps that `append` takes."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from convlog_sqlite import ConversationLog
from convlog_sqlite.cli import main

CHECKOUT = Path(__file__).resolve().parent.parent


class Done(NamedTuple):
    """How a run ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def lines(self):
        """The JSON lines on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def convlog(store_path, monkeypatch):
    """Run the command in this process, on the store of the test."""
    ConversationLog.init(store_path).close()

    def run(*arguments, stdin=""):
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            status = main(["--store", str(store_path), *arguments])
        for stream in (out, err):
            stream.flush()
        return Done(status, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())

    return run


@pytest.fixture
def proposed(convlog):
    """The id of an effect that was proposed from the shell."""
    return propose(convlog)


def propose(convlog, key="k"):
    """Propose an effect."""
    command = ("append", "s", "-a", "w1", "--tool", "charge", "--args", '{"amount": 5}')
    done = convlog(*command, "--effect", "proposed", "--idempotency-key", key, "--quiet")
    assert done.status == 0, done.err
    return done.out.strip()


def states(store_path):
    """State, outcome and id of each effect."""
    with ConversationLog.open(store_path) as log:
        assert list(log.verify()) == []
        return [(effect.state, effect.outcome, effect.id) for effect in log.session("s").effects()]


def test_an_effect_from_the_shell_to_its_end(convlog, store_path, proposed):
    """Proposed once for its key, attempted with a lease, held against others, committed by the call's result."""
    assert propose(convlog) == proposed
    (claim,) = convlog("append", "s", "-a", "w1", "--effect", f"attempted={proposed}", "--lease", "60").lines
    assert (claim["kind"], claim["effect"]) == ("effect-attempted", {"id": proposed, "state": "attempted"})
    refused = convlog("append", "s", "-a", "w2", "--effect", f"attempted={proposed}")
    assert refused.status == 3
    assert "held by w1" in refused.err
    assert convlog("append", "s", "-a", "w1", "--call-id", proposed, "--result", "7").lines[0]["effect"] == {
        "id": proposed,
        "state": "committed",
    }
    assert states(store_path) == [("committed", None, proposed)]


@pytest.mark.parametrize("outcome", ["undone", "not_happened"])
def test_append_says_what_became_of_an_attempt(convlog, store_path, proposed, outcome):
    """The steps behind an attempt are mutations of the kind that belongs to them."""
    convlog("append", "s", "-a", "w1", "--effect", f"attempted={proposed}")
    assert convlog("append", "s", "-a", "w1", "--effect", f"{outcome}={proposed}").status == 0
    assert states(store_path) == [("compensated", outcome, proposed)]


@pytest.mark.parametrize(
    "step", ["committed={id}", "undone={id}", "lost={id}", "attempted", "withdrawn", "proposed={id}"]
)
def test_a_step_that_is_wrong_is_refused(convlog, store_path, proposed, step):
    """Status 3, and nothing is written."""
    assert convlog("append", "s", "-a", "w1", "--effect", step.format(id=proposed)).status == 3
    assert states(store_path) == [("proposed", None, proposed)]


def test_the_rules_hold_for_every_way_in(convlog, store_path, proposed):
    """--jsonl is refused whole; --stream says at each line what stood in its way, with its data."""
    effect = {"id": proposed, "state": "attempted"}
    line = json.dumps(
        {"type": "mutation", "agent": "w1", "kind": "effect-attempted", "effect": effect, "lease": 60}
    )
    other = line.replace('"w1"', '"w2"')
    assert convlog("append", "s", "--jsonl", "-", stdin=f"{line}\n{other}\n").status == 3
    assert states(store_path) == [("proposed", None, proposed)]
    done = subprocess.run(  # it reads and writes descriptors
        [sys.executable, "-m", "convlog_sqlite", "--store", store_path, "append", "s", "--stream"],
        input=f"{line}\n{other}\n{line}\n",
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
    )
    assert done.returncode == 3
    taken, held, doubt = map(json.loads, done.stdout.splitlines())
    assert (held["error"], held["worker"], held["fence"]) == ("EffectClaimed", "w1", taken["seq"])
    assert (doubt["error"], doubt["attempted"]) == ("EffectInDoubt", taken["id"])


def test_effects_are_listed(convlog, proposed):
    """All, of one state, or only what is in doubt: held by nobody any more."""
    held = propose(convlog, "held")
    doubtful = propose(convlog, "doubtful")
    convlog("append", "s", "-a", "w1", "--effect", f"attempted={held}", "--lease", "600")
    convlog("append", "s", "-a", "w1", "--effect", f"attempted={doubtful}")
    assert [line["id"] for line in convlog("effects", "s").lines] == [proposed, held, doubtful]
    assert [line["id"] for line in convlog("effects", "s", "--state", "attempted").lines] == [held, doubtful]
    assert [line["id"] for line in convlog("effects", "s", "--in-doubt").lines] == [doubtful]
    shown = convlog("--color", "effects", "s").out
    assert all(one in shown for one in ("charge", "w1", proposed, held, doubtful))
    assert convlog("effects", "s", "--state", "lost").status == 3
    assert convlog("effects", "s", "--state", "proposed", "--in-doubt").status == 2
    assert convlog("effects", "nowhere").status == 3


def test_recover_lists_and_settles(convlog, store_path, proposed):
    """What is in doubt is shown apart, and settled by what somebody found out, by the beginning of its id."""
    doubtful = propose(convlog, "doubtful")
    convlog("append", "s", "-a", "w1", "--effect", f"attempted={doubtful}", "--lease", "600")
    (found,) = convlog("recover", "s", "--as", "w2").lines
    assert [len(found[kind]) for kind in ("never_tried", "in_doubt", "held", "done")] == [1, 0, 1, 0]
    (found,) = convlog("recover", "s", "--as", "w1").lines
    assert [effect["id"] for effect in found["in_doubt"]] == [doubtful]
    assert "in doubt: 1" in convlog("--no-color", "--color", "recover", "s", "--as", "w1").out.replace(
        "\x1b", ""
    )
    (found,) = convlog("recover", "s", "--as", "w1", "--settle", f"{doubtful}=not-happened").lines
    assert (found["in_doubt"], [effect["outcome"] for effect in found["done"]]) == ([], ["not_happened"])
    assert convlog("recover", "s", "--as", "w1", "--settle", f"{proposed}=withdrawn").status == 0
    assert [outcome for _, outcome, _ in states(store_path)] == ["withdrawn", "not_happened"]
    assert propose(convlog, "doubtful") != doubtful


@pytest.mark.parametrize(
    ("said", "status"), [("x", 2), ("{id}", 2), ("{id}=lost", 2), ("{id}=undone", 3), ("00000000=undone", 3)]
)
def test_what_cannot_be_settled_is_refused(convlog, proposed, said, status):
    """Usage where it says no outcome, refused where the effect cannot go there."""
    done = convlog("recover", "s", "--as", "w1", "--settle", said.format(id=proposed))
    assert done.status == status
    assert done.out == ""
