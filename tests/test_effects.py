"""Effects: every move is judged inside the append, a tool is called at most once for each key, nothing is guessed."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from convlog_sqlite import (
    ConversationLog,
    Draft,
    EffectClaimed,
    EffectCommitted,
    EffectInDoubt,
    EffectLapsed,
    EffectTransitionError,
    IdempotencyConflict,
    InvalidEvent,
    NotAuthorized,
    NotPerformed,
    Settlement,
    UnknownReference,
)

CHECKOUT = Path(__file__).resolve().parent.parent
STATES = ("proposed", "attempted", "committed", "compensated")
MOVES = [("attempted", None), ("committed", None)] + [
    ("compensated", outcome) for outcome in ("withdrawn", "undone", "not_happened")
]
ALLOWED = {
    ("proposed", "attempted", None),
    ("proposed", "compensated", "withdrawn"),
    ("attempted", "committed", None),
    ("attempted", "compensated", "undone"),
    ("attempted", "compensated", "not_happened"),
    ("committed", "compensated", "undone"),
}


@pytest.fixture
def log(store_path, clock):
    """An open log whose clock the test moves."""
    with ConversationLog.open(store_path, clock=clock) as opened:
        yield opened


@pytest.fixture
def session(log):
    """A session of it."""
    return log.session("s")


def propose(session, agent="w1", **keys):
    """Propose an effect without calling anything."""
    return session.tool_call("charge", {"amount": 5}, agent=agent, effect={"state": "proposed"}, **keys)


def move(effect, state, outcome=None, *, agent="w1", **keys):
    """The mutation that moves an effect."""
    said = {"id": getattr(effect, "id", effect), "state": state} | ({"outcome": outcome} if outcome else {})
    return Draft(type="mutation", kind=f"effect-{state}", agent=agent, effect=said, **keys)


def brought_to(session, state):
    """An effect in a state."""
    effect = propose(session)
    for step in {"proposed": (), "compensated": (("compensated", "withdrawn"),)}.get(
        state, (("attempted", None), ("committed", None))
    ):
        session.append(move(effect, *step))
        if session.find_effect(effect).state == state:
            break
    assert session.find_effect(effect).state == state
    return effect


class Tool:
    """A tool that counts its calls, and remembers the keys it was handed."""

    def __init__(self, gives=None, raises=None):
        self.keys, self._gives, self._raises = [], gives, raises

    def __call__(self, key):
        self.keys.append(key)
        if self._raises is not None:
            raise self._raises
        return self._gives


def once(session, tool, agent="w1", key="k", args=None, **keys):
    """The call that the tests make."""
    args = {"amount": 5} if args is None else args
    return session.once(agent, "charge", args, idempotency_key=key, run=tool, **keys)


def quiet(log):
    """Whether verify has nothing to say."""
    return list(log.verify()) == []


@pytest.mark.parametrize(("state", "step"), list(itertools.product(STATES, MOVES)))
def test_only_the_moves_of_the_table_are_taken(log, session, state, step):
    """Of the four states and five moves six are let through; all else is refused, and nothing of it is written."""
    effect = brought_to(session, state)
    head = session.head
    if (state, *step) in ALLOWED:
        session.append(move(effect, *step))
        assert session.find_effect(effect).state == step[0]
    elif step[0] == "attempted" and state != "compensated":
        expected = EffectInDoubt if state == "attempted" else EffectCommitted
        with pytest.raises(expected) as refused:
            session.append(move(effect, *step))
        assert refused.value.effect == effect.id
    else:
        with pytest.raises(EffectTransitionError) as refused:
            session.append(move(effect, *step))
        assert (refused.value.effect, refused.value.found) == (effect.id, state)
        assert refused.value.wanted.startswith(step[0])
    assert session.head == head + ((state, *step) in ALLOWED)
    assert quiet(log)


def test_a_batch_is_judged_draft_by_draft(log, session):
    """In one append the later moves see the earlier ones; a wrong one takes all of them with it."""
    effect = propose(session)
    session.append_many([move(effect, "attempted"), move(effect, "committed", value=1)])
    other = propose(session)
    with pytest.raises(EffectTransitionError) as refused:
        session.append_many([move(other, "attempted"), move(other, "committed"), move(other, "committed")])
    assert refused.value.index == 2
    assert session.find_effect(other).state == "proposed"
    assert quiet(log)


@pytest.mark.parametrize(
    ("keys", "pointer"),
    [
        ({"type": "message", "body": "x", "effect": {"state": "attempted"}}, "/effect"),
        ({"type": "mutation", "kind": "effect-committed", "effect": {"state": "attempted"}}, "/kind"),
        ({"type": "mutation", "kind": "effect-attempted"}, "/effect"),
        ({"type": "tool_result", "status": "error", "effect": {"state": "committed"}}, "/effect/state"),
        ({"type": "tool_result", "effect": {"state": "compensated", "outcome": "undone"}}, "/effect/state"),
    ],
)
def test_a_move_has_one_form(session, keys, pointer):
    """A move is a mutation of its kind or the good result of the call; a kind that moves nothing is refused."""
    effect = propose(session)
    session.append(move(effect, "attempted")) if keys["type"] == "tool_result" else None
    keys = {"agent": "w1"} | keys | ({"call_id": effect.id} if keys["type"] == "tool_result" else {})
    if "effect" in keys:
        keys["effect"] = keys["effect"] | {"id": effect.id}
    with pytest.raises(InvalidEvent) as refused:
        session.append(Draft(**keys))
    assert refused.value.pointer == pointer


def test_a_result_commits_the_effect_of_its_call_and_no_other(session):
    """A result with the status ok is the commit, without being told; what was never attempted cannot be."""
    effect, other = propose(session), propose(session)
    with pytest.raises(EffectTransitionError):
        session.tool_result(effect, 1, agent="w1")
    session.append(move(effect, "attempted"))
    session.append(move(other, "attempted"))
    with pytest.raises(InvalidEvent) as refused:
        session.tool_result(effect, 1, agent="w1", effect={"id": other.id, "state": "committed"})
    assert refused.value.pointer == "/effect/id"
    result = session.tool_result(effect, 1, agent="w1")
    assert result.effect == {"id": effect.id, "state": "committed"}
    assert session.tool_result(other, 1, agent="w1", status="error").effect is None
    assert session.find_effect(other).state == "attempted"


def test_a_late_result_of_what_was_settled_is_kept_and_moves_nothing(session):
    """The result of a call whose effect was settled by a mutation closes the call, and that is all."""
    effect = propose(session)
    session.append(move(effect, "attempted"))
    session.append(move(effect, "compensated", "not_happened"))
    assert session.tool_result(effect, 1, agent="w1").effect is None
    assert session.find_effect(effect).outcome == "not_happened"
    assert session.open_calls() == []


def test_an_effect_is_moved_in_its_own_session_only(log, session):
    """An id that is no effect, or one of another session, is an unknown reference."""
    effect, said = propose(session), session.message("x", agent="a")
    with pytest.raises(UnknownReference):
        log.session("t").append(move(effect, "attempted"))
    with pytest.raises(UnknownReference):
        session.append(move(said, "attempted"))
    with pytest.raises(UnknownReference):
        session.find_effect(said)


def test_a_claim_is_held_until_its_lease_runs_out(session, clock):
    """While it runs, no other worker attempts, commits or settles; its holder may; afterwards it is in doubt."""
    effect = propose(session)
    claim = session.append(move(effect, "attempted", lease=10))
    for step in (("attempted", None), ("committed", None), ("compensated", "not_happened")):
        with pytest.raises(EffectClaimed) as refused:
            session.append(move(effect, *step, agent="w2"))
        assert (refused.value.worker, refused.value.fence) == ("w1", claim.seq)
        assert refused.value.until == session.find_effect(effect).until
    assert session.find_effect(effect).is_held
    with pytest.raises(EffectInDoubt):
        session.append(move(effect, "attempted"))
    clock.advance(10)
    with pytest.raises(EffectInDoubt) as refused:
        session.append(move(effect, "attempted", agent="w2"))
    assert (refused.value.worker, refused.value.attempted) == ("w1", claim.id)
    assert not session.find_effect(effect).is_held
    session.append(move(effect, "committed"))  # the worker came back late, and nobody had settled it


def test_a_result_is_given_again_and_the_tool_is_not_called(log, session):
    """The same key, by any worker in any session, gives the recorded result; the key is handed to the tool."""
    tool = Tool({"id": 7})
    first = once(session, tool)
    assert (first.result, first.is_replay) == ({"id": 7}, False)
    for place, agent in ((session, "w1"), (session, "w2"), (log.session("t"), "w3")):
        again = once(place, tool, agent)
        assert (again.effect, again.event, again.result) == (first.effect, first.event, {"id": 7})
        assert again.is_replay
    assert tool.keys == ["k"]
    assert [event.kind for event in log.session("t").read()] == ["session-opened"]
    assert session.open_calls() == []
    assert quiet(log)


def test_a_large_result_is_given_again_whole(session):
    """A result that the line holds a preview of comes back as it was."""
    tool = Tool("x" * 50_000)
    assert once(session, tool).result == once(session, tool).result == "x" * 50_000


def test_a_key_belongs_to_one_call(session):
    """The same key for other arguments or another tool is refused, before anything is called."""
    tool = Tool(1)
    once(session, tool)
    with pytest.raises(IdempotencyConflict):
        once(session, tool, args={"amount": 6})
    with pytest.raises(IdempotencyConflict):
        session.once("w1", "refund", {"amount": 5}, idempotency_key="k", run=tool)
    assert len(tool.keys) == 1


def test_tenants_have_keys_of_their_own(log):
    """A tenant never gets the result of another's effect."""
    tool = Tool(1)
    for tenant in ("acme", "rival", None):
        assert not once(log.session(f"s-{tenant}", tenant=tenant), tool).is_replay
    assert once(log.session("more", tenant="acme"), tool).is_replay
    assert len(tool.keys) == 3


