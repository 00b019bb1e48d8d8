"""Projections: one state however it was come by, kept sealed, and gone with the content it was made from."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
from fnmatch import fnmatchcase

import pytest

from convlog_sqlite import (
    AsyncConversationLog,
    ConversationLog,
    Draft,
    InvalidEvent,
    Projection,
    ProjectionFailed,
    RetentionPolicy,
    SessionRemoved,
    StoreFull,
    UnknownProjection,
    UnknownReference,
)
from convlog_sqlite.database import fetch, value
from convlog_sqlite.projections import standing as engine
from convlog_sqlite.projections.projection import Look
from convlog_sqlite.projections.standing import NAMES
from convlog_sqlite.store import snapshots
from convlog_sqlite.store.erasing import Eraser, Scope

SEEDS = range(int(os.environ.get("CONVLOG_TEST_PROJECTION_SEEDS", "6")))
NEVER = 10**9


def words(state, event):
    """A fold of a caller's own, over content."""
    if event.body:
        for word in event.body.split():
            state[word] = state.get(word, 0) + 1


WORDS = Projection("words", words)


@pytest.fixture
def eager(monkeypatch):
    """Snapshots after every five events, however large."""
    monkeypatch.setattr(engine, "SNAPSHOT_EVENTS", 5)
    monkeypatch.setattr(engine, "_BYTES_AN_EVENT", 10**6)


def states(log, session="s", at=None, *, rebuild=False):
    """Every projection, and the one over content."""
    asked = [*NAMES, WORDS]
    return [log.session(session).state(wanted, at=at, rebuild=rebuild) for wanted in asked]


def snapshot_rows(log):
    """(projection, seq, slot) of every snapshot."""
    with log._store.database.read() as connection:
        return fetch(connection, "SELECT projection, seq, slot FROM snapshot ORDER BY projection, seq")


def key_of(log, slot):
    """What a slot holds: a key, or why not."""
    return log._store.keystore.read([slot])[0]


class Writing:
    """Random appends of every kind that a projection looks at."""

    def __init__(self, session, chance):
        self.session, self.chance = session, chance
        self.calls, self.asked, self.values, self.content = [], [], [], []

    def step(self):
        """One append."""
        chance = self.chance
        agent = chance.choice(["ann", "bo", "cy"])
        keys = {"agent": agent, "thread_id": chance.choice([None, "h1", "h2"])}
        step = chance.choice(
            [self.say, self.call, self.answer, self.task, self.decide, self.ask, self.reply, self.effect]
        )
        step({key: item for key, item in keys.items() if item is not None})

    def say(self, keys):
        self.content.append(self.session.message(self.chance.choice(["one two", "two", "three"]), **keys))

    def call(self, keys):
        self.calls.append(self.session.tool_call(self.chance.choice(["grep", "ls"]), {}, **keys))

    def answer(self, keys):
        if self.calls:
            call = self.calls.pop(self.chance.randrange(len(self.calls)))
            self.session.tool_result(call, 1, status=self.chance.choice(["ok", "error"]), agent=keys["agent"])

    def task(self, keys):
        kind = self.chance.choice(["task-created", "task-assigned", "task-started", "tilldone-done"])
        task = self.chance.choice(["t1", "t/2", "t%3"])
        self.session.mutation(kind, task_id=task, to=["bo"], **keys)
        if self.chance.random() < 0.3:
            self.session.depends(task, "t1", agent=keys["agent"])

    def decide(self, keys):
        known = self.chance.sample(self.values, min(len(self.values), self.chance.choice([0, 0, 1, 2])))
        links = {"supersedes": [event.id for event in known]} if known else {}
        kind = self.chance.choice(["decision-made", "state-set", "plan-set"])
        key = self.chance.choice(["port", "host", None])
        event = self.session.mutation(kind, [1, {"x": None}], state_key=key, links=links, **keys)
        self.values.append(event)
        self.content.append(event)

    def ask(self, keys):
        act, to = self.chance.choice([("request", "bo"), ("propose", "bo"), ("propose", "role:dba")])
        self.asked.append(self.session.message("well?", performative=act, to=[to], **keys))

    def reply(self, keys):
        if self.asked:
            act = self.chance.choice(["inform", "reject-proposal", "cancel"])
            parent = self.chance.choice(self.asked).id
            self.session.message("so", performative=act, parent_id=parent, **keys)

    def effect(self, keys):
        self.session.mutation("effect-x", effect={"state": "proposed"}, **keys)


# One state, however it was come by


@pytest.mark.parametrize("seed", SEEDS)
def test_a_state_is_the_same_incrementally_from_a_snapshot_and_from_scratch(store_path, seed, eager):
    """Random appends and redactions: three handles that came by their states differently always agree."""
    print("seed", seed)
    chance = random.Random(seed)
    with ConversationLog.open(store_path, durability="normal") as log:
        writing = Writing(log.session("s"), chance)
        for _ in range(12):
            for _ in range(chance.randint(1, 12)):
                writing.step()
            if writing.content and chance.random() < 0.4:
                event = writing.content.pop(chance.randrange(len(writing.content)))
                log.redact(events=[event.id], reason="test", by="ops")
            grown = states(log)
            with ConversationLog.open(store_path, read_only=True) as other:
                assert grown == states(other), "from a snapshot"
                assert grown == states(other, rebuild=True), "from scratch"
        assert snapshot_rows(log), "snapshots were really made"
        assert list(log.verify(projections=True)) == []


