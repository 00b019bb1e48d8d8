"""Retention: policies, the plan they make, its boundaries and conflicts, and what applying it leaves behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convlog_sqlite import (
    ConversationLog,
    Draft,
    InvalidEvent,
    NotAStore,
    RetentionPolicy,
    StoreReadOnly,
    UnknownReference,
)
from convlog_sqlite.instants import from_microseconds
from convlog_sqlite.retention import Rules
from convlog_sqlite.store import expiring
from convlog_sqlite.store.candidates import Candidate
from convlog_sqlite.store.erasing import Eraser
from convlog_sqlite.store.reserved import Hold

HOUR, DAY = 3600, 86_400


@pytest.fixture
def log(store_path, clock):
    """A log whose clock stands still."""
    with ConversationLog.open(store_path, clock=clock) as opened:
        yield opened


@pytest.fixture
def session(log):
    """A session with ten messages, one an hour; the last is recorded now."""
    made = log.session("build")
    for number in range(10):
        made.message(f"m{number}", agent="worker")
        log._clock.advance(HOUR)
    log._clock.advance(-HOUR)
    return made


def live(session):
    """The seqs of the messages whose content is there."""
    return [event.seq for event in session.read(type="message") if event.answer == "live"]


def policy(**said):
    """A policy for messages."""
    return RetentionPolicy(**{"id": "p", "match": {"type": "message"}} | said)


class TestSaying:
    @pytest.mark.parametrize("text", ["45m", "12h", "30d", "2w", "1m", "36500d"])
    def test_a_duration_is_a_number_and_a_unit(self, text):
        """Minutes, hours, days and weeks."""
        assert policy(max_age=text).max_age == text

    @pytest.mark.parametrize(
        "text",
        [
            "0d",
            "00d",
            "-1d",
            "1",
            "d",
            "",
            "1.5d",
            "1y",
            "30 d",
            " 30d",
            "30d\n",
            "1D",
            "1d2h",
            "٣d",
            "36501d",
            30,
            True,
        ],
    )
    @pytest.mark.parametrize("key", ["max_age", "min_age"])
    def test_nonsense_is_refused(self, key, text):
        """Zero, too: what erases at once is no policy. The error names the key."""
        with pytest.raises(InvalidEvent) as refused:
            policy(**{"max_age": "1d", key: text})
        assert refused.value.pointer == f"/{key}"

    @pytest.mark.parametrize(
        ("said", "pointer"),
        [
            ({}, "/max_age"),
            ({"keep_last": 5}, "/max_age"),
            ({"max_age": "1d", "target": "bytes"}, "/target"),
            ({"max_age": "1d", "target": "envelope"}, "/match/type"),
            ({"max_age": "1d", "target": "envelope", "match": {}, "keep_last": 1}, "/keep_last"),
            ({"max_age": "1d", "keep_last": -1}, "/keep_last"),
            ({"max_age": "1d", "keep_last": True}, "/keep_last"),
            ({"max_age": "1d", "id": ""}, "/id"),
            ({"max_age": "1d", "id": "Big"}, "/id"),
            ({"max_age": "1d", "id": "x" * 65}, "/id"),
            ({"max_age": "1d", "match": ["type"]}, "/match"),
            ({"max_age": "1d", "match": {"body": "x"}}, "/match"),
            ({"max_age": "1d", "match": {"type": "note"}}, "/match/type"),
            ({"max_age": "1d", "match": {"sensitivity": "secret"}}, "/match/sensitivity"),
            ({"max_age": "1d", "match": {"session": "_store"}}, "/match/session"),
            ({"max_age": "1d", "match": {"agent": ""}}, "/match/agent"),
            ({"max_age": "1d", "match": {"subject_digest": "Ann"}}, "/match/subject_digest"),
        ],
    )
    def test_a_policy_is_held_to_rules(self, said, pointer):
        """Whatever is wrong is refused where the policy is made, and the place is named."""
        with pytest.raises(InvalidEvent) as refused:
            policy(**said)
        assert refused.value.pointer == pointer

    def test_a_policy_does_not_change(self):
        """Nor does what it matches, when the caller's own dict does."""
        match = {"agent": "a"}
        made = policy(max_age="1d", match=match)
        match["agent"] = "b"
        assert made.match == {"agent": "a"}
        assert hash(made) == hash(policy(max_age="1d", match={"agent": "a"}))
        with pytest.raises(AttributeError):
            made.max_age = "2d"


