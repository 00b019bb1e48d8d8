"""Participants: what they were shown is noted, what they write says what they had heard, and the log can show it."""

import asyncio
import itertools
import os
import random
import statistics
import time

import apsw
import pytest

from convlog_sqlite import (
    AsyncConversationLog,
    ConversationLog,
    Draft,
    IdempotencyConflict,
    InvalidEvent,
    NotAuthorized,
    RetentionPolicy,
    Select,
    StaleContext,
    StoreBusy,
    StoreReadOnly,
    UnknownReference,
    View,
)
from convlog_sqlite.store import lapsing
from convlog_sqlite.store.committing import Writer

SEED = int(os.environ.get("CONVLOG_TEST_SEED", "20261201"))
TABLES = ("reading", "informed", "lapse")
EVERYTHING = {"view": "everything"}


@pytest.fixture
def session(log):
    """A session in which a user has asked for something."""
    session = log.session("build")
    session.message("Add JWT auth.", agent="user", to=["orchestrator"])
    return session


class TestJoining:
    def test_an_agent_joins_once(self, session):
        """The same role and view again write nothing; another role does, and so does coming back."""
        session.join("w", role="worker")
        session.join("w", role="worker")
        session.join("w")
        assert [event.role for event in session.read(kind="agent-joined")] == ["worker"]
        assert session.join("w", role="verifier").view == "verifier@0"
        session.join("w").leave()
        session.join("w")
        said = [(event.kind, event.role) for event in session.read(agent="w")]
        assert said == [
            ("agent-joined", "worker"),
            ("agent-joined", "verifier"),
            ("agent-left", "verifier"),
            ("agent-joined", "verifier"),
        ]

    def test_the_view_it_asked_for_stays_its_own(self, log, session):
        """By its name, whatever its version; of one that took the view of its role, that of its role."""
        log.define_view(View(name="mine", selects=[Select(authored=True)]), by="ops")
        session.join("w", role="worker", view="mine")
        log.define_view(View(name="mine", selects=[Select(addressed=True)]), by="ops")
        assert session.join("w").view == "mine@2"
        assert session.listener("w").view == "mine@2"
        session.join("x", role="worker")
        assert session.listener("x").view == "worker@0"
        session.grant_role("x", "auditor", agent="ops")
        assert session.listener("x").view == "auditor@0"

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            ({}, NotAuthorized),
            ({"view": "nowhere"}, UnknownReference),
            ({"role": "nobody"}, UnknownReference),
            ({"role": "worker", "sensitivity": "secret"}, InvalidEvent),
            ({"role": "worker", "purpose": "a\nb"}, InvalidEvent),
            ({"role": "worker", "purposes": ["x", "x"]}, InvalidEvent),
        ],
        ids=str,
    )
    def test_who_cannot_take_part_leaves_no_trace(self, session, given, error):
        """A view, role or default that is none is refused, and nothing was written."""
        before = session.head
        with pytest.raises(error):
            session.join("w", **given)
        assert session.head == before

    def test_a_name_that_is_too_long_is_refused(self, session):
        """With the rule, before anything is written."""
        with pytest.raises(InvalidEvent) as refused:
            session.join("w" * 251, role="worker")
        assert refused.value.pointer == "/agent"
        assert session.join("w" * 250, role="worker").agent == "w" * 250

    def test_what_it_said_at_joining_stands_in_its_events(self, session):
        """Role, sensitivity, purposes and subjects, unless an event says otherwise; not in its coming and going."""
        given = {"sensitivity": "confidential", "purposes": ["support"], "subjects": ["Ann Lee"]}
        worker = session.join("w", role="worker", **given)
        event, other = worker.message("a"), worker.message("b", sensitivity="restricted", role="verifier")
        assert (event.role, event.sensitivity, event.purposes) == ("worker", "confidential", ["support"])
        assert len(event.subjects) == 1
        assert (other.role, other.sensitivity) == ("verifier", "restricted")
        joined = session.read(kind="agent-joined")[0]
        assert (joined.sensitivity, joined.purposes, joined.subjects) == ("internal", (), ())

    def test_a_participant_writes_as_itself(self, session):
        """The draft of another agent is refused; so is one of who has left."""
        worker = session.join("w", role="worker")
        with pytest.raises(InvalidEvent) as refused:
            worker.append(Draft(type="message", agent="x", body="x"))
        assert refused.value.pointer == "/agent"
        assert worker.append_many([]) == []
        worker.leave()
        with pytest.raises(NotAuthorized):
            worker.message("x")

    def test_every_verb_says_what_it_had_heard(self, session):
        """Those of a session without the agent, effects and approvals among them."""
        worker, boss = session.join("w", role="worker"), session.join("b", role="orchestrator")
        for one in (worker, boss):
            one.listen()
        call = worker.tool_call("pytest", {"k": 1})
        worker.tool_result(call, "ok")
        worker.mutation("decision-made", 1, state_key="port")
        worker.claim("jwt", lease=60)
        worker.depends("jwt", "login")
        worker.release("jwt")
        boss.grant_role("w", "dba")
        proposal = worker.propose("merge?", approver="orchestrator-lead")
        session.grant_role("b", "orchestrator-lead", agent="ops")
        boss.approve(proposal)
        boss.reject(worker.request("really?", to="b"))
        paid = worker.once("pay", {"n": 1}, idempotency_key="p", run=lambda key: key)
        with worker.effect("mail", idempotency_key="m") as attempt:
            attempt.result = "sent"
        worker.settle(worker.tool_call("x", effect={"state": "proposed"}, idempotency_key="x"), "withdrawn")
        assert paid.result == "p"
        assert worker.recover().in_doubt == []
        assert worker.approved(proposal).agent == "b"
        written = [event for event in session.read() if event.agent in ("w", "b")]
        assert len(written) > 20
        assert all(event.seen is not None for event in written)
        assert {event.role for event in written} == {"worker", "orchestrator"}

    def test_processes_that_join_at_once_join_once(self, store_path):
        """Two handles race for the same name: one event says that it is there."""
        with ConversationLog.open(store_path) as one, ConversationLog.open(store_path) as other:
            one.session("s").message("x", agent="a")
            append = Writer.settle
            racing = iter([lambda: other.session("s").join("w", role="worker")])

            def first(writer, requests):
                if (race := next(racing, None)) is not None:
                    race()
                return append(writer, requests)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Writer, "settle", first)
                one.session("s").join("w", role="worker")
            assert len(one.session("s").read(kind="agent-joined")) == 1

    def test_a_store_that_cannot_be_written_is_not_joined(self, session, store_path):
        """It says so; listening there works, and what was read is not kept."""
        session.join("w", role="worker")
        with ConversationLog.open(store_path, read_only=True) as log:
            with pytest.raises(StoreReadOnly):
                log.session("build").join("x", role="worker")
            listener = log.session("build").listener("w")
            assert listener.listen()
            with pytest.raises(StoreReadOnly):
                listener.flush()
        assert session.readings() == []

    def test_an_ephemeral_log_has_its_participant(self):
        """One author, who listens and writes."""
        with ConversationLog.ephemeral() as log:
            worker = log.session("s").join("w", **EVERYTHING)
            worker.listen()
            log.session("s").listening("require", by="w")
            assert worker.message("x").seen["view"] == "everything@0"
            log.session("s").message("y", agent="w")
            worker.flush()
            assert [reading.count for reading in log.session("s").readings()] == [2]