class TestOwnAppends:
    """What a handle appends is folded in at once; what others do is read."""

    def test_who_appends_and_asks_in_turn_reads_nothing(self, log, monkeypatch):
        """The state is that of the last event all the same, and of what came in a batch."""
        session = log.session("s")
        session.tool_call("ls", agent="a")
        for name in ("calls", "threads", "agents"):
            session.state(name)
        session.tool_call("ls", agent="a", thread_id="h")
        drafts = [Draft(type="tool_call", agent=agent, tool="ls", args={}) for agent in "bcd"]
        session.append_many(drafts)
        log.append_together([("s", None, drafts[:1]), ("s", None, drafts[1:])])
        with monkeypatch.context() as patch:
            patch.setattr(log._store.database, "read", lambda: pytest.fail("it read"))
            found = [session.state(name) for name in ("calls", "threads", "agents")]
        assert found == [session.state(name, rebuild=True) for name in ("calls", "threads", "agents")]
        assert list(found[2]) == ["a", "b", "c", "d"]

    def test_what_another_handle_appended_counts(self, log, store_path):
        """In whatever order they append and ask."""
        chance = random.Random(3)
        with ConversationLog.open(store_path) as other:
            for _ in range(60):
                handle = chance.choice([log, other])
                handle.session("s").tool_call("ls", agent=chance.choice("abc"))
                if chance.random() < 0.1:
                    event = handle.session("s").tail(1)[0]
                    chance.choice([log, other]).redact(events=[event.id], reason="test", by="ops")
                asked = chance.choice([log, other])
                name = chance.choice(["calls", "agents", "open"])
                found = asked.session("s").state(name)
                with ConversationLog.open(store_path, read_only=True) as fresh:
                    assert found == fresh.session("s").state(name, rebuild=True)

    def test_threads_that_append_and_ask_at_once(self, log):
        """Whatever was folded in meanwhile, in the end it is the state of all events."""
        session = log.session("s")
        session.tool_call("ls", agent="a")

        def work(number):
            for _ in range(40):
                session.tool_call("ls", agent=f"a{number}")
                session.state("agents")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.state("agents") == session.state("agents", rebuild=True)

    def test_a_refused_append_is_not_folded_in(self, log):
        """Nor one that was recorded before under its key."""
        session = log.session("s")
        session.state("agents")
        session.message("x", agent="a", idempotency_key="k")
        before = session.state("agents")
        assert session.message("x", agent="a", idempotency_key="k").seq == 2
        with pytest.raises(InvalidEvent):
            session.append_many([Draft(type="message", agent="b", body="x"), Draft(type="message", agent="")])
        assert session.state("agents") == before == session.state("agents", rebuild=True)

    def test_a_fold_that_raises_harms_no_append(self, log, monkeypatch):
        """The event stands, and who asks for the state is told."""

        def fails(state, event):
            if event.type == "tool_call":
                raise ZeroDivisionError

        projection = Projection("fails", fails, reads_content=False)
        monkeypatch.setattr(engine, "_is_taken_in", lambda projection: True)
        session = log.session("s")
        session.message("x", agent="a")
        session.state(projection)
        event = session.tool_call("ls", agent="a")
        assert session.tail(1)[0] == event
        with pytest.raises(ProjectionFailed) as failed:
            session.state(projection)
        assert failed.value.seq == event.seq

    def test_an_interrupt_in_the_middle_leaves_no_state_half_folded(self, log, monkeypatch):
        """The event stands, and counts once."""
        interrupts = []

        def count(state, event):
            state["n"] = state.get("n", 0) + 1
            if interrupts:
                raise interrupts.pop()

        projection = Projection("counted", count, reads_content=False)
        monkeypatch.setattr(engine, "_is_taken_in", lambda projection: True)
        session = log.session("s")
        session.message("x", agent="a")
        session.state(projection)
        interrupts.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            session.message("y", agent="a")
        assert session.head == 3
        assert session.state(projection) == {"n": 3}

    def test_a_session_that_was_removed_has_no_state(self, store_path, clock):
        """Though its state is remembered, and its last event was this handle's."""
        with ConversationLog.open(store_path, clock=clock) as log:
            session = log.session("s")
            session.message("x", agent="a")
            session.state("agents")
            session.mutation("session-closed", agent="a")
            session.state("agents")
            log.set_policy(RetentionPolicy(id="old", target="envelope", max_age="1h"), by="ops")
            clock.advance(86_400)
            log.apply_retention(by="ops")
            with pytest.raises(SessionRemoved):
                session.state("agents")


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_a_state_of_earlier_is_what_it_was_then(store_path, seed, eager):
    """`at` gives what was given when the session ended there."""
    print("seed", seed)
    writing_chance = random.Random(seed)
    with ConversationLog.open(store_path, durability="normal") as log:
        session = log.session("s")
        writing, then = Writing(session, writing_chance), {}
        for _ in range(40):
            writing.step()
            then[session.head] = states(log)
        for seq, found in then.items():
            assert found == states(log, at=seq)
        assert states(log, at=0) == states(log, session="never")


def test_what_a_fork_inherited_counts_up_to_its_base(log, eager):
    """A fork goes on from its parent's state at the fork point, and leaves the parent alone."""
    parent = log.session("s")
    first = parent.mutation("decision-made", 1, agent="a", state_key="port")
    for number in range(8):
        parent.message(f"m{number}", agent="a")
    base = parent.head
    fork(log, "s", "f", base)
    parent.mutation("decision-made", 2, agent="a", state_key="port")
    branch = log.session("f")
    assert branch.state()["port"]["event"] == first.id
    assert states(log, "f") == states(log, "s", at=base)
    branch.mutation("decision-made", 3, agent="b", state_key="port", links={"supersedes": [first.id]})
    assert (branch.state()["port"]["value"], parent.state()["port"]["value"]) == (3, 2)
    assert branch.state(at=base)["port"]["value"] == 1
    assert branch.state(WORDS)["m7"] == 1
    assert [finding for finding in log.verify("f", projections=True) if finding.rule == "projection"] == []
    assert {projection for projection, _, _ in snapshot_rows(log)} >= {"words"}
    log.redact(events=[parent.tail(1, type="message")[0].id], reason="test", by="ops")
    assert "m7" not in branch.state(WORDS)


class Branch(Writing):
    """Random appends to one branch of a line of forks: what it shares is answered, superseded and replied to there."""

    def __init__(self, session, chance, parent=None, base=0):
        super().__init__(session, chance)
        self.effects = []
        if parent is not None:
            for name in ("calls", "asked", "values", "content"):
                setattr(self, name, [event for event in getattr(parent, name) if event.seq <= base])

    def step(self):
        """One append, of a kind that the other writing does, or of those below."""
        if self.chance.random() < 0.7:
            return super().step()
        keys = {"agent": self.chance.choice(["ann", "bo", "cy"])}
        return self.chance.choice([self.move, self.skill, self.role, self.join])(keys)

    def effect(self, keys):
        self.effects.append(self.session.mutation("effect-x", effect={"state": "proposed"}, **keys))

    def move(self, keys):
        if self.effects:
            effect = self.effects.pop(self.chance.randrange(len(self.effects))).id
            steps = [
                {"state": "attempted"},
                {"state": "committed"},
                {"state": "compensated", "outcome": "undone"},
            ]
            for step in steps[: self.chance.randint(1, 3)]:
                self.session.mutation(f"effect-{step['state']}", agent="ann", effect=step | {"id": effect})

    def skill(self, keys):
        self.content.append(
            self.session.mutation("skill-activated", self.chance.choice(["pdf", "jq"]), **keys)
        )

    def role(self, keys):
        change = self.chance.choice([self.session.grant_role, self.session.revoke_role])
        change("dee", self.chance.choice(["dba", "d/ba"]), **keys)

    def join(self, keys):
        self.session.mutation(self.chance.choice(["agent-joined", "agent-left"]), **keys)