class TestSetting:
    def test_versions_count_for_ever(self, log):
        """Setting a policy again is its next version, after it was removed too."""
        assert [log.set_policy(policy(max_age="1d"), by="ops").version for _ in range(2)] == [1, 2]
        log.remove_policy("p", by="ops")
        assert log.policies() == []
        assert log.set_policy(policy(max_age="2d"), by="ops").version == 3
        assert log.set_policy(policy(id="q", max_age="2d"), by="ops").version == 1

    def test_what_was_set_is_read_back(self, log):
        """In any handle, by id, the version beside it."""
        made = [
            log.set_policy(policy(id="z", max_age="1d", min_age="2h", keep_last=3), by="ops"),
            log.set_policy(policy(id="a", min_age="1w", match={}), by="ops"),
        ]
        with ConversationLog.open(log.path, read_only=True) as other:
            assert other.policies() == made[::-1]

    def test_a_policy_is_a_mutation_of_its_author(self, log):
        """In the store's own session."""
        log.set_policy(policy(max_age="1d"), by="ops")
        log.remove_policy("p", by="boss")
        was_set, removed = log.session("_store").tail(2)
        assert (was_set.kind, was_set.agent, was_set.state_key) == ("policy-set", "ops", "policy/p")
        assert was_set.value == {
            "id": "p",
            "target": "payload",
            "match": {"type": "message"},
            "max_age": "1d",
        }
        assert (removed.kind, removed.agent, removed.value) == ("policy-removed", "boss", {"id": "p"})

    def test_a_person_is_never_named(self, log):
        """A subject is stored as its keyed digest, and what is read back can be set again."""
        found = log.set_policy(policy(max_age="1d", match={"subject": "Ann Lee"}), by="ops")
        assert set(found.match) == {"subject_digest"}
        assert not any(b"Ann Lee" in line for line in log.lines("_store"))
        assert log.set_policy(log.policies()[0], by="ops").match == found.match

    def test_an_unknown_policy_cannot_be_removed(self, log):
        """Nothing is written."""
        head = log.session("_store").head
        for policy_id in ("p", "x" * 1000):
            with pytest.raises(UnknownReference):
                log.remove_policy(policy_id, by="ops")
        assert log.session("_store").head == head

    def test_a_policy_needs_an_author(self, log):
        """One who answers for it."""
        with pytest.raises(InvalidEvent):
            log.set_policy(policy(max_age="1d"), by="")
        with pytest.raises(InvalidEvent):
            log.set_policy({"id": "p"}, by="ops")

    def test_read_only_and_ephemeral_logs_have_none(self, log):
        """They say why."""
        with ConversationLog.open(log.path, read_only=True) as other:
            with pytest.raises(StoreReadOnly):
                other.set_policy(policy(max_age="1d"), by="ops")
            with pytest.raises(StoreReadOnly):
                other.apply_retention(by="ops")
        with ConversationLog.ephemeral() as other, pytest.raises(NotAStore):
            other.set_policy(policy(max_age="1d"), by="ops")