def test_a_key_outlives_the_content(log, session):
    """After erasure the tool is still not called again; the receipt says that the result is gone."""
    tool = Tool("secret")
    first = once(session, tool)
    log.redact(session="s", reason="test", by="ops")
    again = once(session, tool, "w2")
    assert (again.effect, again.result, again.event.answer) == (first.effect, None, "erased")
    assert len(tool.keys) == 1
    assert quiet(log)


def test_a_compensated_key_is_proposed_anew(log, session):
    """An effect that was undone leaves its key free, for a new effect with an id of its own."""
    tool = Tool(1)
    first = once(session, tool)
    session.settle(first.effect, "undone", agent="w1")
    second = once(session, tool)
    assert first.effect != second.effect
    assert not second.is_replay
    assert [effect.state for effect in session.effects()] == ["compensated", "committed"]
    assert quiet(log)


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no\ud800 luck"), "error"), (KeyboardInterrupt(), "interrupted")]
)
def test_what_the_tool_raises_leaves_the_effect_in_doubt(session, clock, error, status):
    """It comes through, is recorded as the result of the call, and the tool is never called again unasked."""
    tool = Tool(raises=error)
    with pytest.raises(type(error)):
        once(session, tool)
    (effect,) = session.effects(state="attempted")
    result = session.tail(1)[0]
    assert (result.status, result.call_id, result.result["error"]) == (
        status,
        effect.id,
        type(error).__name__,
    )
    with pytest.raises(EffectInDoubt):
        once(session, tool)
    with pytest.raises(EffectClaimed):
        once(session, tool, "w2")
    clock.advance(60)
    with pytest.raises(EffectInDoubt):
        once(session, tool, "w2")
    assert len(tool.keys) == 1