class TestStamps:
    def test_an_event_says_how_far_its_author_had_read(self, session):
        """The seq of the last event that there was, and the view; before the first reading, 0."""
        worker = session.join("w", **EVERYTHING)
        assert worker.message("a").seen == {"seq": 0, "view": "everything@0"}
        worker.listen(1)
        assert worker.message("b").seen == {"seq": 4, "view": "everything@0"}
        session.message("more", agent="user")
        assert worker.message("c").seen == {"seq": 4, "view": "everything@0"}

    def test_a_draft_cannot_say_what_it_has_seen(self, session):
        """Only the store does."""
        with pytest.raises(InvalidEvent):
            Draft.from_dict({"type": "message", "agent": "w", "body": "x", "seen": {"seq": 9, "view": "x@0"}})

    def test_it_follows_on_what_came_later(self, session):
        """Its own last event or the last that it was shown; a result on its call; what names a parent, on that."""
        worker = session.join("w", **EVERYTHING)
        joined = session.tail(1)[0]
        assert worker.message("a").parent_id == joined.id
        asked = session.message("b", agent="user")
        worker.listen(1)
        one, two = worker.append_many([Draft(type="message", agent="w", body=text) for text in "cd"])
        assert (one.parent_id, two.parent_id) == (asked.id, one.id)
        call = worker.tool_call("shell")
        assert worker.tool_result(call, 1).parent_id == call.id
        assert worker.message("e", parent_id=asked.id).parent_id == asked.id

    def test_another_process_goes_on_where_this_one_was(self, session, store_path):
        """A handle that was opened anew knows the last reading and the last event of its agent."""
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        said = worker.message("a")
        with ConversationLog.open(store_path) as log:
            again = log.session("build").participant("w")
            event = again.message("b")
            assert (event.seen, event.parent_id) == (said.seen, said.id)
            assert log.session("build").participant("nobody") is None

    def test_the_same_key_again_gives_the_first_event(self, session):
        """Though its author has read more since, and a default would make another parent; other content is refused."""
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        first = worker.message("a", idempotency_key="k")
        session.message("more", agent="user")
        worker.listen()
        assert worker.message("a", idempotency_key="k") == first
        with pytest.raises(IdempotencyConflict):
            worker.message("b", idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            worker.message("a", idempotency_key="k", task_id="t")

    def test_a_session_may_say_what_is_known_of_its_authors(self, session):
        """`informed` stamps from what is written down; of who has read nothing, an event says nothing."""
        session.listener("w", **EVERYTHING).listen()
        assert session.informed().message("a", agent="w").seen is None, "nothing is written down yet"
        listener = session.listener("w", **EVERYTHING)
        listener.listen()
        listener.flush()
        one, other = session.informed().append_many(
            [Draft(type="message", agent=agent, body="x") for agent in ("w", "x")]
        )
        assert (one.seen, other.seen) == ({"seq": 3, "view": "everything@0"}, None)
        assert session.seen("w", one).reading.upto == 3
        assert session.message("plain", agent="w").seen is None

    def test_other_appends_are_as_they_were(self, session):
        """Whoever does not take part writes no word more than before."""
        assert set(session.message("x", agent="a").envelope) == {
            "v", "id", "seq", "ts", "session", "agent", "type"
        }  # fmt: skip


class TestReadings:
    def test_a_reading_is_written_with_the_append_that_it_informed(self, session, store_path):
        """In the same transaction: before it there is none, after it there is, for every process."""
        worker = session.join("w", role="auditor", purpose="*")
        worker.listen(2)
        with ConversationLog.open(store_path, read_only=True) as other:
            assert other.session("build").readings() == []
            worker.message("x")
            (reading,) = other.session("build").readings()
        assert (reading.reader, reading.role, reading.view, reading.version) == ("w", "auditor", "auditor", 0)
        assert (reading.first, reading.last, reading.upto, reading.count) == (2, 3, 3, 2)

    def test_a_listen_costs_no_commit(self, session):
        """However often; what informed nothing is written many at a time, and when the log is closed."""
        worker = session.join("w", **EVERYTHING)
        committed = Writer.record_readings
        written = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                Writer,
                "record_readings",
                lambda writer, name, noted: (written.append(len(noted)), committed(writer, name, noted)),
            )
            for _ in range(100):
                session.message("x", agent="user")
                worker.listen(3)
                worker.listen(3)
        assert written == [64]
        assert len(session.readings()) == 64

    def test_closing_writes_what_was_read(self, store_path):
        """Of participants that nobody holds any more too."""
        with ConversationLog.open(store_path) as log:
            log.session("s").message("x", agent="a")
            log.session("s").join("w", **EVERYTHING).listen()
        with ConversationLog.open(store_path, read_only=True) as log:
            assert [reading.upto for reading in log.session("s").readings("w")] == [3]

    def test_leaving_writes_what_was_read(self, session):
        """With the event that says so, which rests on it."""
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        event = worker.leave()
        assert session.seen("w", event).reading.upto == event.seq - 1

    def test_many_listeners_are_written_before_they_are_too_many(self, session):
        """What waits for the end of a log is bounded."""
        for number in range(300):
            session.listener(f"w{number}", **EVERYTHING).listen()
        assert len(session.readings(limit=1000)) > 200

    def test_a_store_that_is_busy_is_listened_to_all_the_same(self, session, monkeypatch):
        """Readings that cannot be written wait for the next append."""

        def busy(*_):
            raise StoreBusy("x")

        worker = session.join("w", **EVERYTHING)
        monkeypatch.setattr(Writer, "record_readings", busy)
        for _ in range(70):
            session.message("x", agent="user")
            assert len(worker.listen(2)) == 2
        with pytest.raises(StoreBusy):
            worker.flush()
        worker.message("y")
        assert len(session.readings()) == 70

    def test_a_refused_append_keeps_its_readings_for_the_next(self, session):
        """Alone, and among others that are committed together."""
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        with pytest.raises(UnknownReference):
            worker.message("x", parent_id="00000000-0000-7000-8000-000000000000")
        assert session.readings() == []
        worker.message("y")
        assert len(session.readings()) == 1

    def test_listening_reads_something(self, session):
        """A number of events below one is no listening."""
        worker = session.join("w", **EVERYTHING)
        for call in (lambda: worker.listen(0), lambda: worker.news(0), lambda: session.readings(limit=0)):
            with pytest.raises(ValueError):
                call()

    def test_a_session_without_events_can_be_listened_to(self, log):
        """Nothing is there: that too is written with the first append."""
        session = log.session("new")
        listener = session.listener("w", **EVERYTHING)
        assert listener.listen() == []
        listener.flush()
        assert session.readings() == []
        worker = session.join("w", **EVERYTHING)
        assert worker.message("x").seen == {"seq": 0, "view": "everything@0"}

    def test_a_listen_stays_under_twice_a_tail(self, session):
        """Measured in pairs, in one handle; the readings that it writes now and then included."""
        session.append_many([Draft(type="message", agent="user", body="x" * 900) for _ in range(500)])
        worker = session.join("w", **EVERYTHING)
        ratios = []
        for _ in range(300):
            session.message("x", agent="user")
            begun = time.perf_counter()
            session.tail(20)
            between = time.perf_counter()
            worker.listen(20)
            ended = time.perf_counter()
            ratios.append((ended - between) / (between - begun))
        assert statistics.median(ratios) < 2


