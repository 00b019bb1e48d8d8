"""Forks: a session that shares the events of another reads as if it had copied them, and owns none of them."""

import random
import subprocess
import sys
import textwrap
import threading

import pytest

from convlog_sqlite import (
    ConversationLog,
    Draft,
    EffectElsewhere,
    InvalidEvent,
    PairingError,
    RetentionPolicy,
    StateConflict,
    StoreCorrupt,
    StoreReadOnly,
    UnderHold,
    UnknownReference,
)

TAMPER = """
import sys, apsw
database = apsw.Connection(sys.argv[1])
for name, in database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
    database.execute(f"DROP TRIGGER {name}")
for statement in sys.argv[2:]:
    database.execute(statement)
"""


def bodies(events):
    """What messages say; the kind of anything else."""
    return [event.body if event.type == "message" else event.kind or event.type for event in events]


@pytest.fixture
def trunk(log):
    """A session `trunk` with its opening and four messages, seq 2 to 5."""
    session = log.session("trunk")
    for text in "abcd":
        session.message(text, agent="ann", task_id=f"t{text}")
    return session


@pytest.fixture
def aged(store_path, clock):
    """A log with a session `trunk` of four messages, forked at seq 3 as `one` with a message, all a day old."""
    with ConversationLog.open(store_path, clock=clock) as log:
        trunk = log.session("trunk")
        for text in "abcd":
            trunk.message(text, agent="ann")
        trunk.fork("one", at=3, agent="ann").message("own", agent="ann")
        clock.advance(86_400)
        yield log, trunk