def test_a_tool_that_did_nothing_says_so(log, session):
    """NotPerformed comes through, and the key is free at once, for anybody."""
    with pytest.raises(NotPerformed) as refused:
        once(session, Tool(raises=NotPerformed("no funds")))
    assert refused.value.reason == "no funds"
    (effect,) = session.effects()
    assert effect.outcome == "not_happened"
    assert session.open_calls() == []
    assert once(session, Tool(1), "w2").result == 1
    assert quiet(log)


def test_a_result_that_is_no_json_is_no_second_call(session):
    """What the tool did is committed though its result cannot be kept, and the caller is told."""
    tool = Tool(object())
    with pytest.raises(InvalidEvent):
        once(session, tool)
    again = once(session, tool)
    assert (again.result, again.is_replay) == (None, True)
    assert len(tool.keys) == 1


def test_bad_arguments_are_refused_before_anything_is_written(log, session):
    """No proposal, no claim, no call."""
    tool = Tool(1)
    for keys in ({"args": {1, 2}}, {"key": ""}, {"lease": -1}, {"agent": ""}):
        with pytest.raises(InvalidEvent):
            once(session, tool, **keys)
    assert tool.keys == []
    assert [effect.state for effect in session.effects()] in ([], ["proposed"])


@pytest.mark.parametrize("tool", [None, lambda: 1, lambda key, other: 1])
def test_what_cannot_be_called_is_no_attempt(session, tool):
    """A tool that does not take the key is refused before anything says that it may have been called."""
    with pytest.raises(TypeError):
        once(session, tool)
    assert session.effects() == []