class TestNews:
    def test_what_is_new_comes_once_the_last_was_acknowledged(self, session):
        """Oldest first, a page at a time, and again as long as nobody says that it was had."""
        listener = session.listener("w", **EVERYTHING)
        first = listener.news(1)
        assert [event.seq for event in first] == [1]
        assert [event.seq for event in listener.news(1)] == [1]
        listener.acknowledge(first)
        assert listener.heard_upto == 1
        rest = listener.news()
        assert ([event.seq for event in rest], rest.next, rest.upto) == ([2], None, 2)
        listener.acknowledge(rest)
        assert listener.news() == []

    def test_another_handle_goes_on_there(self, session, store_path):
        """Acknowledging writes it down."""
        listener = session.listener("w", **EVERYTHING)
        listener.acknowledge(listener.news())
        session.message("more", agent="user")
        with ConversationLog.open(store_path) as log:
            again = log.session("build").listener("w", **EVERYTHING)
            assert [event.body for event in again.news()] == ["more"]

    def test_what_the_view_hides_is_passed_over(self, session):
        """Nothing comes of it, and it is not looked at again."""
        listener = session.listener("w", role="worker")
        session.message("not yours", agent="user")
        news = listener.news()
        assert (news, news.upto) == ([], 3)
        listener.acknowledge(news)
        assert listener.heard_upto == 3
        listener.acknowledge(listener.news())
        assert len(session.readings("w")) == 1, "of nothing new nothing is written"

    def test_each_view_has_its_own_place(self, session):
        """What was read through one is new in another: nothing is skipped."""
        narrow = session.listener("w", role="worker")
        narrow.acknowledge(narrow.news())
        wide = session.listener("w", **EVERYTHING)
        assert [event.seq for event in wide.news()] == [1, 2]

    def test_a_look_at_earlier_does_not_move_it_back(self, session):
        """Twins of one agent: who was behind does not make the other hear again."""
        one, other = (session.listener("w", **EVERYTHING) for _ in range(2))
        old = one.news()
        session.message("more", agent="user")
        other.acknowledge(other.news())
        one.acknowledge(old)
        assert session.listener("w", **EVERYTHING).news() == []