class TestForking:
    def test_a_fork_goes_on_from_the_point_it_was_made_at(self, log, trunk):
        """Its seq goes on, its reads cross, and neither session sees what the other appended since."""
        fork = trunk.fork("branch", at=3, agent="bo")
        trunk.message("trunk only", agent="ann")
        fork.message("branch only", agent="bo")
        assert bodies(fork.tail()) == ["session-opened", "a", "b", "session-opened", "branch only"]
        assert [event.seq for event in fork.tail()] == [1, 2, 3, 4, 5]
        assert [event.session for event in fork.tail()] == ["trunk"] * 3 + ["branch"] * 2
        assert bodies(trunk.tail(2)) == ["d", "trunk only"]
        assert fork.head == 5

    def test_its_opening_says_where_it_comes_from(self, log, trunk):
        """The envelope of its first event names the event, which erasing its content does not take away."""
        point = trunk.event(4)
        fork = trunk.fork("branch", at=point, agent="bo")
        opening = fork.event(5)
        assert (opening.kind, opening.agent) == ("session-opened", "bo")
        assert opening.links == {"derived_from": [point.id]}
        assert opening.value == {"parent": "trunk", "seq": 4, "event": point.id}
        (summary,) = [one for one in log.sessions() if one.id == "branch"]
        assert (summary.parent, summary.base, summary.events) == ("trunk", 4, 1)

    def test_without_a_point_everything_is_shared(self, trunk):
        """The default is the newest event."""
        assert bodies(trunk.fork("branch", agent="bo").read(limit=5)) == bodies(trunk.read())

    def test_a_fork_of_a_fork_at_what_that_shares_is_a_fork_of_its_owner(self, log, trunk):
        """So every part of a line holds events, however often the same beginning is forked."""
        first = trunk.fork("first", at=4, agent="bo")
        second = first.fork("second", at=2, agent="bo")
        third = second.fork("third", agent="bo")
        fourth = third.fork("fourth", at=1, agent="bo")
        parents = {one.id: (one.parent, one.base) for one in log.sessions() if one.parent}
        assert parents == {
            "first": ("trunk", 4),
            "second": ("trunk", 2),
            "third": ("second", 3),
            "fourth": ("trunk", 1),
        }
        assert bodies(third.tail()) == ["session-opened", "a", "session-opened", "session-opened"]
        assert bodies(fourth.tail()) == ["session-opened", "session-opened"]

    def test_the_tenant_is_inherited(self, log):
        """A fork belongs to whom its parent belongs to."""
        log.session("s", tenant="acme").message("x", agent="a")
        fork = log.session("s").fork("f", agent="a")
        assert log.session("f", tenant="acme").message("y", agent="a").tenant == "acme"
        assert fork.event(3).tenant == "acme"
        with pytest.raises(UnknownReference):
            log.session("f", tenant="other")

    def test_it_takes_the_same_rows_in_any_length_of_session(self, log):
        """Nothing is copied: one event, its postings by agent and kind, one session and one fork come to stand."""
        session = log.session("long")
        for _ in range(3):
            session.tool_call("t", agent="a")
        tables = ("event", "envelope", "payload", "posting", "open_call", "session", "fork", "link")

        def sizes():
            with log._store.database.read() as connection:
                return [next(connection.execute(f"SELECT count(*) FROM {table}"))[0] for table in tables]

        before = sizes()
        session.fork("f", agent="a")
        assert [after - old for after, old in zip(sizes(), before, strict=True)] == [1, 1, 1, 2, 0, 1, 1, 1]

    @pytest.mark.parametrize("new_id", ["trunk", "other"])
    def test_an_id_that_exists_is_refused(self, log, trunk, new_id):
        """A session id is used once, and nothing is written."""
        log.session("other").message("x", agent="a")
        pos, _ = log.reader.store_head()
        with pytest.raises(InvalidEvent) as refused:
            trunk.fork(new_id, agent="bo")
        assert refused.value.pointer == "/session"
        assert log.reader.store_head()[0] == pos
        assert list(log.verify()) == []

    @pytest.mark.parametrize("new_id", ["Trunk", "_store", "", "a/b", "x.", "CON\n"])
    def test_an_id_that_is_none_is_refused(self, trunk, new_id):
        """The rules for session ids hold, case included."""
        with pytest.raises(InvalidEvent):
            trunk.fork(new_id, agent="bo")

    def test_the_store_session_and_what_does_not_exist_are_not_forked(self, log):
        """`_store` is convlog's own."""
        with pytest.raises(InvalidEvent):
            log.session("_store").fork("f", agent="a")
        with pytest.raises(UnknownReference):
            log.session("nowhere").fork("f", agent="a")
        assert [one.id for one in log.sessions()] == ["_store"]

    @pytest.mark.parametrize("point", [0, -1, 6, 2**70, "0199", "zz", True, 2.0, None.__class__])
    def test_a_point_that_is_none_is_refused(self, trunk, point):
        """In front of the beginning, behind the end, or no point at all."""
        with pytest.raises((UnknownReference, InvalidEvent)):
            trunk.fork("f", at=point, agent="a")

    def test_a_bad_agent_is_refused(self, log, trunk):
        """Who forks it is a name."""
        with pytest.raises(InvalidEvent):
            trunk.fork("f", agent="")
        assert log.reader.find_session("f") is None

    def test_an_event_of_the_parent_behind_the_fork_point_is_no_point_of_the_fork(self, trunk):
        """What a fork does not show, it cannot be forked at or read as of."""
        fork = trunk.fork("f", at=3, agent="a")
        with pytest.raises(InvalidEvent):
            fork.fork("g", at=trunk.event(4), agent="a")
        assert fork.fork("g", at=trunk.event(3), agent="a").head == 4

    def test_a_read_only_handle_forks_nothing(self, log, trunk):
        """It is refused as any append is."""
        with ConversationLog.open(log.path, read_only=True) as other, pytest.raises(StoreReadOnly):
            other.session("trunk").fork("f", agent="a")

    def test_in_memory_there_is_one_author(self):
        """An ephemeral log forks too, for its only author."""
        with ConversationLog.ephemeral() as log:
            session = log.session("s")
            session.message("x", agent="a")
            with pytest.raises(InvalidEvent):
                session.fork("f", agent="b")
            assert bodies(session.fork("f", agent="a").tail(2)) == ["x", "session-opened"]

    def test_of_two_that_make_the_same_fork_one_is_refused(self, log, trunk):
        """Threads, each with a handle of its own: one fork, whole, and the others are told."""
        outcomes = []

        def make():
            with ConversationLog.open(log.path) as other:
                try:
                    outcomes.append(other.session("trunk").fork("f", agent="a").id)
                except InvalidEvent as refused:
                    outcomes.append(refused.pointer)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["/session"] * 3 + ["f"]
        assert list(log.verify()) == []

    def test_a_process_that_is_killed_in_the_middle_leaves_no_half_of_a_fork(self, log, trunk):
        """The session, what it was forked from and its opening come in one transaction."""
        program = """
            import os, sys
            from convlog_sqlite import ConversationLog
            from convlog_sqlite.store.writing import Batch
            where = sys.argv[2]
            before = getattr(Batch, where)
            def killed(*arguments):
                if where == "flush":
                    before(*arguments)
                os._exit(9)
            with ConversationLog.open(sys.argv[1]) as log:
                setattr(Batch, where, killed)
                log.session("trunk").fork("f", agent="a")
        """
        for where in ("add", "flush"):
            done = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(program), str(log.path), where], check=False
            )
            assert done.returncode == 9
            assert log.reader.find_session("f") is None
        assert trunk.fork("f", agent="a").head == 6
        assert list(log.verify()) == []