def test_a_coroutine_is_no_result(session):
    """Nothing of it has run: the effect did not happen, and its key is free."""

    async def tool(key):
        return key

    with pytest.raises(NotPerformed):
        once(session, tool)
    assert session.effects()[0].outcome == "not_happened"
    assert once(session, print).result is None  # a built-in function will do


@pytest.mark.parametrize("effect", ["", "nonsense", "0197a3c4", "0" * 36])
def test_an_id_that_is_none_is_an_unknown_reference(session, effect):
    """Whatever was given for an id."""
    session.message("x", agent="a")
    for call in (session.find_effect, lambda given: session.effects(after=given)):
        with pytest.raises(UnknownReference):
            call(effect)


def test_a_block_runs_once(session):
    """The context manager commits what the block left as its result, and never runs for what may have happened."""
    with session.effect("w1", "mail", {"to": "x"}, idempotency_key="m") as attempt:
        assert attempt.key == "m"
        assert attempt.fence == session.find_effect(attempt.effect).fence
        attempt.result = {"sent": True}
    ran = []
    with (
        pytest.raises(EffectCommitted) as refused,
        session.effect("w2", "mail", {"to": "x"}, idempotency_key="m"),
    ):
        ran.append(1)
    assert session.find_effect(attempt.effect).last.result == {"sent": True}
    assert refused.value.committed == session.find_effect(attempt.effect).last.id
    with pytest.raises(OSError, match="line"), session.effect("w1", "mail", {}, idempotency_key="n"):
        raise OSError("line is down")
    with pytest.raises(EffectInDoubt), session.effect("w1", "mail", {}, idempotency_key="n"):
        ran.append(1)
    assert ran == []


class Leaping:
    """A clock that moves on at each look."""

    def __init__(self, clock, seconds):
        self._clock, self._seconds = clock, seconds

    def __call__(self):
        self._clock.advance(self._seconds)
        return self._clock()


def test_a_claim_that_ran_out_before_the_call_calls_nothing(store_path, clock):
    """A worker that was stopped behind its claim does not call the tool; the key is free again."""
    tool = Tool(1)
    with ConversationLog.open(store_path, clock=Leaping(clock, 20)) as log:
        session = log.session("s")
        with pytest.raises(EffectLapsed) as refused:
            once(session, tool, lease=10)
        assert tool.keys == []
        assert session.find_effect(refused.value.effect).outcome == "not_happened"
        assert once(session, tool, lease=1000).result == 1
        assert quiet(log)


def test_a_claim_that_was_settled_before_the_call_calls_nothing(session, clock):
    """What somebody settled while the worker was stopped stands."""
    attempt = session.begin_effect("w1", "charge", {}, "k", None, 10, {})
    clock.advance(11)
    session.settle(attempt.effect, "not_happened", agent="w2")
    with pytest.raises(EffectLapsed) as refused:
        attempt.check()
    assert refused.value.found == "compensated"


def test_a_worker_that_outlives_its_lease_is_refused(session, clock):
    """The remaining risk: it called, somebody settled that it did not; its result is refused, aloud."""

    def stopped(key):
        clock.advance(100)
        (effect,) = session.recover("w2").in_doubt
        session.settle(effect.id, "not_happened", agent="w2")
        return key

    with pytest.raises(EffectTransitionError) as refused:
        once(session, stopped, lease=10)
    assert (refused.value.found, refused.value.wanted) == ("compensated", "committed")


def test_an_effect_waits_for_the_role_it_was_put_to(log, session):
    """With an approver nothing is called until a holder of the role, other than the proposer, accepted it."""
    tool = Tool(1)
    log.grant_role("alice", "security", by="ops")
    log.grant_role("w1", "security", by="ops")
    with pytest.raises(NotAuthorized) as refused:
        once(session, tool, approver="security")
    assert "convlog approve" in refused.value.rule
    (effect,) = session.effects(state="proposed")
    with pytest.raises(NotAuthorized):
        session.approve(effect.proposed, agent="w1")
    with pytest.raises(NotAuthorized):
        session.approve(effect.proposed, agent="mallory")
    with pytest.raises(NotAuthorized):
        once(session, tool, approver="security")
    approval = session.approve(effect.proposed, agent="alice")
    assert once(session, tool, "w2", approver="security").effect == effect.id
    attempted = next(event for event in session.tail(10) if event.kind == "effect-attempted")
    assert attempted.links["authorized_by"] == [approval.id]
    assert tool.keys == ["k"]