class TestListening:
    def test_a_stale_append_is_refused(self, session):
        """With who, how far it had heard, and the oldest event that it was to see; nothing was written."""
        session.listening("require", by="ops")
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        asked = session.message("a", agent="user")
        session.message("b", agent="user")
        head = session.head
        with pytest.raises(StaleContext) as refused:
            worker.message("c")
        stale = refused.value
        assert (stale.agent, stale.seen, stale.seq, stale.event) == ("w", 4, asked.seq, asked.id)
        assert session.head == head
        worker.listen(1)
        assert worker.message("c").seen == {"seq": head, "view": "everything@0"}
        assert worker.message("its own do not count").seq == head + 2

    def test_who_never_listened_is_stale(self, session):
        """Whoever takes part in such a session hears it first."""
        session.listening("require", by="ops")
        with pytest.raises(StaleContext) as refused:
            session.join("w", **EVERYTHING).message("x")
        assert (refused.value.seen, refused.value.seq) == (0, 1)

    def test_only_what_its_view_shows_counts(self, session):
        """What is not addressed to a worker and not about its tasks does not concern it."""
        session.listening("require", by="ops")
        worker = session.join("w", role="worker")
        worker.listen()
        session.message("not yours", agent="user")
        worker.message("fine")
        session.append(Draft(type="mutation", agent="w", kind="task-claimed", task_id="jwt"))
        about = session.message("yours", agent="user", task_id="jwt")
        with pytest.raises(StaleContext) as refused:
            worker.message("x")
        assert refused.value.event == about.id

    def test_a_task_that_it_got_meanwhile_counts(self, session):
        """What it is to see is asked as things stand, not as they stood when it listened."""
        session.listening("require", by="ops")
        worker = session.join("w", role="worker")
        worker.listen()
        given = session.mutation("task-assigned", agent="boss", task_id="jwt", to=["w"])
        with pytest.raises(StaleContext) as refused:
            worker.message("x")
        assert refused.value.event == given.id

    def test_whichever_way_it_comes_in(self, session):
        """An append that names the agent, alone, in a batch, and among others in one transaction."""
        session.listening("require", by="ops")
        session.join("w", **EVERYTHING)
        with pytest.raises(StaleContext):
            session.message("x", agent="w")
        with pytest.raises(StaleContext) as refused:
            session.append_many([Draft(type="message", agent=agent, body="x") for agent in ("user", "w")])
        assert refused.value.index == 1
        drafts = [Draft(type="message", agent=agent, body="x") for agent in ("user", "w", "user")]
        one, other, third = session._log.append_together([("build", None, [draft]) for draft in drafts])
        assert isinstance(other, StaleContext)
        assert (len(one), len(third)) == (1, 1)

    def test_who_takes_no_part_is_asked_for_nothing(self, session):
        """Nor who has left."""
        session.listening("require", by="ops")
        session.message("x", agent="user")
        worker = session.join("w", **EVERYTHING)
        session.message("y", agent="user")
        worker.leave()
        assert session.message("z", agent="w").seen is None

    def test_what_was_done_is_always_recorded(self, session):
        """A result, a call answered, an effect that took place: it is true whatever others wrote; and it says so."""
        session.listening("require", by="ops")
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        call = worker.tool_call("pytest")
        between = session.message("stop!", agent="user")
        assert worker.tool_result(call, "ok").seen["stale"] == between.seq
        worker.listen()

        def run(_key):
            session.message("stop!", agent="user")
            return "paid"

        assert worker.once("pay", idempotency_key="k", run=run).event.seen["stale"] == session.head - 1
        assert session.find_effect(session.effects()[0].id).state == "committed"

    def test_a_retry_of_what_is_recorded_is_not_stale(self, session):
        """The first event is returned: nothing is decided anew."""
        session.listening("require", by="ops")
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        first = worker.message("x", idempotency_key="k")
        session.message("y", agent="user")
        assert worker.message("x", idempotency_key="k") == first

    def test_warn_records_it(self, session):
        """The event says the seq of the oldest that its author had not heard; heard, it says nothing of it."""
        session.listening("warn", by="ops")
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        missed = session.message("a", agent="user")
        session.message("b", agent="user")
        event = worker.message("c")
        assert event.seen == {"seq": 4, "view": "everything@0", "stale": missed.seq}
        assert session.message("raw", agent="w").seen["stale"] == missed.seq
        worker.listen()
        assert "stale" not in worker.message("d").seen

    def test_what_is_asked_is_a_mutation_without_content(self, session, log):
        """Known by its kind, so that it counts though its content is gone; every handle knows at once."""
        assert session.listening_mode() == "off"
        event = session.listening("require", by="ops")
        assert (event.content, event.agent) == ({}, "ops")
        log.redact(session="build", reason="test", by="ops")
        assert session.listening_mode() == "require"
        with pytest.raises(InvalidEvent):
            session.listening("perhaps", by="ops")
        with ConversationLog.open(log.path) as other:
            worker = session.join("w", **EVERYTHING)
            with pytest.raises(StaleContext):
                worker.message("x")
            other.session("build").listening("off", by="ops")
            assert worker.message("x").seen == {"seq": 0, "view": "everything@0"}

    def test_a_fork_asks_for_what_its_parent_asked_then(self, session):
        """Until it says otherwise; in it, an agent has heard what it listened to there."""
        session.listening("require", by="ops")
        session.join("w", **EVERYTHING).listen()
        fork = session.fork("other", agent="ops")
        session.listening("off", by="ops")
        worker = fork.participant("w")
        assert fork.listening_mode() == "require"
        with pytest.raises(StaleContext):
            worker.message("x")
        worker.listen()
        event = worker.message("x")
        assert event.seen["seq"] == event.seq - 1
        assert fork.seen("w", event).matches
        assert [finding.detail for finding in session._log.verify()] == []