class TestMirrors:
    def test_a_fork_s_file_holds_its_own_lines(self, log, trunk):
        """What it shares stands once, in the file of the session that it belongs to; `inherited` asks for all."""
        fork = trunk.fork("branch", at=3, agent="bo")
        fork.message("own", agent="bo")
        own = list(fork.jsonl())
        assert log.mirror.path("branch").read_bytes() == b"".join(own)
        assert len(own) == 2
        assert list(fork.jsonl(inherited=True)) == list(trunk.jsonl())[:3] + own
        assert list(log.lines("branch")) == own
        assert log.mirror.update() == {"_store": 0, "branch": 0, "trunk": 0}

    def test_a_lost_file_is_made_anew(self, log, trunk):
        """Bringing it up starts behind the fork point."""
        fork = trunk.fork("branch", at=3, agent="bo")
        before = log.mirror.path("branch").read_bytes()
        log.mirror.path("branch").unlink()
        log.mirror.update("branch")
        assert log.mirror.path("branch").read_bytes() == before == b"".join(fork.jsonl())

    def test_following_starts_in_what_is_shared(self, log, trunk):
        """A follower from the beginning gets every event once, in order."""
        fork = trunk.fork("branch", at=3, agent="bo")
        fork.message("own", agent="bo")
        assert [event.seq for event in fork.follow(0, timeout=0.01)] == [1, 2, 3, 4, 5]


class TestCalls:
    def test_a_call_may_be_answered_in_each_branch(self, log, trunk):
        """Open where it was forked, it waits in both, and each takes its own result, once."""
        call = trunk.tool_call("shell", {"command": "ls"}, agent="ann", task_id="t")
        one, two = trunk.fork("one", agent="ann"), trunk.fork("two", agent="ann")
        assert [found.id for found in one.open_calls()] == [call.id]
        result = one.tool_result(call, "in one", agent="ann")
        assert (result.tool, result.task_id, result.parent_id) == ("shell", "t", call.id)
        assert one.open_calls() == []
        assert (
            [found.id for found in two.open_calls()]
            == [found.id for found in trunk.open_calls()]
            == [call.id]
        )
        two.tool_result(call, "in two", agent="ann")
        trunk.tool_result(call, "in the trunk", agent="ann")
        for session in (one, two, trunk):
            with pytest.raises(PairingError):
                session.tool_result(call, "again", agent="ann")
        assert bodies(one.tail(1, pairs=True)) == ["tool_call", "tool_result"]
        assert list(log.verify()) == []

    def test_a_call_that_was_answered_before_the_fork_takes_no_other_result(self, trunk):
        """Nor one in a fork of a fork, nor twice in one batch."""
        call = trunk.tool_call("shell", agent="ann")
        deep = trunk.fork("one", agent="ann").fork("two", agent="ann")
        early = trunk.fork("early", at=call, agent="ann")
        trunk.tool_result(call, "x", agent="ann")
        late = trunk.fork("late", agent="ann")
        with pytest.raises(PairingError):
            late.tool_result(call, "again", agent="ann")
        deep.tool_result(call, "x", agent="ann")
        deeper = deep.fork("deeper", agent="ann")
        with pytest.raises(PairingError):
            deeper.tool_result(call, "again", agent="ann")
        early.tool_result(call, "x", agent="ann")

    def test_a_batch_answers_it_once(self, trunk):
        """The second of two results in one batch is refused, and with it the batch."""
        call = trunk.tool_call("shell", agent="ann")
        fork = trunk.fork("one", agent="ann")
        answer = Draft(type="tool_result", agent="ann", call_id=call.id, result="x")
        with pytest.raises(PairingError) as refused:
            fork.append_many([answer, answer])
        assert refused.value.index == 1
        assert [found.id for found in fork.open_calls()] == [call.id]

    def test_a_call_behind_the_fork_point_belongs_to_another_session(self, trunk):
        """A fork shows nothing that its parent appended later."""
        fork = trunk.fork("one", agent="ann")
        call = trunk.tool_call("shell", agent="ann")
        with pytest.raises(PairingError):
            fork.tool_result(call, "x", agent="ann")

    def test_why_crosses_into_what_is_shared(self, log, trunk):
        """A result in a fork leads to its call."""
        call = trunk.tool_call("shell", agent="ann")
        cause = trunk.message("because", agent="ann")
        result = trunk.fork("one", agent="ann").tool_result(call, "x", agent="ann", parent_id=cause.id)
        edges = {(edge.relation, edge.target) for edge in log.why(result.id).edges}
        assert {("call_id", call.id), ("parent_id", cause.id)} <= edges