class Beside(Look):
    """Looks single events up among those that were read, not in the store."""

    def __init__(self, reader, events):
        super().__init__(reader, None)
        self.by_seq = {event.seq: event for event in events}

    def events(self, seqs):
        return {seq: self.by_seq[seq] for seq in seqs}


def wants(projection, event):
    """Whether a fold says that it needs an event."""
    asked = projection.types, projection.kinds, projection.performatives, projection.keyed
    return not any(asked) or (
        event.type in projection.types
        or event.performative in projection.performatives
        or (projection.keyed and event.state_key is not None)
        or (event.kind is not None and any(fnmatchcase(event.kind, kind) for kind in projection.kinds))
    )


def folded_naively(log, session, upto=NEVER):
    """Every projection, over the events that whoever reads the session gets, one after the other."""
    events, after = [], 0
    while after is not None:
        page = log.session(session).read(after=after, limit=7)
        events.extend(event for event in page if event.seq <= upto)
        after = page.next
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    found = []
    for projection in [*map(log._projections.find, NAMES), WORDS]:
        state = projection.begin()
        for event in events:
            if wants(projection, event):
                folded = projection.fold(state, event)
                state = state if folded is None else folded
        shown = state if projection.render is None else projection.render(state, Beside(log.reader, events))
        found.append(json.loads(json.dumps(shown)))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_state_across_forks_is_that_of_the_events_that_the_fork_reads(store_path, seed, eager):
    """Forks of forks at any point, appends in all of them, what they share redacted: every way gives the naive fold."""
    if "CI" not in os.environ:
        seed = seed * 2**32 + int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    chance = random.Random(seed)
    with ConversationLog.open(store_path, durability="normal") as log:
        branches = {"s": Branch(log.session("s"), chance)}
        for step in range(20):
            name = chance.choice(list(branches))
            for _ in range(chance.randint(1, 9)):
                branches[name].step()
            if len(branches) < 6 and chance.random() < 0.5:
                parent = branches[chance.choice(list(branches))]
                if parent.session.head:
                    base = chance.randint(1, parent.session.head)
                    child = parent.session.fork(f"f{step}", base, agent="ann")
                    branches[child.id] = Branch(child, chance, parent, base)
            branch = chance.choice(list(branches.values()))
            if branch.content and chance.random() < 0.5:
                event = chance.choice(branch.content)  # its own, or one that it shares
                log.redact(events=[event.id], reason="test", by="ops")
            asked = chance.sample(sorted(branches), min(2, len(branches)))
            with ConversationLog.open(store_path, read_only=True) as other:
                for session in asked:
                    grown = states(log, session)
                    assert grown == folded_naively(log, session), f"{session}, as it grew"
                    assert grown == states(other, session), f"{session}, on a fresh handle"
                    assert grown == states(other, session, rebuild=True), f"{session}, from scratch"
                    at = chance.randint(0, log.session(session).head)
                    assert states(log, session, at) == folded_naively(log, session, at), f"{session} at {at}"
                    waiting = [event.id for event in every_open_call(log.session(session))]
                    calls = grown[NAMES.index("calls")]["open"]
                    assert waiting == [item["event"] for item in calls], f"{session}: what waits"
        assert {seq for _, seq, _ in snapshot_rows(log)}, "snapshots were really made"
        assert list(log.verify(projections=True)) == []


def every_open_call(session):
    """The calls that wait, page after page."""
    after = 0
    while after is not None:
        page = session.open_calls(after=after, limit=3)
        yield from page
        after = page.next


def fork(log, parent, name, base):
    """A session that shares the events of another up to `base`."""
    with log._store.database.write() as connection:
        number = value(connection, "SELECT id FROM session WHERE name = ?", (parent,))
        made = value(
            connection,
            "INSERT INTO session (name, folded, base) VALUES (?, ?, ?) RETURNING id",
            (name, name, base),
        )
        connection.execute("INSERT INTO fork VALUES (?, ?, ?)", (made, number, base))


# What the shipped ones say


def test_a_conflict_shows_both_values_until_one_supersedes_both(log):
    """Decisions made apart both stand, with their authors; so says `open`."""
    session = log.session("s")
    first = session.mutation("decision-made", 1, agent="a", state_key="port")
    links = {"supersedes": [first.id]}
    ours = session.mutation("decision-made", 2, agent="a", state_key="port", links=links)
    theirs = session.mutation("decision-made", 3, agent="b", state_key="port", links=links)
    shown = session.state()["port"]["conflict"]
    assert [(head["value"], head["by"]) for head in shown] == [(2, "a"), (3, "b")]
    assert [item["state_key"] for item in session.state("open")] == ["port"]
    both = {"supersedes": [ours.id, theirs.id]}
    last = session.mutation("decision-made", 4, agent="c", state_key="port", links=both)
    assert session.state()["port"] == {
        "value": 4, "kind": "decision-made", "by": "c", "seq": last.seq, "event": last.id,
    }  # fmt: skip
    assert session.state("open") == []


def test_an_overwrite_is_marked_unless_it_is_a_step_of_a_task(log):
    """Who was overwritten stands beside the value; a task that goes on is meant to."""
    session = log.session("s")
    first = session.mutation("state-set", 1, agent="a", state_key="w")
    session.mutation("state-set", 2, agent="b", state_key="w")
    session.mutation("task-created", agent="a", task_id="t")
    session.mutation("task-done", agent="b", task_id="t")
    shown = session.state()
    assert shown["w"]["over"] == {"by": "a", "seq": first.seq, "event": first.id}
    assert "over" not in shown["task/t"]


def test_a_value_is_shown_whole_or_says_why_not(log):
    """A long value comes from its blob, an erased one names its redaction."""
    session = log.session("s")
    session.mutation("state-set", "x" * 30_000, agent="a", state_key="long")
    gone = session.mutation("state-set", "secret", agent="a", state_key="gone")
    by = log.redact(events=[gone.id], reason="test", by="ops")
    assert by.complete
    shown = session.state()
    assert shown["long"]["value"] == "x" * 30_000
    assert shown["gone"]["redacted"]["reason"] == "test"
    assert "value" not in shown["gone"]


def test_a_task_from_its_creation_to_its_end(log):
    """Status, holder, fencing number and what it waits for."""
    session = log.session("s")
    session.mutation("task-created", agent="lead", task_id="a/b")
    session.depends("a/b", "c%2F", agent="lead")
    session.mutation("task-assigned", agent="lead", task_id="a/b", to=["ann"])
    claim = session.claim("a/b", agent="ann", lease=60)
    task = session.state("tasks")["a/b"]
    assert (task["status"], task["assigned"], task["claimed_by"]) == ("claimed", ["ann"], "ann")
    assert (task["fence"], task["waits_for"]) == (claim.seq, ["c%2F"])
    session.mutation("tilldone-done", agent="bo", task_id="c%2F")
    assert "waits_for" not in session.state("tasks")["a/b"]
    session.release("a/b", agent="ann")
    assert "claimed_by" not in session.state("tasks")["a/b"]
    session.mutation("task-failed", agent="ann", task_id="a/b")
    assert session.state("tasks")["a/b"]["status"] == "failed"