class TestSeen:
    def test_the_slice_is_the_one_that_was_read(self, session):
        """For the event that was written on it, whatever was read and written since."""
        worker = session.join("w", **EVERYTHING)
        read = worker.listen(2)
        event = worker.message("a")
        session.message("more", agent="user")
        worker.listen()
        worker.message("b")
        found = session.seen("w", event)
        assert (list(found.events), found.matches, found.event) == (list(read), True, event.id)
        assert session.seen("w", event.seq) == found

    def test_by_then_and_now(self, session):
        """At a point where the agent wrote nothing, what it had read by then; without a point, the last."""
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        worker.message("a")
        asked = session.message("more", agent="user")
        worker.listen(1)
        worker.flush()
        assert session.seen("w", asked).reading.upto == asked.seq
        assert session.seen("w", asked.seq - 1).reading.upto == 3
        assert [event.id for event in session.seen("w").events] == [asked.id]

    def test_what_was_erased_since_is_said(self, session, log):
        """By id; the slice is still the one that was read, without that content."""
        secret = session.message("hunter2", agent="user")
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        event = worker.message("a")
        log.redact(events=[secret.id], reason="secret_leak", by="ops")
        found = session.seen("w", event)
        assert (found.erased, found.matches) == ([secret.id], True)
        assert "hunter2" not in str(found.to_dict()) + "".join(event.line.decode() for event in found.events)
        worker.listen()
        assert session.seen("w", worker.message("b")).erased == [], "it was erased before it was read"

    def test_what_was_erased_since_is_known_by_the_order_of_the_log(self, store_path, clock):
        """Whatever the clock says; what a fork shares is erased in its parent, where only a clock tells."""
        with ConversationLog.open(store_path, clock=clock) as log:
            session = log.session("build")
            first, second, third = (session.message(text, agent="user") for text in "abc")
            log.redact(events=[first.id], reason="test", by="ops")
            clock.advance(-86_400)
            worker = session.join("w", **EVERYTHING)
            worker.listen()
            event = worker.message("a")
            fork = session.fork("f", agent="user").join("w", **EVERYTHING)
            fork.listen()
            in_fork = fork.message("b")
            clock.advance(-86_400)
            log.redact(events=[second.id], reason="test", by="ops")
            assert session.seen("w", event).erased == [second.id]
            assert session.seen("w").erased == [second.id]
            clock.advance(86_400)
            log.redact(events=[third.id], reason="test", by="ops")
            assert session.seen("w", event).erased == [second.id, third.id]
            assert log.session("f").seen("w", in_fork).erased == [third.id]

    def test_what_a_label_hides_since_is_said(self, session, log):
        """The view shows it no more, so the slice does not match: said, and noted by verify, never shown."""
        secret = session.message("about Ann", agent="user", to=["w"])
        worker = session.join("w", role="worker")
        worker.listen()
        event = worker.message("a")
        assert session.seen("w", event).matches
        log.label(secret.id, sensitivity="restricted", by="ops")
        found = session.seen("w", event)
        assert found.matches is False
        assert secret.id not in {shown.id for shown in found.events}
        assert [finding.severity for finding in log.verify()] == ["note"]

    def test_calls_of_results_and_what_links_lead_to_are_in_it(self, session):
        """As they were when it was read."""
        call = session.tool_call("pytest", agent="x")
        session.message("between", agent="user")
        session.tool_result(call, "ok", agent="x")
        worker = session.join("w", **EVERYTHING)
        read = worker.listen(2, pairs=True)
        assert [event.seq for event in read] == [3, 5, 6]
        assert list(session.seen("w", worker.message("a")).events) == list(read)
        evidence = session.message("measured", agent="x")
        session.mutation("decision-made", agent="x", state_key="port", links={"evidence": [evidence.id]})
        verifier = session.join("v", role="verifier")
        read = verifier.listen()
        assert evidence.id in {event.id for event in read}
        assert list(session.seen("v", verifier.message("b")).events) == list(read)

    def test_what_is_not_known_is_said(self, session):
        """An agent that had read nothing, one that the session does not know, a point that is not there."""
        worker = session.join("w", **EVERYTHING)
        assert session.seen("w", worker.message("a")).missing == "unread"
        assert session.seen("user").missing == "unread"
        with pytest.raises(UnknownReference):
            session.seen("nobody")
        with pytest.raises(UnknownReference):
            session.seen("w", 99)

    def test_why_says_it_of_each_event(self, session, log):
        """What its author had in front of it, None where the log does not know."""
        worker = session.join("w", **EVERYTHING)
        worker.listen()
        trace = log.why(worker.message("a").id)
        assert [None if read is None else read.upto for read in trace.readings] == [3, None]

    def test_every_event_of_a_run_of_many_agents(self, log):
        """Random views, tasks and windows: what was read is what is shown again, byte for byte."""
        print("seed", SEED)
        chance = random.Random(SEED)
        session = log.session("run")
        roles = ("worker", "verifier", "orchestrator", "auditor")
        agents = [session.join(f"a{n}", role=roles[n % 4]) for n in range(8)]
        expected = {}
        reads = {}
        for _ in range(250):
            agent = chance.choice(agents)
            match chance.randrange(6):
                case 0 | 1:
                    read = agent.listen(chance.randint(1, 12), pairs=chance.random() < 0.3)
                    reads[agent.agent] = [event.line for event in read]
                    continue
                case 2:
                    draft = {"to": [chance.choice(agents).agent], "task_id": f"t{chance.randrange(4)}"}
                    event = agent.message("x", **draft)
                case 3:
                    to = [chance.choice(agents).agent]
                    event = agent.mutation("task-assigned", task_id=f"t{chance.randrange(4)}", to=to)
                case 4:
                    call = agent.tool_call("shell", task_id=f"t{chance.randrange(4)}")
                    expected[call.id] = reads.get(agent.agent, [])
                    event = agent.tool_result(call, "ok")
                case _:
                    event = agent.mutation("decision-made", 1, state_key=f"k{chance.randrange(3)}")
            expected[event.id] = reads.get(agent.agent, [])
        for event_id, lines in expected.items():
            event = log.event(event_id)
            found = session.seen(event.agent, event)
            assert found.matches is not False
            assert [shown.line for shown in found.events] == lines
        assert list(log.verify()) == []