class TestState:
    def test_what_stood_at_the_fork_point_stands_in_the_fork(self, log, trunk):
        """A fork decides on what it shares, and its parent never sees it."""
        first = trunk.mutation("state-set", 1, agent="ann", state_key="k")
        fork = trunk.fork("one", agent="ann")
        second = trunk.mutation("state-set", 2, agent="ann", state_key="k", expect=first)
        with pytest.raises(StateConflict):
            fork.mutation("state-set", 3, agent="bo", state_key="k", expect=second)
        mine = fork.mutation("state-set", 3, agent="bo", state_key="k", expect=first)
        assert mine.links["supersedes"] == [first.id]
        with pytest.raises(StateConflict) as refused:
            trunk.mutation("state-set", 4, agent="ann", state_key="k", expect=mine)
        assert refused.value.heads == (second.id,)

    def test_an_effect_is_moved_only_where_it_was_proposed(self, log, trunk):
        """The outside world has no branches: neither a move nor a result of its call lands in a fork."""
        call = trunk.tool_call("deploy", agent="ann", effect={"state": "proposed"})
        fork = trunk.fork("one", agent="ann").fork("two", agent="ann")
        with pytest.raises(EffectElsewhere) as refused:
            fork.mutation("effect-attempted", agent="ann", effect={"state": "attempted", "id": call.id})
        assert (refused.value.effect, refused.value.session) == (call.id, "trunk")
        with pytest.raises(EffectElsewhere):
            fork.tool_result(call, "done", agent="ann")
        with pytest.raises(EffectElsewhere):
            fork.tool_result(call, "no", agent="ann", status="error")
        assert fork.head == 8