def test_a_harness_has_kinds_of_its_own(log, eager):
    """A kind that is registered counts at once, for what was appended before too, in every handle and in SQL."""
    session = log.session("s")
    session.append_many([Draft(type="message", agent="a", body="x")] * 9)
    session.mutation("acme-shipped", agent="a", task_id="t")
    assert session.state("tasks") == {}
    log.set_task_kind("acme-shipped", "done", by="ops")
    assert session.state("tasks")["t"]["status"] == "done"
    assert log.task_kinds()["acme-shipped"] == "done"
    said = log.session("_store").state()["task-kind/acme-shipped"]
    assert (said["value"], said["by"]) == ({"kind": "acme-shipped", "status": "done"}, "ops")
    log.set_task_kind("acme-shipped", None, by="ops")
    assert session.state("tasks") == {}
    for kind, status in (("Not Kebab", "done"), ("acme-shipped", "shipped")):
        with pytest.raises(InvalidEvent):
            log.set_task_kind(kind, status, by="ops")
    assert "acme-shipped" not in log.task_kinds()


def test_agents_with_their_roles_and_skills(log):
    """Who joined, left and was spawned; roles by the key, skills by key or value."""
    session = log.session("s")
    session.mutation("agent-joined", agent="ann")
    session.mutation("agent-spawned", agent="ann", to=["bo"])
    session.grant_role("bo", "d/ba", agent="ann")
    session.grant_role("bo", "old", agent="ann")
    session.revoke_role("bo", "old", agent="ann")
    session.mutation("skill-activated", {"skill": "pdf"}, agent="bo")
    session.mutation("skill-activated", agent="bo", state_key="skill/bo/jq")
    session.mutation("agent-left", agent="bo")
    found = session.state("agents")
    assert found["ann"] == {"events": 5, "first": 1, "last": 6, "status": "joined"} | found["ann"]
    assert (found["bo"]["status"], found["bo"]["spawned_by"]) == ("left", "ann")
    assert (found["bo"]["roles"], found["bo"]["skills"]) == (["d/ba"], ["jq", "pdf"])


def test_open_lists_all_that_is_unresolved_and_nothing_else(log):
    """Calls, requests, proposals, approvals and effects, until each is settled by somebody who may."""
    session = log.session("s")
    call = session.tool_call("grep", {}, agent="a")
    request = session.request("which port?", agent="a", to="b")
    offer = session.message("mine?", agent="a", performative="propose", to=["b"])
    wanted = session.propose("drop it?", agent="a", approver="dba")
    effect = session.mutation("effect-proposed", agent="a", effect={"state": "proposed"})
    open_now = session.state("open")
    assert [item["open"] for item in open_now] == ["call", "request", "proposal", "approval", "effect"]
    assert [item["event"] for item in open_now] == [call.id, request.id, offer.id, wanted.id, effect.id]
    session.message("still thinking", agent="a", parent_id=request.id)
    session.message("hm", agent="b", parent_id=offer.id, performative="inform")
    assert len(session.state("open")) == 5, "neither one's own words nor a remark settle anything"
    session.tool_result(call, 1, agent="a")
    session.message("8080", agent="b", parent_id=request.id)
    session.message("yes", agent="b", parent_id=offer.id, performative="accept-proposal")
    session.reject(wanted, agent="b")
    assert [item["open"] for item in session.state("open")] == ["effect"]
    assert session.state("approvals")["rejected"] == 1
    assert session.state("calls") == {"open": [], "answered": {"grep": {"ok": 1}}}


def test_a_call_that_is_a_request_waits_for_its_result_alone(log):
    """As in a transcript, where an agent asks a tool and notes the result itself: then nothing is open."""
    session = log.session("s")
    call = session.tool_call("grep", {}, agent="a", performative="request")
    assert [item["open"] for item in session.state("open")] == ["call"]
    session.tool_result(call, 1, agent="a", performative="inform")
    assert session.state("open") == []


def test_an_effect_is_in_doubt_between_attempt_and_outcome(log):
    """Envelopes say how far it is; what is over is counted."""
    session = log.session("s")
    made = [session.mutation("effect-x", agent="a", effect={"state": "proposed"}) for _ in range(2)]
    for event in made:
        foreign(
            log,
            Draft(type="mutation", agent="w", kind="effect-x", effect={"state": "attempted", "id": event.id}),
        )
    assert [item["open"] for item in session.state("open")] == ["effect-in-doubt"] * 2
    assert [item["worker"] for item in session.state("effects")["standing"]] == ["w", "w"]
    for event, effect in zip(
        made, ({"state": "committed"}, {"state": "compensated", "outcome": "not_happened"}), strict=True
    ):
        foreign(log, Draft(type="mutation", agent="w", kind="effect-x", effect=effect | {"id": event.id}))
    counted = {"standing": [], "committed": 1, "compensated": {"not_happened": 1}}
    assert session.state("effects") == counted
    undone = {"state": "compensated", "id": made[0].id, "outcome": "undone"}
    foreign(log, Draft(type="mutation", agent="w", kind="effect-x", effect=undone))
    assert session.state("effects") == {
        "standing": [],
        "committed": 0,
        "compensated": {"not_happened": 1, "undone": 1},
    }


def foreign(log, draft):
    """Record a draft as an import does: what happened elsewhere is not judged."""
    log.append_foreign("s", [(log.foreign_id("test", os.urandom(8).hex()), draft)])


def test_plans_and_decisions(log):
    """The newest plan of each task, decisions until they are superseded."""
    session = log.session("s")
    session.mutation("plan-set", "old", agent="a")
    session.mutation("plan-set", "new", agent="b")
    session.mutation("plan-set", "of t", agent="b", task_id="t")
    first = session.mutation("decision-made", "no key", agent="a")
    session.mutation("decision-made", "instead", agent="a", links={"supersedes": [first.id]})
    session.mutation("decision-made", 8080, agent="a", state_key="port")
    found = session.state("plans")
    assert {key: plan["value"] for key, plan in found["plans"].items()} == {"": "new", "t": "of t"}
    assert [decision["value"] for decision in found["other_decisions"]] == ["instead"]
    assert found["decisions"]["port"]["value"] == 8080