class TestRetention:
    @pytest.fixture
    def read(self, store_path, clock):
        """A log in which `w` and `v` read and wrote once a day for five days."""
        with ConversationLog.open(store_path, clock=clock) as log:
            session = log.session("build")
            agents = [session.join("w", role="auditor"), session.join("v", **EVERYTHING)]
            for _ in range(5):
                session.message("x", agent="user")
                for agent in agents:
                    agent.listen(3)
                    agent.message("ok")
                clock.advance(86_400)
            yield log

    def test_nothing_goes_by_itself(self, read):
        """Without a policy on readings all of them stay, whatever becomes of the content."""
        read.set_policy(RetentionPolicy(id="content", max_age="1m"), by="ops")
        assert read.apply_retention(by="ops").readings == {}
        assert len(read.session("build").readings()) == 10

    def test_what_a_policy_says_goes_by_age(self, read):
        """Of the readers that it names; the last of each reader stays; the log says what went, and by what."""
        session = read.session("build")
        before = {
            event.id: session.seen("w", event).matches for event in session.read(agent="w", type="message")
        }
        assert list(before.values()) == [True] * 5
        policy = RetentionPolicy(id="who-read", target="reading", match={"agent": "w"}, max_age="2d")
        read.set_policy(policy, by="ops")
        planned = read.apply_retention(by="ops", dry_run=True)
        assert (planned.readings, len(session.readings())) == ({"who-read@1": 3}, 10)
        assert read.apply_retention(by="ops").readings == {"who-read@1": 3}
        assert read.apply_retention(by="ops").readings == {}
        assert (len(session.readings("w")), len(session.readings("v"))) == (2, 5)
        after = [session.seen("w", event) for event in session.read(agent="w", type="message")]
        assert [found.missing for found in after] == ["lapsed"] * 3 + [None] * 2
        said = read.session("_store").tail(1)[0]
        assert (said.kind, said.value["readings"]) == ("readings-expired", 3)
        assert list(read.verify()) == []

    def test_the_place_of_a_reader_stays(self, read, clock):
        """However old: what it has heard is not new to it again."""
        read.set_policy(RetentionPolicy(id="r", target="reading", max_age="1m"), by="ops")
        clock.advance(86_400)
        assert read.apply_retention(by="ops").readings == {"r@1": 8}
        session = read.session("build")
        assert [event.agent for event in session.listener("v", **EVERYTHING).news()] == ["v"]
        assert session.informed().message("x", agent="v").seen["seq"] == session.head - 2

    def test_a_hold_on_the_session_or_the_reader_keeps_them(self, read):
        """And a min_age of another policy does, until it is over."""
        read.set_policy(RetentionPolicy(id="r", target="reading", max_age="1m"), by="ops")
        hold = read.place_hold(session="build", reason="legal_order", by="ops")
        assert read.apply_retention(by="ops").readings == {}
        read.release_hold(hold.id, by="ops")
        read.place_hold(agent="w", reason="legal_order", by="ops")
        read.set_policy(RetentionPolicy(id="keep", target="reading", min_age="4d"), by="ops")
        assert read.apply_retention(by="ops").readings == {"r@1": 1}
        assert len(read.session("build").readings("w")) == 5

    def test_a_crash_amid_it_is_finished_the_next_time(self, read, monkeypatch):
        """What was decided goes, though the policy is gone by then."""
        read.set_policy(RetentionPolicy(id="r", target="reading", max_age="1m"), by="ops")
        with monkeypatch.context() as patch:
            patch.setattr(lapsing, "delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                read.apply_retention(by="ops")
        assert len(read.session("build").readings()) == 10
        read.remove_policy("r", by="ops")
        assert read.apply_retention(by="ops").readings == {}
        assert len(read.session("build").readings()) == 2
        assert list(read.verify()) == []

    def test_readings_go_with_their_session(self, read, clock):
        """When a closed session is removed nothing is left of who read it."""
        read.session("build").mutation("session-closed", agent="user")
        read.set_policy(RetentionPolicy(id="old", target="envelope", max_age="1d"), by="ops")
        clock.advance(2 * 86_400)
        assert read.apply_retention(by="ops").removed == {"build": "old@1"}
        with read._store.database.read() as connection:
            counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchall() for table in TABLES]
        assert counts == [[(0,)]] * 3
        assert list(read.verify()) == []

    @pytest.mark.parametrize(
        "given", [{"match": {"type": "message"}}, {"keep_last": 3}, {"match": {"task": "t"}}], ids=str
    )
    def test_a_policy_on_readings_is_about_readers(self, given):
        """Not about what events are."""
        with pytest.raises(InvalidEvent):
            RetentionPolicy(id="r", target="reading", max_age="1d", **given)