class TestErasing:
    def test_what_is_shared_is_erased_in_its_own_session_and_for_all(self, log, trunk):
        """Redacting the fork leaves what it shares; redacting the parent takes it from both."""
        fork = trunk.fork("one", at=3, agent="ann")
        own = fork.message("own", agent="ann")
        log.redact(session="one", reason="test", by="ops")
        assert [event.answer for event in fork.tail(20)] == ["live"] * 3 + ["erased"] * 2 + ["live"]
        assert log.event(own.id).answer == "erased"
        log.redact(session="trunk", reason="test", by="ops")
        assert {event.answer for event in fork.read(limit=3)} == {"erased"}
        assert list(log.verify()) == []

    def test_a_hold_on_a_fork_keeps_what_it_shares(self, log, trunk):
        """Up to the fork point, of whichever parent, and nothing behind it."""
        deep = trunk.fork("one", at=3, agent="ann").fork("two", agent="ann")
        hold = log.place_hold(session=deep.id, reason="legal_order", by="counsel")
        with pytest.raises(UnderHold) as refused:
            log.redact(events=[trunk.event(3).id], reason="test", by="ops")
        assert refused.value.holds == (hold.id,)
        with pytest.raises(UnderHold):
            log.redact(session="one", reason="test", by="ops")
        log.redact(events=[trunk.event(4).id], reason="test", by="ops")
        log.release_hold(hold.id, by="counsel")
        log.redact(events=[trunk.event(3).id], reason="test", by="ops")

    def test_a_hold_on_a_fork_keeps_its_prefix_from_retention(self, aged):
        """The policies of the parent skip what the fork's hold covers, and `explain` says so."""
        log, trunk = aged
        hold = log.place_hold(session="one", reason="legal_order", by="counsel")
        log.set_policy(RetentionPolicy(id="all", match={"type": "message"}, max_age="1h"), by="ops")
        assert hold.id in log.explain(trunk.event(3).id)
        assert hold.id not in log.explain(trunk.event(4).id)
        log.apply_retention(by="ops")
        assert [event.answer for event in trunk.read(limit=5)] == ["live"] * 3 + ["erased"] * 2

    def test_a_policy_for_the_fork_leaves_what_it_shares(self, aged):
        """What is shared expires by the policies of the session that it belongs to."""
        log, trunk = aged
        log.set_policy(RetentionPolicy(id="one", match={"session": "one"}, max_age="1h"), by="ops")
        log.apply_retention(by="ops")
        assert {event.answer for event in trunk.read()} == {"live"}
        assert log.session("one").event(5).answer == "erased"


class TestVerify:
    @pytest.mark.parametrize(
        ("statement", "rules"),
        [
            ("UPDATE fork SET base = 4 WHERE session = {one}", {"fork", "chain"}),
            ("UPDATE session SET base = 2 WHERE id = {one}", {"fork"}),
            ("DELETE FROM fork WHERE session = {one}", {"fork", "chain"}),
            ("UPDATE fork SET parent = {one} WHERE session = {one}", {"fork", "chain"}),
            ("UPDATE fork SET base = 9 WHERE session = {one}", {"fork", "chain"}),
            ("UPDATE event SET answers = 2 WHERE session = {one} AND type = 3", {"pairing"}),
        ],
    )
    def test_a_planted_fault_is_found(self, store_path, statement, rules):
        """What the tables say of a fork is held against its opening, its chain and its line."""
        with ConversationLog.init(store_path, mirror=False) as log:
            trunk = log.session("trunk")
            for text in "abcd":
                trunk.message(text, agent="ann")
            call = trunk.tool_call("shell", agent="ann")
            fork = trunk.fork("one", agent="ann")
            fork.tool_result(call, "x", agent="ann")
            trunk.message("later", agent="ann")
            assert list(log.verify()) == []
            numbers = {name: log.reader.find_session(name).number for name in ("trunk", "one")}
        statements = statement.format(**numbers).split("; ")
        subprocess.run([sys.executable, "-c", TAMPER, str(store_path / "log.db"), *statements], check=True)
        with ConversationLog.open(store_path, read_only=True) as log:
            found = {finding.rule for finding in log.verify()}
        assert rules <= found, found

    def test_a_fork_of_nothing_hides_no_other_session(self, log, trunk):
        """Where a fork's line was changed, it is named, and the others are read and checked as before."""
        trunk.fork("one", agent="ann")
        number = log.reader.find_session("one").number
        log.close()
        change = f"UPDATE fork SET base = 9 WHERE session = {number}"
        subprocess.run([sys.executable, "-c", TAMPER, str(log.path / "log.db"), change], check=True)
        with ConversationLog.open(log.path, read_only=True) as other:
            rules = {(one.rule, one.session) for one in other.verify()}
            assert rules == {("fork", "one"), ("chain", "one"), ("mirror-differs", "one")}
            assert len(other.session("trunk").tail()) == 5
            with pytest.raises(StoreCorrupt):
                other.session("one").tail()

    def test_a_second_result_across_a_fork_is_found(self, store_path):
        """A result that was made to answer a call with a result in what the fork shares is named."""
        with ConversationLog.init(store_path, mirror=False) as log:
            trunk = log.session("trunk")
            waiting = trunk.tool_call("shell", agent="ann")
            answered = trunk.tool_call("shell", agent="ann")
            trunk.tool_result(answered, "x", agent="ann")
            fork = trunk.fork("one", agent="ann")
            result = fork.tool_result(waiting, "x", agent="ann")
            number = log.reader.find_session("one").number
        changes = [
            f"UPDATE event SET answers = {answered.seq} WHERE session = {number} AND type = 3",
            (
                f"UPDATE envelope SET bytes = CAST(replace(CAST(bytes AS TEXT), '{waiting.id}', '{answered.id}') AS BLOB)"
                f" WHERE session = {number}"
            ),
        ]
        subprocess.run([sys.executable, "-c", TAMPER, str(store_path / "log.db"), *changes], check=True)
        with ConversationLog.open(store_path, read_only=True) as log:
            details = {(one.rule, one.detail, one.seq) for one in log.verify("one")}
        assert ("pairing", "the call has two results", result.seq) in details

    def test_what_is_cut_off_the_parent_is_missed_by_the_fork(self, store_path):
        """The chain of a fork goes on from its parent's: a beginning that was rewritten does not fit."""
        with ConversationLog.init(store_path, mirror=False) as log:
            trunk = log.session("trunk")
            trunk.message("a", agent="ann")
            trunk.fork("one", agent="ann")
            number = log.reader.find_session("trunk").number
        change = f"UPDATE envelope SET chain = zeroblob(32) WHERE session = {number} AND seq = 2"
        subprocess.run([sys.executable, "-c", TAMPER, str(store_path / "log.db"), change], check=True)
        with ConversationLog.open(store_path, read_only=True) as log:
            named = {(finding.rule, finding.session) for finding in log.verify()}
        assert named == {("chain", "trunk"), ("chain", "one")}