def test_what_is_given_is_the_callers_own(log):
    """Whatever a caller does with a state changes no later one."""
    session = log.session("s")
    session.request("x", agent="a", to="b")
    for wanted in (*NAMES, WORDS):
        first = json.dumps(session.state(wanted))
        ruin(session.state(wanted))
        assert first == json.dumps(session.state(wanted)), wanted


def ruin(found):
    """Change everything in a JSON value."""
    for item in list(found.values() if isinstance(found, dict) else found):
        if isinstance(item, dict | list):
            ruin(item)
    found.clear()


# A caller's own


def test_a_plain_function_is_a_projection(log):
    """Given as it is, or by its name once registered; the other names stand as they are."""
    session = log.session("s")
    session.message("one two two", agent="a")
    assert session.state(WORDS) == {"one": 1, "two": 2}
    log.register(WORDS)
    assert session.state("words") == {"one": 1, "two": 2}
    assert log.projections() == sorted([*NAMES, "words"])
    counted = Projection(
        "count", lambda state, event: state + 1, initial=0, render=lambda state, look: [state]
    )
    assert session.state(counted) == [2]


def test_only_the_events_that_a_fold_needs_come_to_it(log):
    """By type, kind, family of kinds, performative and state key, joined by or; without content if it wants none."""
    session = log.session("s")
    session.message("a", agent="a", performative="inform")
    session.tool_call("x", {"secret": 1}, agent="a")
    session.mutation("acme-one", agent="a")
    session.mutation("acmeish", agent="a")
    session.mutation("state-set", 1, agent="a", state_key="k")

    def seqs(**needs):
        return session.state(
            Projection("seqs", lambda state, event: [*state, event.seq], initial=[], **needs)
        )

    assert seqs() == [1, 2, 3, 4, 5, 6]
    assert seqs(types=["tool_call"]) == [3]
    assert seqs(kinds=["acme-*"]) == [4]
    assert seqs(kinds=["acmeish", "nobody-uses-it"]) == [5]
    assert seqs(performatives=["inform"], keyed=True) == [2, 6]
    bare = Projection(
        "bare",
        lambda state, event: [*state, event.args],
        initial=[],
        types=["tool_call"],
        reads_content=False,
    )
    assert session.state(bare) == [None]


def test_a_fold_that_raises_is_named_with_its_event(log):
    """The error says which projection and which event; the log, and the next call, are unharmed."""
    session = log.session("s")
    session.message("fine", agent="a")
    bad = session.message("bad", agent="a")
    broken = [True]

    def fold(state, event):
        state["seen"] = event.seq
        if broken[0] and event.body == "bad":
            raise KeyError("secret text")

    projection = Projection("mine", fold)
    session.state(projection, at=2)
    with pytest.raises(ProjectionFailed) as failed:
        session.state(projection)
    assert (failed.value.projection, failed.value.seq, failed.value.event_id) == ("mine", bad.seq, bad.id)
    assert "secret text" not in str(failed.value)
    assert isinstance(failed.value.__cause__, KeyError)
    broken[0] = False
    assert session.state(projection) == {"seen": bad.seq}
    assert list(log.verify(projections=True)) == []
    shown = Projection("shown", fold, render=lambda state, look: state["no such"])
    with pytest.raises(ProjectionFailed) as failed:
        session.state(shown)
    assert failed.value.event_id is None


@pytest.mark.parametrize("state", [{1: "x"}, {"x": {1, 2}}, float("nan"), {"x": b""}])
def test_a_state_that_is_no_json_is_refused(log, state):
    """What would not come back the same from a snapshot is never gone on from."""
    session = log.session("s")
    session.message("x", agent="a")
    with pytest.raises(ProjectionFailed) as failed:
        session.state(Projection("mine", lambda _state, event: state))
    assert isinstance(failed.value.__cause__, InvalidEvent)


@pytest.mark.parametrize(
    "keys",
    [
        {"name": ""},
        {"name": 5},
        {"fold": None},
        {"version": -1},
        {"version": True},
        {"types": ["no"]},
        {"initial": {1: 2}},
    ],
)
def test_what_is_no_projection_is_refused(keys):
    """Each with the field that is wrong."""
    with pytest.raises(InvalidEvent):
        Projection(**({"name": "mine", "fold": words} | keys))


def test_a_name_of_convlogs_own_is_not_taken(log):
    """Two folds under one name would go on from each other's snapshots."""
    taken = Projection("tasks", words)
    with pytest.raises(InvalidEvent):
        log.register(taken)
    with pytest.raises(InvalidEvent):
        log.session("s").state(taken)


def test_an_unknown_projection_is_refused_with_the_known_ones(log):
    """The error lists them."""
    with pytest.raises(UnknownProjection) as unknown:
        log.session("s").state("nope")
    assert (unknown.value.name, unknown.value.known) == ("nope", NAMES)


@pytest.mark.parametrize("at", [-1, 3, 10**30])
def test_a_point_beyond_the_end_is_refused(log, at):
    """There is no state there yet."""
    log.session("s").message("x", agent="a")
    with pytest.raises(UnknownReference):
        log.session("s").state(at=at)


# Snapshots


def test_a_long_fold_is_kept_and_gone_on_from(store_path, monkeypatch):
    """Another handle folds only what came after the snapshot; a short fold keeps none."""
    with ConversationLog.open(store_path, durability="normal") as log:
        session = log.session("s")
        session.append_many(
            [Draft(type="message", agent="a", body=f"w{n % 5}") for n in range(engine.SNAPSHOT_EVENTS - 2)]
        )
        session.state(WORDS)
        assert snapshot_rows(log) == []
        session.append_many([Draft(type="message", agent="a", body="x")] * engine.SNAPSHOT_EVENTS)
        session.state(WORDS)
        head = session.head
        assert [(name, seq) for name, seq, _ in snapshot_rows(log)] == [("words", head)]
        session.message("last", agent="b")
    folded = []

    def counting(state, event):
        folded.append(event.seq)
        words(state, event)

    with ConversationLog.open(store_path, read_only=True) as log:
        found = log.session("s").state(Projection("words", counting))
        assert folded == [head + 1]
        assert found["last"] == 1
        newer = Projection("words", counting, version=2)
        folded.clear()
        assert log.session("s").state(newer) == found
        assert len(folded) == head + 1, "another version goes on from nobody else's"
        assert len(snapshot_rows(log)) == 1, "a read-only handle keeps none"


def test_older_snapshots_are_dropped_with_their_keys(log, eager):
    """There is one snapshot of each projection, and the keys of those before are dead."""
    session = log.session("s")
    slots = []
    for _ in range(4):
        session.append_many([Draft(type="message", agent="a", body="x")] * 6)
        session.state(WORDS)
        ((_, seq, slot),) = snapshot_rows(log)
        assert seq == session.head
        slots.append(slot)
    assert [isinstance(key_of(log, slot), bytes) for slot in slots] == [False, False, False, True]
    assert list(log.verify(projections=True)) == []