class TestAsync:
    def test_the_twins_listen_and_write(self, store_path):
        """Tasks that append as one participant share transactions, and each reading is written once."""

        async def body():
            async with AsyncConversationLog.open(store_path) as log:
                session = log.session("s")
                await session.message("x", agent="user")
                worker = await session.join("w", **EVERYTHING)
                await worker.listen()
                events = await asyncio.gather(*(worker.message(str(n)) for n in range(50)))
                assert {event.seen["seq"] for event in events} == {3}
                assert len(await session.readings()) == 1
                await session.listening("require", by="ops")
                with pytest.raises(StaleContext):
                    await worker.message("x")
                assert (await worker.news()).upto == 54
                await worker.acknowledge(await worker.news())
                call = await worker.tool_call("t")
                assert (await worker.tool_result(call, 1)).parent_id == call.id
                paid = await worker.once("pay", idempotency_key="k", run=lambda key: asyncio.sleep(0, key))
                assert paid.result == "k"
                async with worker.effect("mail", idempotency_key="m"):
                    pass
                assert (await worker.recover()).in_doubt == []
                found = await session.seen("w", call.id)
                assert (found.matches, found.reading.upto) == (True, 54)
                assert await session.listening_mode() == "require"
                again = await session.participant("w")
                assert again.heard_upto == worker.heard_upto
                listener = await session.listener("x", **EVERYTHING)
                await listener.listen()
                await listener.flush()
                assert (await session.informed().message("y", agent="x")).seen["seq"] > 54
                await worker.leave()
                assert [finding async for finding in log.verify()] == []

        asyncio.run(body())

    def test_a_cancelled_append_loses_no_reading(self, store_path):
        """The event is there with what it says, and the next append goes on."""

        async def body():
            async with AsyncConversationLog.open(store_path) as log:
                session = log.session("s")
                await session.message("x", agent="user")
                worker = await session.join("w", **EVERYTHING)
                for number in range(20):
                    await worker.listen()
                    task = asyncio.ensure_future(worker.message(str(number)))
                    await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                await worker.message("last")
                events = await session.read(agent="w", type="message")
                assert [event.body for event in events] == [*map(str, range(20)), "last"]
                for event in events:
                    assert (await session.seen("w", event)).matches

        asyncio.run(body())