def test_an_approval_counts_that_is_of_this_proposal_and_stands(log, session):
    """Not one that was taken back, of another proposal, in another session, or from who was not asked."""
    asked = {"performative": "propose", "to": ["alice"]}
    effect, other = propose(session, **asked), propose(session, **asked)
    session.approve(other, agent="alice")
    session.approve(effect, agent="bob")
    log.session("t").approve(effect, agent="alice")
    session.approve(effect, agent="alice")
    session.reject(effect, agent="alice")
    with pytest.raises(NotAuthorized):
        session.append(move(effect, "attempted"))
    foreign = Draft(type="message", agent="alice", performative="agree", parent_id=effect.id, body="I agree.")
    log.append_foreign("s", [(log.foreign_id("x", "1"), foreign)])
    with pytest.raises(NotAuthorized):
        session.append(move(effect, "attempted"))
    approval = session.approve(effect, agent="alice")
    with pytest.raises(NotAuthorized):
        session.append(move(effect, "attempted", links={"authorized_by": [other.id]}))
    claim = session.append(move(effect, "attempted"))
    assert claim.links["authorized_by"] == [approval.id]


def test_recovery_tells_apart_what_a_crash_left(session, clock):
    """Never tried, in doubt, held by another, done: four lists; one's own attempt is in doubt at once."""
    never = propose(session)
    mine, old, others = (propose(session) for _ in range(3))
    session.append(move(old, "attempted", agent="w3", lease=5))
    clock.advance(5)
    session.append(move(mine, "attempted", lease=60))
    session.append(move(others, "attempted", agent="w2", lease=60))
    done = once(session, Tool(1))
    found = session.recover("w1")
    assert [effect.id for effect in found.never_tried] == [never.id]
    assert [effect.id for effect in found.in_doubt] == [mine.id, old.id]
    assert [effect.id for effect in found.held] == [others.id]
    assert [effect.id for effect in found.done] == [done.effect]
    assert found.is_whole
    assert not session.recover("w1", limit=3).is_whole
    assert [effect.worker for effect in found.held] == ["w2"]


def test_a_reconciler_settles_what_is_in_doubt(log, session):
    """It is asked about each, whatever the page; what it cannot tell stays in doubt; the calls are answered."""
    effects = [propose(session) for _ in range(5)]
    for effect in effects:
        session.append(move(effect, "attempted", lease=60))
    says = iter(["not_happened", "undone", "committed", Settlement("committed", {"found": 1}), None])
    found = session.recover("w1", lambda _: next(says), limit=2)
    assert [effect.id for effect in found.settled] == [effect.id for effect in effects[:4]]
    assert [effect.outcome for effect in found.settled] == ["not_happened", "undone", None, None]
    assert found.settled[3].last.result == {"found": 1}
    assert [effect.id for effect in found.in_doubt] == [effects[4].id]
    assert [call.id for call in session.open_calls()] == [effects[4].id]
    assert quiet(log)


def test_what_is_settled_as_committed_is_given_again(session):
    """The result that was found out is the receipt, though the call had been answered with an error."""
    with pytest.raises(ValueError, match="lost"):
        once(session, Tool(raises=ValueError("lost the answer")))
    (effect,) = session.recover("w1").in_doubt
    session.settle(effect.id, "committed", agent="w1", result={"id": 9})
    tool = Tool(1)
    assert once(session, tool, "w2").result == {"id": 9}
    assert tool.keys == []


def test_an_effect_that_was_never_tried_can_be_withdrawn(session):
    """Its call is denied, and the key is free."""
    effect = propose(session, idempotency_key="k")
    assert session.settle(effect, "withdrawn", agent="boss").outcome == "withdrawn"
    assert session.tail(1)[0].status == "denied"
    assert propose(session, idempotency_key="k").id != effect.id
    with pytest.raises(InvalidEvent):
        session.settle(effect, "lost", agent="boss")


def test_effects_are_listed_in_pages(session):
    """By proposal, of one state or of all; the page goes on behind the last."""
    effects = [brought_to(session, state) for state in (*STATES, "proposed", "committed")]
    assert [effect.id for effect in session.effects()] == [effect.id for effect in effects]
    first = session.effects(limit=4)
    assert [effect.id for effect in first + session.effects(after=first[-1].id, limit=4)] == [
        effect.id for effect in effects
    ]
    assert [effect.id for effect in session.effects(state="committed")] == [effects[2].id, effects[5].id]
    with pytest.raises(InvalidEvent):
        session.effects(state="lost")
    with pytest.raises(ValueError, match="1 or more"):
        session.effects(limit=0)