def test_redaction_drops_what_covers_the_event_and_nothing_else(log, eager):
    """The snapshot's key dies with the payload's; those that end before it, or are of other sessions, stay."""
    for name in ("s", "other"):
        log.session(name).append_many([Draft(type="message", agent="a", body=f"xyzzy{n}") for n in range(9)])
        log.session(name).state(WORDS)
    rows = snapshot_rows(log)
    assert len(rows) == 2
    late = log.session("s").message("late", agent="a")
    log.redact(events=[late.id], reason="test", by="ops")
    assert snapshot_rows(log) == rows
    log.redact(events=[log.session("s").event(3).id], reason="test", by="ops")
    left = snapshot_rows(log)
    assert len(left) == 1
    (gone,) = [slot for _, _, slot in rows if slot not in {slot for _, _, slot in left}]
    assert not isinstance(key_of(log, gone), bytes)
    assert "xyzzy1" not in log.session("s").state(WORDS)
    assert "xyzzy1" in log.session("other").state(WORDS)


def test_no_remembered_state_outlives_the_content(store_path):
    """A handle that had folded it gives it no more once another one erased it."""
    with ConversationLog.open(store_path) as log, ConversationLog.open(store_path) as other:
        session = log.session("s")
        leaked = session.message("hunter2 hunter2", agent="a")
        assert session.state(WORDS) == {"hunter2": 2}
        other.redact(events=[leaked.id], reason="secret_leak", by="ops")
        assert session.state(WORDS) == {}


@pytest.mark.parametrize("when", ["before", "between"])
def test_nothing_is_kept_when_an_erasure_began_meanwhile(store_path, eager, monkeypatch, when):
    """A fold that read what is being erased leaves no snapshot, whenever the erasure began."""
    with ConversationLog.open(store_path) as log, ConversationLog.open(store_path) as other:
        session = log.session("s")
        session.append_many([Draft(type="message", agent="a", body="xyzzy")] * 9)
        leaked = session.event(5)
        keep = snapshots.Snapshots.keep

        def late(self, *given):
            other.redact(events=[leaked.id], reason="test", by="ops")
            return keep(self, *given)

        if when == "between":
            monkeypatch.setattr(snapshots.Snapshots, "keep", late)
            session.state(WORDS)
        else:
            intend(other, leaked)
            session.state(WORDS)
        assert snapshot_rows(log) == []


def intend(log, event):
    """Decide an erasure, as a process that dies right behind it does."""
    store = log._store
    eraser = Eraser(store.database, store.keystore, log.reader.store_id, log._clock, store.writer)
    eraser.intend(Scope("event", (event.id,)), "ops", "test")


DYING = """
import os, signal, sys
from convlog_sqlite import ConversationLog
from convlog_sqlite.store import erasing
with ConversationLog.open(sys.argv[1]) as log:
    setattr(erasing.Eraser, "_wipe", lambda *given: os.kill(os.getpid(), signal.SIGKILL))
    log.redact(events=[sys.argv[2]], reason="test", by="ops")
"""


def test_a_crash_in_the_middle_of_an_erasure_leaves_no_snapshot_to_read(store_path, eager):
    """Its key died with the payload's; the next open for writing forgets the rest."""
    with ConversationLog.open(store_path) as log:
        session = log.session("s")
        leaked = session.message("hunter2", agent="a")
        session.append_many([Draft(type="message", agent="a", body="x")] * 9)
        session.state(WORDS)
        ((_, _, slot),) = snapshot_rows(log)
    done = subprocess.run([sys.executable, "-c", DYING, str(store_path), leaked.id], check=False)
    assert done.returncode == -signal.SIGKILL
    with ConversationLog.open(store_path, read_only=True) as log:
        assert not isinstance(key_of(log, slot), bytes)
        assert len(snapshot_rows(log)) == 1, "the row is still there"
        assert log.session("s").state(WORDS) == {"x": 9}
    with ConversationLog.open(store_path) as log:
        assert snapshot_rows(log) == []
        assert log.session("s").state(WORDS) == {"x": 9}
        assert list(log.verify(projections=True)) == []


def test_a_snapshot_without_its_key_is_as_good_as_none(store_path, eager):
    """What a crash between the key and the row leaves behind costs time only, and is cleared by the next."""
    with ConversationLog.open(store_path) as log:
        session = log.session("s")
        session.append_many([Draft(type="message", agent="a", body="x")] * 9)
        found = session.state(WORDS)
        ((_, _, slot),) = snapshot_rows(log)
        log._store.keystore.destroy({slot: bytes(40)})
    with ConversationLog.open(store_path) as log:
        session = log.session("s")
        assert session.state(WORDS) == found
        session.append_many([Draft(type="message", agent="a", body="x")] * 9)
        session.state(WORDS)
        assert len(snapshot_rows(log)) == 1


def test_a_snapshot_that_cannot_be_written_fails_nothing(log, eager, monkeypatch):
    """A full disk is no reason not to answer, and it is not tried again at once."""
    tried = []

    def full(*_given):
        tried.append(1)
        raise StoreFull("log.db")

    monkeypatch.setattr(snapshots.Snapshots, "keep", full)
    session = log.session("s")
    session.append_many([Draft(type="message", agent="a", body="x")] * 9)
    assert [session.state(WORDS), session.state(WORDS)] == [{"x": 9}, {"x": 9}]
    assert len(tried) == 1


def test_a_large_state_is_kept_less_often(log, monkeypatch):
    """What a snapshot costs stays small beside the events that it saves folding."""
    monkeypatch.setattr(engine, "SNAPSHOT_EVENTS", 5)
    bulky = Projection("bulky", lambda state, event: "x" * 20_000, initial="")
    session = log.session("s")
    for _ in range(10):
        session.append_many([Draft(type="message", agent="a", body="x")] * 6)
        session.state(bulky)
    (seq,) = [seq for _, seq, _ in snapshot_rows(log)]
    assert 20_000 // 512 <= seq < session.head


def test_rebuild_replaces_what_was_kept(log, eager):
    """A wrong snapshot is found by verify and mended by a rebuild."""
    session = log.session("s")
    session.append_many([Draft(type="tool_call", agent="a", tool="x", args={})] * 9)
    right = session.state("calls")
    projections = log._projections
    now = projections._now("s")
    subject = engine._subject(now.place, engine.SHIPPED["calls"])
    projections._snapshots.forget(subject)
    projections._snapshots.keep(subject, session.head, {"open": {}, "answered": {}}, now.generation)
    (finding,) = log.verify(projections=True)
    assert (finding.rule, finding.session, finding.seq) == ("projection", "s", session.head)
    assert session.state("calls", rebuild=True) == right
    assert list(log.verify(projections=True)) == []