# What verify finds, planted behind the guards of the tables

GUARDS = ("reading_update", "reading_delete", "reading_insert", "informed_update", "informed_delete")


@pytest.fixture
def damaged(store_path):
    """Run statements on a store with a few readings, past its triggers; what verify says then."""

    def damage(*statements):
        with ConversationLog.open(store_path) as log:
            session = log.session("s")
            for text in "ab":
                session.message(text, agent="user")
            worker, other = session.join("w", **EVERYTHING), session.join("v", role="worker")
            for one in (worker, other):
                one.listen()
                one.message("x")
            assert list(log.verify()) == []
        database = apsw.Connection(str(store_path / "log.db"))
        guards = {
            name: sql
            for name, sql in database.execute("SELECT name, sql FROM sqlite_schema")
            if name in GUARDS
        }
        for name in guards:
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            database.execute(statement)
        for sql in guards.values():
            database.execute(sql)
        database.close()
        with ConversationLog.open(store_path, read_only=True) as log:
            return {(finding.rule, finding.severity) for finding in log.verify()}

    return damage


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE reading SET digest = randomblob(32) WHERE id = 1",
        "UPDATE reading SET count = count - 1 WHERE id = 1",
        "UPDATE reading SET first = 2 WHERE id = 1",
        "UPDATE reading SET upto = 99 WHERE id = 1",
        "UPDATE reading SET session = 99 WHERE id = 1",
        "UPDATE reading SET view = 9999 WHERE id = 1",
        "UPDATE reading SET reader = 9999 WHERE id = 1",
        "UPDATE reading SET count = 99 WHERE id = 2",
        "UPDATE reading SET version = 7 WHERE id = 1",
        "DELETE FROM reading WHERE id = 1",
        "DELETE FROM informed WHERE reading = 1",
        "UPDATE informed SET reading = 1 WHERE reading = 2",
        "INSERT INTO informed VALUES (1, 3)",
        "INSERT INTO informed VALUES (1, 9999)",
    ],
)
def test_verify_finds_a_reading_that_is_not_what_was_read(damaged, statement):
    """A changed extent, count, digest or name, and an event that rests on none or on another's."""
    assert ("reading", "fault") in damaged(statement)


def test_the_database_keeps_readings_as_they_are(store_path):
    """It refuses to change or delete one, and what says that an event rests on it."""
    with ConversationLog.open(store_path) as log:
        worker = log.session("s").join("w", **EVERYTHING)
        worker.listen()
        worker.message("x")
        with log._store.database.write() as connection:
            for statement in (
                "UPDATE reading SET upto = 1",
                "DELETE FROM reading",
                "INSERT OR REPLACE INTO reading SELECT * FROM reading",
                "UPDATE informed SET pos = 1",
                "DELETE FROM informed",
                "INSERT OR REPLACE INTO informed SELECT * FROM informed",
            ):
                with pytest.raises(apsw.ConstraintError, match="append-only"):
                    connection.execute(statement)


def test_threads_of_one_participant_write_each_reading_once(session):
    """Readings that several appends bring along are written by the first that is committed."""
    import threading

    worker = session.join("w", **EVERYTHING)
    start = threading.Barrier(8)
    count = itertools.count()

    def work():
        start.wait()
        for _ in range(20):
            if next(count) % 5 == 0:
                worker.listen(3)
            worker.message("x")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for event in session.read(agent="w", type="message"):
        assert session.seen("w", event).matches is not False
    uptos = [(reading.first, reading.upto) for reading in session.readings()]
    assert len(uptos) == len(set(uptos))
    assert list(session._log.verify()) == []