class Model:
    """A session as a plain list of everything that it shows: ids with what the model must know of each."""

    def __init__(self, session, events=()):
        self.session, self.events = session, list(events)

    def open_calls(self, upto):
        """Seqs of calls without a result among the first `upto` events."""
        answered = {event.call_id for event in self.events[:upto]}
        calls = [event for event in self.events[:upto] if event.type == "tool_call"]
        return [event.seq for event in calls if event.id not in answered]


def grow(chance, model):
    """Append something that the session may hold at this point."""
    session = model.session
    keys = {"agent": chance.choice("abc"), "task_id": chance.choice(["t1", "t2"])}
    if chance.random() < 0.2:
        keys["to"] = ["b"]
    waiting = model.open_calls(len(model.events))
    what = chance.random()
    if what < 0.2 and waiting:
        call = model.events[chance.choice(waiting) - 1]
        event = session.tool_result(call.id, "r", agent=keys["agent"])
    elif what < 0.45:
        event = session.tool_call(chance.choice(["x", "y"]), {}, **keys)
    elif what < 0.6:
        event = session.mutation("state-set", 1, state_key=chance.choice("kl"), **keys)
    else:
        event = session.message("m", **keys)
    if not model.events:
        model.events.append(session.event(1))
    model.events.append(event)


def ids(events):
    """The ids of events, in order."""
    return [event.id for event in events]


FILTERS = (
    {},
    {"agent": "a"},
    {"task_id": "t1", "agent": "b"},
    {"type": "tool_call"},
    {"kind": "state-set"},
    {"to": "b"},
    {"tool": "x", "task_id": "t2"},
    {"kind": "session-opened"},
)


def matches(event, filters):
    """Whether an event is one that a filtered read gives."""
    return all(
        wanted in (event.to or ()) if key == "to" else getattr(event, key) == wanted
        for key, wanted in filters.items()
    )