def test_an_import_is_recorded_and_moves_only_what_may_move(log, session):
    """What happened elsewhere is never refused; it neither takes a key nor breaks the table."""
    effect = propose(session, idempotency_key="k")
    foreign = [move(effect, "committed"), move(effect, "attempted"), move(effect, "attempted")]
    foreign.append(Draft(type="tool_call", agent="x", tool="t", effect={"state": "proposed"}))
    drafts = [(log.foreign_id("x", str(number)), draft) for number, draft in enumerate(foreign)]
    assert log.append_foreign("s", drafts) == 4
    assert session.find_effect(effect).state == "attempted"
    assert [finding for finding in log.verify() if finding.rule == "effect"] == []


def test_an_ephemeral_log_has_no_effects():
    """Without a store nothing would be left of an attempt."""
    with ConversationLog.ephemeral() as log:
        tool = Tool(1)
        with pytest.raises(InvalidEvent) as refused:
            once(log.session("s"), tool)
    assert refused.value.pointer == "/effect"
    assert tool.keys == []


def test_threads_of_several_workers_call_once(log, session):
    """Eight workers at once on the same keys: each key is called once, whoever was first."""
    tool, unexpected = Tool(1), []

    def work(agent):
        for number in range(10):
            try:
                once(session, tool, agent, f"k{number}")
            except EffectClaimed:
                continue
            except Exception as error:  # noqa: BLE001 whatever it is, the test shows it
                unexpected.append(error)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unexpected == []
    assert sorted(tool.keys) == sorted(f"k{number}" for number in range(10))
    assert quiet(log)


# A worker that is killed at the point its argument says, of those that an effect passes.
WORKER = """
import os, signal, sys
from convlog_sqlite import ConversationLog, Session

store, ledger, name, deadly = sys.argv[1:]
passed = []

def reach(point):
    passed.append(point)
    if point == deadly:
        os.kill(os.getpid(), signal.SIGKILL)

append = Session.append
def watched(self, draft):
    step = (draft.effect or {}).get("state", draft.type)
    reach("before " + step)
    event = append(self, draft)
    reach("after " + step)
    return event
Session.append = watched

def charge(key):
    reach("in the tool, before")
    with open(ledger, "ab", buffering=0) as file:
        file.write(key.encode() + b"\\n")
    reach("in the tool, after")
    return {"charged": key}

with ConversationLog.open(store) as log:
    receipt = log.session("s").once(name, "charge", {"key": "order-1"}, idempotency_key="order-1", run=charge)
    print(receipt.is_replay)
"""
POINTS = {
    "before proposed": "nothing",
    "after proposed": "never tried",
    "before attempted": "never tried",
    "after attempted": "in doubt",
    "in the tool, before": "in doubt",
    "in the tool, after": "in doubt",
    "before committed": "in doubt",
    "after committed": "done",
}


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_point_leaves_one_charge_or_a_doubt(store_path, tmp_path, point):
    """Kill -9 wherever an effect passes: recovery says what it is, and in the end it was charged exactly once."""
    ledger = tmp_path / "ledger"
    ledger.touch()

    def work(name, deadly=""):
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(WORKER), store_path, ledger, name, deadly],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        )

    assert work("w1", point).returncode == -signal.SIGKILL
    charged = ledger.read_text().count("order-1")
    assert charged == (point in ("in the tool, after", "before committed", "after committed"))
    with ConversationLog.open(store_path) as log:
        session = log.session("s")
        found = session.recover("w1")
        lists = {"never tried": found.never_tried, "in doubt": found.in_doubt, "done": found.done}
        assert [what for what, some in lists.items() if some] == (
            [] if POINTS[point] == "nothing" else [POINTS[point]]
        )
        if POINTS[point] == "in doubt":
            again = work("w1")
            assert again.returncode == 1
            assert "EffectInDoubt" in again.stderr
            assert ledger.read_text().count("order-1") == charged
            session.recover("w1", lambda _: "committed" if charged else "not_happened")
    last = work("w2")
    assert last.returncode == 0, last.stderr
    assert last.stdout.strip() == str(POINTS[point] == "done" or bool(charged))
    assert ledger.read_text() == "order-1\n"
    with ConversationLog.open(store_path) as log:
        assert [effect.state for effect in log.session("s").effects()][-1] == "committed"
        assert quiet(log)