def test_verify_compares_what_appends_are_judged_by(log):
    """A changed table of heads is found."""
    session = log.session("s")
    session.mutation("state-set", 1, agent="a", state_key="k")
    assert list(log.verify(projections=True)) == []
    with log._store.database.write() as connection:
        connection.execute("UPDATE state_head SET pos = pos - 1")
    assert {finding.rule for finding in log.verify("s", projections=True)} == {"projection"}
    assert list(log.verify("s")) == []


RACER = """
import sys
from convlog_sqlite import ConversationLog, Projection
from convlog_sqlite.projections import standing
standing.SNAPSHOT_EVENTS, standing._BYTES_AN_EVENT = 3, 10**6
count = Projection("count", lambda state, event: {"n": state.get("n", 0) + 1})
with ConversationLog.open(sys.argv[1], durability="normal") as log:
    session = log.session("s")
    for _ in range(60):
        session.message("x", agent=sys.argv[2])
        head = session.head
        assert session.state(count, at=head) == session.state(count, at=head, rebuild=True) == {"n": head}
        session.state(count)
        assert session.state("agents")[sys.argv[2]]["events"] >= 1
"""


def test_two_processes_at_once_keep_one_snapshot(store_path):
    """Both fold, keep and drop at the same time; what is left is one, right, and nothing fails."""
    ConversationLog.init(store_path).close()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(store_path), name], stderr=subprocess.PIPE, text=True
        )
        for name in ("a", "b")
    ]
    assert [(racer.communicate(timeout=120)[1], racer.returncode) for racer in racers] == [("", 0)] * 2
    with ConversationLog.open(store_path) as log:
        assert log.session("s").state("agents")["a"]["events"] in (60, 61)
        assert list(log.verify(projections=True)) == []


def test_an_ephemeral_log_has_states_and_no_snapshots(eager):
    """Folded in memory, kept nowhere."""
    with ConversationLog.ephemeral() as log:
        session = log.session("s")
        session.append_many([Draft(type="message", agent="a", body="x")] * 9)
        assert session.state(WORDS) == {"x": 9}
        assert snapshot_rows(log) == []


def test_no_content_stands_in_a_snapshot_of_convlogs_own(log, eager):
    """Shipped projections keep places, never values."""
    session = log.session("s")
    for number in range(9):
        session.mutation("decision-made", {"why": "xyzzy"}, agent="a", state_key=f"k{number}")
        session.mutation("plan-set", "xyzzy", agent="a")
        session.mutation("skill-activated", "xyzzy", agent="a")
    for name in NAMES:
        session.state(name)
        seq, state = log._projections.kept("s", name)
        assert seq == session.head
        assert "xyzzy" not in json.dumps(state)


def test_a_fold_may_ask_for_another_state(log):
    """One projection may stand on another."""
    session = log.session("s")
    session.message("x", agent="a")
    nested = Projection("nested", lambda state, event: len(session.state("agents")), initial=0)
    assert session.state(nested) == 1


def test_the_async_twins(store_path):
    """The same states, kinds and differences, awaited."""

    async def body():
        async with AsyncConversationLog.open(store_path) as log:
            session = log.session("s")
            await session.mutation("acme-done", 1, agent="a", task_id="t", state_key="k")
            await log.register(WORDS)
            await log.set_task_kind("acme-done", "done", by="ops")
            assert (await log.task_kinds())["acme-done"] == "done"
            assert "words" in await log.projections()
            assert [found async for found in log.verify(projections=True)] == []
            (difference,) = await session.against({"k": 2})
            assert (difference.pointer, difference.given, difference.logged) == ("/k", 2, 1)
            return await session.state(), await session.state("tasks", at=2, rebuild=True)

    state, tasks = asyncio.run(body())
    assert (state["k"]["value"], tasks["t"]["status"]) == (1, "done")


# Against a harness's own state


def test_every_difference_is_named(log):
    """By pointer and side, deep inside a value too."""
    session = log.session("s")
    session.mutation("state-set", {"a": [1, 2], "b": 1}, agent="a", state_key="c/fg")
    first = session.mutation("state-set", 1, agent="a", state_key="port")
    for agent in "ab":
        session.mutation("state-set", agent, agent=agent, state_key="port", links={"supersedes": [first.id]})
    gone = session.mutation("state-set", 1, agent="a", state_key="gone")
    log.redact(events=[gone.id], reason="test", by="ops")
    session.mutation("task-done", agent="a", task_id="t")
    session.mutation("state-set", None, agent="a", state_key="null")
    given = {"c/fg": {"a": [1, 3, 4], "b": True}, "port": "a", "more": 1}
    found = [(one.pointer, one.what) for one in session.against(given)]
    assert found == [
        ("/c~1fg/a/1", "differs"),
        ("/c~1fg/a/2", "only-given"),
        ("/c~1fg/b", "differs"),
        ("/port", "conflict"),
        ("/more", "only-given"),
        ("/gone", "unreadable"),
        ("/null", "only-logged"),
    ]
    assert session.against({"c/fg": {"b": 1, "a": [1, 2]}}, at=2) == []
    with pytest.raises(InvalidEvent):
        session.against({"x": {1}})


# Views