class TestApplying:
    def test_without_policies_everything_is_kept(self, log, session, clock):
        """However old it is."""
        clock.advance(5000 * DAY)
        assert log.apply_retention(by="ops").matched == 0
        assert len(live(session)) == 10

    def test_nothing_happens_by_itself(self, log, session, clock):
        """A policy that is due erases nothing at open, nor at an append."""
        log.set_policy(policy(max_age="1m"), by="ops")
        clock.advance(DAY)
        with ConversationLog.open(log.path, clock=clock) as other:
            other.session("build").message("new", agent="worker")
            assert len(live(other.session("build"))) == 11

    def test_the_boundary_is_exact(self, log, session, clock):
        """At the deadline it is due, a microsecond before it is not."""
        log.set_policy(policy(max_age="9h"), by="ops")  # the first message is nine hours old now
        clock.now -= 1000
        assert log.apply_retention(by="ops").erased == 0
        clock.now += 1000
        assert log.apply_retention(by="ops").erased == 1
        assert live(session) == list(range(3, 12))

    def test_a_dry_run_counts_and_changes_nothing(self, log, session):
        """The counts are those of the call after it; so may a read-only handle ask."""
        log.set_policy(policy(max_age="5h"), by="ops")
        heads = [summary.events for summary in log.sessions()]
        with ConversationLog.open(log.path, read_only=True, clock=log._clock) as other:
            planned = other.apply_retention(by="ops", dry_run=True)
        assert (planned.erased, planned.policies, planned.dry_run) == (5, {"p@1": 5}, True)
        assert [summary.events for summary in log.sessions()] == heads
        done = log.apply_retention(by="ops")
        assert (done.erased, done.policies) == (planned.erased, planned.policies)
        assert log.apply_retention(by="ops").matched == 0

    def test_the_redaction_says_by_which_policy(self, log, session):
        """Its id and version, the reason and who applied it; the envelope stays and verifies."""
        log.set_policy(policy(max_age="1w"), by="ops")
        log.set_policy(policy(max_age="5h"), by="ops")
        (redaction,) = log.apply_retention(by="cron").redactions
        event = log.event(redaction)
        assert (event.session, event.kind, event.agent) == ("build", "redaction", "cron")
        assert event.value["policy"] == {"id": "p", "version": 2}
        assert event.value["reason"] == "retention"
        assert event.value["events"] == 5
        gone = session.event(2)
        assert gone.redacted == {"by": redaction, "at": gone.redacted["at"], "reason": "retention"}
        assert [finding for finding in log.verify() if finding.severity == "fault"] == []

    def test_one_redaction_for_each_session_and_policy(self, log, session, clock, monkeypatch):
        """However many pages were looked at."""
        monkeypatch.setattr(expiring, "PAGE", 2)
        other = log.session("other")
        for number in range(5):
            other.message("x", agent="worker")
            other.tool_call("grep", {"n": number}, agent="worker")
        log.set_policy(policy(max_age="1h"), by="ops")
        log.set_policy(policy(id="calls", max_age="1h", match={"tool": "grep"}), by="ops")
        clock.advance(HOUR)
        done = log.apply_retention(by="ops")
        assert done.policies == {"p@1": 15, "calls@1": 5}
        said = [(log.event(one).session, log.event(one).value["policy"]["id"]) for one in done.redactions]
        assert sorted(said) == [("build", "p"), ("other", "calls"), ("other", "p")]

    def test_age_counts_from_the_source(self, log, clock):
        """What was imported is as old as it is there, not as its record here."""
        old = {"harness": "claude-code", "at": from_microseconds(clock.now // 1000 - 40 * DAY * 10**6)}
        session = log.session("imported")
        session.append_many(
            [
                Draft(type="message", agent="a", body="old", source=old),
                Draft(type="message", agent="a", body="new"),
            ]
        )
        log.set_policy(policy(max_age="30d"), by="ops")
        assert log.apply_retention(by="ops").erased == 1
        assert [event.body for event in session.read(type="message") if event.answer == "live"] == ["new"]

    def test_a_clock_that_stepped_back_keeps(self, log, session, clock):
        """What seems to be of the future has no age."""
        log.set_policy(policy(max_age="1h"), by="ops")
        clock.advance(-30 * DAY)
        assert log.apply_retention(by="ops").matched == 0

    def test_every_key_narrows(self, log, clock):
        """An event must be all that a policy says."""
        keys = {"type": "tool_call", "tool": "grep", "agent": "a", "task": "t", "session": "s"}
        keys |= {"tenant": "acme", "sensitivity": "restricted", "subject": "Ann"}
        wanted = log.session("s", tenant="acme").tool_call(
            "grep", {}, agent="a", task_id="t", sensitivity="restricted", subjects=["Ann", "Bob"]
        )
        clock.advance(DAY)
        for key, other in {
            "type": "message",
            "tool": "ls",
            "agent": "b",
            "task": "u",
            "session": "r",
            "tenant": "else",
            "sensitivity": "public",
            "subject": "Cy",
            "kind": "task-done",
        }.items():
            log.set_policy(policy(max_age="1h", match=keys | {key: other}), by="ops")
            assert log.apply_retention(by="ops").matched == 0, key
        log.set_policy(policy(max_age="1h", match=keys), by="ops")
        assert log.apply_retention(by="ops").erased == 1
        assert log.event(wanted.id).answer == "erased"

    def test_redactions_and_the_store_session_stay(self, log, session, clock):
        """A policy that matches everything does not erase what says that something was erased."""
        log.set_policy(policy(max_age="1m", match={}), by="ops")
        clock.advance(DAY)
        assert log.apply_retention(by="ops").erased == 11
        clock.advance(DAY)
        assert log.apply_retention(by="ops").matched == 0
        assert len(log.policies()) == 1

    def test_what_a_crash_left_is_finished_under_the_same_policy(self, log, session, monkeypatch):
        """The decision stands, and the redaction names the policy and version that made it."""
        log.set_policy(policy(max_age="5h"), by="ops")
        with monkeypatch.context() as patch:
            patch.setattr(Eraser, "erase", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                log.apply_retention(by="cron")
        log.remove_policy("p", by="ops")
        with ConversationLog.open(log.path) as other:
            assert live(other.session("build")) == list(range(7, 12))
            (event,) = other.session("build").read(kind="redaction")
            assert (event.agent, event.value["policy"]) == ("cron", {"id": "p", "version": 1})

    def test_a_policy_removed_while_pages_are_looked_at_erases_nothing(self, log, session, monkeypatch):
        """What stands is read again in the transaction that decides."""
        log.set_policy(policy(max_age="5h"), by="ops")
        pages = expiring.Expiry._pages

        def late(self):
            for page in pages(self):
                with ConversationLog.open(log.path) as other:
                    if other.policies():
                        other.remove_policy("p", by="ops")
                yield page

        monkeypatch.setattr(expiring.Expiry, "_pages", late)
        assert log.apply_retention(by="ops").matched == 0
        assert len(live(session)) == 10

    def test_the_mirror_follows(self, log, session):
        """No file holds what retention erased."""
        log.set_policy(policy(max_age="5h"), by="ops")
        assert '"m0"' in log.mirror.path("build").read_text()
        assert log.apply_retention(by="ops").complete
        assert '"m0"' not in log.mirror.path("build").read_text()


class TestConflicts:
    def test_the_shortest_max_age_counts(self, log, session):
        """And is the policy that the redaction names."""
        log.set_policy(policy(id="long", max_age="8h"), by="ops")
        log.set_policy(policy(id="short", max_age="5h"), by="ops")
        assert log.apply_retention(by="ops").policies == {"short@1": 5}

    def test_the_longest_min_age_goes_before_it(self, log, session):
        """Content is kept until both are over."""
        log.set_policy(policy(id="short", max_age="1h"), by="ops")
        log.set_policy(policy(id="keep", min_age="7h"), by="ops")
        log.set_policy(policy(id="keep-less", min_age="3h"), by="ops")
        assert log.apply_retention(by="ops").policies == {"short@1": 3}
        assert live(session) == list(range(5, 12))

    def test_a_min_age_alone_erases_nothing(self, log, session, clock):
        """It says how long to keep, not when to erase."""
        log.set_policy(policy(min_age="1h"), by="ops")
        clock.advance(100 * DAY)
        assert log.apply_retention(by="ops").matched == 0

    def test_a_hold_goes_before_all(self, log, session):
        """What is due and held is counted and kept; the rest is erased."""
        log.set_policy(policy(max_age="5h"), by="ops")
        hold = log.place_hold(event=session.event(3).id, reason="legal_order", by="ops")
        done = log.apply_retention(by="ops")
        assert (done.matched, done.erased, done.held) == (5, 4, 1)
        assert live(session) == [3, *range(7, 12)]
        log.release_hold(hold.id, by="ops")
        assert log.apply_retention(by="ops").erased == 1


class TestKeepLast:
    def test_the_newest_of_each_session_are_spared(self, log, session, clock):
        """Whatever their age, and by the largest number of all policies that match."""
        other = log.session("other")
        for _ in range(3):
            other.message("x", agent="worker")
        log.set_policy(policy(max_age="1m", keep_last=1), by="ops")
        log.set_policy(policy(id="q", min_age="1m", keep_last=2), by="ops")
        clock.advance(DAY)
        assert log.apply_retention(by="ops").policies == {"p@1": 9}
        assert (live(session), live(other)) == ([10, 11], [3, 4])

    def test_applying_it_again_erases_no_more(self, log, session, clock):
        """The redaction that it appends is not one of the newest: nothing is pushed out."""
        log.set_policy(policy(max_age="1m", keep_last=3), by="ops")
        clock.advance(DAY)
        log.apply_retention(by="ops")
        for _ in range(3):
            assert log.apply_retention(by="ops").matched == 0
        assert live(session) == [9, 10, 11]

    def test_a_short_session_is_spared_whole(self, log, session, clock):
        """More are kept than there are."""
        log.set_policy(policy(max_age="1m", keep_last=100), by="ops")
        clock.advance(DAY)
        assert log.apply_retention(by="ops").matched == 0


class TestExplaining:
    def test_what_no_policy_erases(self, log, session):
        """It is kept, and the line says that."""
        assert log.explain(session.event(2).id) == "kept: no policy with a max_age matches it"

    def test_what_waits_and_what_is_due(self, log, session, clock):
        """When, and by which version of which policy."""
        log.set_policy(policy(max_age="9h"), by="ops")
        when = from_microseconds(clock.now // 1000)
        event = session.event(2)
        clock.now -= 1000
        reason = "max_age 9h of policy p@1"
        assert (
            log.explain(event.id)
            == f"kept until {when}, then erased when retention is next applied: {reason}"
        )
        clock.now += 1000
        assert log.explain(event.id) == f"erased when retention is next applied: due since {when}: {reason}"
        log.apply_retention(by="ops")
        assert log.explain(event.id) == "erased already"

    def test_what_keeps_it(self, log, session):
        """A longer min_age, a keep_last and a hold are named."""
        event = session.event(2)
        log.set_policy(policy(max_age="1h"), by="ops")
        log.set_policy(policy(id="keep", min_age="9d"), by="ops")
        assert "kept longer by min_age 9d of policy keep@1" in log.explain(event.id)
        log.set_policy(policy(id="keep", min_age="2h", keep_last=50), by="ops")
        assert "the newest 50 of its session (policy keep@2)" in log.explain(event.id)
        hold = log.place_hold(session="build", reason="test", by="ops")
        assert f"under hold {hold.id}" in log.explain(event.id)
        log.remove_policy("keep", by="ops")
        assert log.explain(event.id).startswith(f"kept while it is under hold {hold.id}, else until ")
        log.remove_policy("p", by="ops")
        assert log.explain(event.id).endswith(f"under hold {hold.id}")

    def test_what_is_never_erased(self, log, session):
        """Redactions and the store's own session."""
        redaction = log.redact(events=[session.event(2).id], reason="test", by="ops").redactions[0]
        for event_id in (redaction, log.session("_store").event(1).id):
            assert log.explain(event_id).startswith("kept: redactions and the session _store")

    def test_an_unknown_event(self, log):
        """It is an error."""
        with pytest.raises(UnknownReference):
            log.explain("0" * 32)

    def test_a_deadline_beyond_the_calendar(self, log, clock):
        """An event of the year 9999 is kept, and that can be said."""
        source = {"harness": "x", "at": "9999-12-31T00:00:00.000000Z"}
        event = log.session("s").message("x", agent="a", source=source)
        log.set_policy(policy(max_age="36500d"), by="ops")
        assert "after the year 9999" in log.explain(event.id)


# The plan against a naive reading of the rule

AGES = st.sampled_from([None, "1h", "2h", "3h"])
MICROSECONDS = {"1h": 3_600_000_000, "2h": 7_200_000_000, "3h": 10_800_000_000}


@st.composite
def policies(draw):
    """A few policies that conflict."""
    found = []
    for number in range(draw(st.integers(0, 4))):
        max_age, min_age = draw(AGES), draw(AGES)
        if max_age or min_age:
            match = draw(
                st.sampled_from([{}, {"agent": "a"}, {"type": "message"}, {"subject_digest": "f" * 32}])
            )
            keep_last = draw(st.integers(0, 3))
            found.append(
                RetentionPolicy(
                    id=f"p{number}",
                    match=match,
                    max_age=max_age,
                    min_age=min_age,
                    keep_last=keep_last,
                    version=1,
                )
            )
    return found


@st.composite
def events(draw):
    """A session of a few events; ages lie around the deadlines."""
    found = []
    for seq in range(1, draw(st.integers(1, 8)) + 1):
        hours = draw(st.integers(0, 4)) * 3_600_000_000 + draw(st.sampled_from([-1, 0, 1]))
        kind = draw(st.sampled_from([None, None, "redaction"]))
        found.append(
            Candidate(
                "s", None, seq, seq, f"e{seq}", draw(st.sampled_from(["message", "mutation"])),
                draw(st.sampled_from(["a", "b"])), None, None, kind, "internal", -hours, draw(st.booleans()),
                draw(st.sampled_from([frozenset(), frozenset({"f" * 32})])),
            )
        )  # fmt: skip
    return found


@given(policies(), events(), st.sampled_from([None, ("agent", "a"), ("subject", "f" * 32), ("event", "e1")]))
def test_the_plan_is_what_the_rule_says(policies, events, held):
    """For any policies, events and hold: the plan erases what a naive reading of the rule does, and no more."""
    holds = [] if held is None else [Hold("h", *held, "test", "ops", "")]
    rules = Rules(policies, holds, 0)
    counted = [event.seq for event in events if event.kind != "redaction"]
    newest = {count: counted[-count] if count <= len(counted) else 0 for count in rules.counts}
    for event in events:
        said = {"agent": event.agent, "type": event.type}
        matching = [
            one
            for one in policies
            if all(
                value in event.subjects if key == "subject_digest" else said[key] == value
                for key, value in one.match.items()
            )
        ]
        max_ages = [MICROSECONDS[one.max_age] for one in matching if one.max_age]
        min_ages = [MICROSECONDS[one.min_age] for one in matching if one.min_age]
        due = (
            bool(max_ages)
            and -event.at >= min(max_ages)
            and -event.at >= max(min_ages, default=0)
            and not any(event.seq in counted[-one.keep_last :] for one in matching if one.keep_last)
            and event.kind != "redaction"
            and not event.erased
        )
        is_held = held is not None and (
            held[1] in event.subjects
            if held[0] == "subject"
            else held[1] == {"agent": event.agent, "event": event.id}[held[0]]
        )
        found = rules.due(event, newest)
        assert (found is not None) == due
        if found is not None:
            (policy_id, _), kept = found
            assert kept == is_held
            assert min(max_ages) == MICROSECONDS[next(one.max_age for one in matching if one.id == policy_id)]
        text = rules.explain(event, newest)
        assert "\n" not in text
        assert text.startswith("erased when") == (due and not is_held)