def check_reads(chance, model):
    """Every read of a session, at a place by chance, against the list."""
    session, events = model.session, model.events
    filters = chance.choice(FILTERS)
    after, before = sorted(chance.choices(range(len(events) + 2), k=2))
    wanted = [e for e in events if after < e.seq < before and matches(e, filters)]
    found, place = [], after
    scan, limit = chance.choice([1, 2, 5, 1000]), chance.choice([1, 3, 1000])
    while place is not None:
        page = session.read(after=place, before=before, limit=limit, max_scan=scan, **filters)
        found += page
        assert page.next is None or page.next > place
        place = page.next
    assert ids(found) == ids(wanted)
    found, place = [], before
    while place is not None:
        page = session.tail(limit, before=place, max_scan=scan, **filters)
        found[:0] = page
        assert page.next is None or page.next < place
        place = page.next
    assert ids(found) == ids([e for e in events if e.seq < before and matches(e, filters)])
    assert ids(session.tail(4, pairs=True)[-4:]) == ids(events[-4:])
    for event in session.tail(4, pairs=True, before=before):
        assert event.call_id is None or event.call_id in ids(session.tail(4, pairs=True, before=before))
    seq = chance.randrange(len(events) + 2)
    assert session.event(seq) == (events[seq - 1] if 0 < seq <= len(events) else None)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_every_read_of_a_fork_is_that_of_a_copy(store_path, depth):
    """Random forks of forks, random appends to all of them, random reads: each is what a plain list would give."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    with ConversationLog.open(store_path, durability="normal") as log:
        models = [Model(log.session("s0"))]
        grow(chance, models[0])
        for step in range(160):
            model = chance.choice(models[-3:] if depth == 2 else models)
            if chance.random() < (0.02, 0.08, 0.2)[depth] and len(models) < 14:
                point = chance.randrange(1, len(model.events) + 1)
                at = chance.choice([point, model.events[point - 1], model.events[point - 1].id])
                forked = model.session.fork(f"s{len(models)}", at=at, agent="f")
                models.append(Model(forked, [*model.events[:point], forked.event(point + 1)]))
            else:
                grow(chance, model)
            if step % 4 == 0:
                check_reads(chance, chance.choice(models))
        for model in models:
            assert ids(model.session.read()) == ids(model.events)
            assert list(model.session.jsonl(inherited=True)) == [e.line for e in model.events]
            assert [event.seq for event in model.session.open_calls()] == model.open_calls(len(model.events))
            for _ in range(6):
                check_reads(chance, model)
                check_moment(chance, model)
        with ConversationLog.open(store_path, read_only=True) as other:
            for model in models:
                assert ids(other.session(model.session.id).tail(1000)) == ids(model.events)
        assert list(log.verify()) == []


def check_moment(chance, model):
    """Every read as of a point by chance is the read of a list that ends there."""
    seq = chance.randrange(1, len(model.events) + 1)
    moment = model.session.at(chance.choice([seq, model.events[seq - 1]]))
    earlier = Model(moment, model.events[:seq])
    check_reads(chance, earlier)
    assert moment.head == seq
    assert list(moment.jsonl(inherited=True)) == [event.line for event in earlier.events]
    found, place = [], 0
    while place is not None:
        page = moment.open_calls(after=place, limit=2, max_scan=3)
        found += page
        place = page.next
    assert [event.seq for event in found] == model.open_calls(seq)


def test_a_deep_line_of_forks_is_read_to_its_beginning(log):
    """Two hundred forks of forks cost a query each, and no recursion."""
    session = log.session("s0")
    session.message("root", agent="a")
    for number in range(1, 200):
        session = session.fork(f"s{number}", agent="a")
    assert [event.seq for event in session.tail(500)] == list(range(1, 202))
    assert bodies(session.read(limit=2)) == ["session-opened", "root"]


def test_state_is_as_of_the_moment_and_goes_on_in_the_fork(log):
    """A moment gives the state of then; a fork starts from it, and what it sets stays its own."""
    session = log.session("s")
    first = session.mutation("state-set", 1, agent="a", state_key="k")
    session.mutation("state-set", 2, agent="a", state_key="k", expect=first)
    then = session.at(first)
    assert then.state()["k"]["value"] == session.state(at=first)["k"]["value"] == 1
    fork = session.fork("f", at=first, agent="b")
    assert fork.state()["k"]["value"] == 1
    fork.mutation("state-set", 3, agent="b", state_key="k", expect=first)
    assert (fork.state()["k"]["value"], session.state()["k"]["value"]) == (3, 2)