def shell(path, query):
    """Rows as a shell gets them that may only read; a process of its own, with an SQLite of its own."""
    program = """
        import json, sqlite3, sys
        database = sqlite3.connect(f"file:{sys.argv[1]}/log.db?mode=ro", uri=True)
        print(json.dumps(database.execute(sys.argv[2]).fetchall()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path), query],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_views_say_what_the_projections_say(log, store_path):
    """A read-only shell beside an open log sees the same tasks, calls, agents, threads and conflicts."""
    chance = random.Random(7)
    session = log.session("s")
    writing = Writing(session, chance)
    for _ in range(150):
        writing.step()
    tasks = session.state("tasks")
    rows = shell(store_path, "SELECT task, status, agent, seq, event FROM tasks WHERE session = 's'")
    seen = {task: (status, by, seq, event) for task, status, by, seq, event in rows}
    assert seen == {
        task: (found["status"], found["by"], found["seq"], found["event"]) for task, found in tasks.items()
    }
    calls = [[item["event"], item["tool"], item["by"]] for item in session.state("calls")["open"]]
    assert (
        shell(store_path, "SELECT event, tool, agent FROM open_calls WHERE session = 's' ORDER BY seq")
        == calls
    )
    agents = [
        [name, found["events"], found["first"], found["last"]]
        for name, found in session.state("agents").items()
    ]
    rows = shell(store_path, "SELECT agent, events, first_seq, last_seq FROM agents WHERE session = 's'")
    assert sorted(rows) == sorted(agents)
    threads = [
        [found["thread"], found["events"], found["last"]]
        for found in session.state("threads")
        if found["thread"]
    ]
    rows = shell(store_path, "SELECT thread, events, last_seq FROM threads WHERE session = 's'")
    assert sorted(rows) == sorted(threads)
    heads = [
        [key, head["by"], head["event"]]
        for key, found in session.state().items()
        for head in found.get("conflict", ())
    ]
    assert heads, "the seed gives at least one conflict"
    rows = shell(store_path, "SELECT state_key, agent, event FROM conflicts WHERE session = 's'")
    assert sorted(rows) == sorted(heads)


def test_the_view_of_effects(log, store_path):
    """Each effect with its state and its worker, by name."""
    proposed = log.session("s").mutation("effect-x", agent="a", effect={"state": "proposed"})
    with log._store.database.write() as connection:
        pos = value(connection, "SELECT max(pos) FROM envelope")
        if value(connection, "SELECT count(*) FROM effect") == 0:
            number = value(connection, "SELECT id FROM session WHERE name = 's'")
            connection.execute("INSERT INTO effect VALUES (?, ?, NULL, 1, ?, NULL)", (pos, number, pos))
    rows = shell(store_path, "SELECT session, effect, state, worker, proposed_by FROM effects")
    assert rows == [["s", proposed.id, "proposed", None, "a"]]


@pytest.mark.parametrize("view", ["tasks", "open_calls", "agents", "threads", "effects", "conflicts"])
def test_a_view_of_one_session_looks_at_that_session_only(log, view):
    """No view walks the events, their envelopes or their postings from end to end, nor sorts a session's events."""
    log.session("s").append_many([Draft(type="message", agent="a", task_id="t", body="x")] * 200)
    with log._store.database.read() as connection:
        rows = fetch(connection, f"EXPLAIN QUERY PLAN SELECT * FROM {view} WHERE session = 's'")
    steps = [step for *_, step in rows]
    assert not [step for step in steps if re.match(r"SCAN (e|v|p|l|event|envelope|posting)\b", step)], steps
    assert not [step for step in steps if re.fullmatch(r"SEARCH e USING PRIMARY KEY \(session=\?\)", step)], (
        steps
    )


def test_a_shell_cannot_write_through_a_view(log, store_path):
    """The database is opened read-only, so nothing of the log can be touched."""
    with pytest.raises(AssertionError, match="readonly"):
        shell(store_path, "DELETE FROM task_kind")


# The command


def convlog(path, *arguments, text=""):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "convlog_sqlite", "--store", str(path), *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


class TestCommand:
    @pytest.fixture
    def store(self, store_path):
        """A closed store with a decision, a call and a task."""
        with ConversationLog.init(store_path) as log:
            session = log.session("s")
            session.mutation("decision-made", 8080, agent="a", state_key="port")
            session.tool_call("grep", {}, agent="a", task_id="t")
            session.mutation("task-started", agent="a", task_id="t")
        return store_path

    def test_it_prints_json(self, store):
        """The state, what is open, and each projection by name."""
        shown = json.loads(convlog(store, "state", "s").stdout)
        assert shown["port"]["value"] == 8080
        assert [item["tool"] for item in json.loads(convlog(store, "state", "s", "--open").stdout)] == [
            "grep"
        ]
        for name in NAMES:
            assert convlog(store, "state", "s", "--projection", name).returncode == 0
        tasks = json.loads(convlog(store, "state", "s", "-p", "tasks", "--rebuild").stdout)
        assert tasks["t"]["status"] == "started"

    def test_it_shows_people_what_stands(self, store):
        """Every projection has a form for the terminal."""
        for name in NAMES:
            done = convlog(store, "--no-color", "state", "s", "-p", name)
            assert done.returncode == 0, done.stderr
        done = convlog(store, "--color", "state", "s")
        assert "port  8080" in done.stdout
        assert "grep t" in convlog(store, "--color", "state", "s", "--open").stdout

    def test_as_of_an_event_or_a_seq(self, store):
        """Itself included; one of another session is refused."""
        shown = json.loads(convlog(store, "state", "s").stdout)
        assert json.loads(convlog(store, "state", "s", "--at", "1").stdout) == {}
        at = json.loads(convlog(store, "state", "s", "--at", shown["port"]["event"][:23]).stdout)
        assert list(at) == ["port"]
        with ConversationLog.open(store) as log:
            other = log.session("other").message("x", agent="a")
        assert convlog(store, "state", "s", "--at", other.id).returncode == 3
        assert convlog(store, "state", "s", "--at", "99").returncode == 3

    def test_against_a_harness(self, store, tmp_path):
        """Status 1 and a line for each difference, 0 where there is none."""
        (tmp_path / "state.json").write_text('{"port": 1, "host": "x"}')
        done = convlog(store, "state", "s", "--against", str(tmp_path / "state.json"))
        assert done.returncode == 1
        assert list(map(json.loads, done.stdout.splitlines())) == [
            {"pointer": "/port", "what": "differs", "given": 1, "logged": 8080},
            {"pointer": "/host", "what": "only-given", "given": "x"},
        ]
        done = convlog(store, "state", "s", "--against", "-", text='{"port": 8080}')
        assert (done.returncode, done.stdout) == (0, "")
        for text in ("[1]", "{", '{"a":1,"a":2}'):
            assert convlog(store, "state", "s", "--against", "-", text=text).returncode == 2

    @pytest.mark.parametrize(
        ("arguments", "status"),
        [
            (("s", "--projection", "nope"), 3),
            (("nowhere",), 3),
            (("s", "--open", "--projection", "state"), 2),
            (("s", "--open", "--against", "-"), 2),
        ],
    )
    def test_what_cannot_be_answered(self, store, arguments, status):
        """Refused or wrong usage, on one line, with nothing on standard output."""
        done = convlog(store, "state", *arguments)
        assert (done.returncode, done.stdout) == (status, "")
        assert "Traceback" not in done.stderr

    def test_a_long_fold_is_kept_for_the_next_call(self, store):
        """The command keeps snapshots as a program does."""
        with ConversationLog.open(store, durability="normal") as log:
            log.session("s").append_many([Draft(type="message", agent="a", body="x")] * 1200)
        assert convlog(store, "state", "s").returncode == 0
        with ConversationLog.open(store) as log:
            assert [name for name, _, _ in snapshot_rows(log)] == ["state"]
        assert convlog(store, "verify", "--projections").returncode == 0
