"""Memory: what becomes a claim and what refuses it, rule by rule; what becomes of claims; and who interferes."""

import json
import subprocess
import sys
import textwrap

import pytest

from convlog_sqlite import (
    ABSENT,
    ConversationLog,
    Draft,
    InvalidEvent,
    NotAuthorized,
    PromotionRefused,
    StateConflict,
    SubjectFenced,
    UnknownReference,
    View,
)
from convlog_sqlite.instants import from_microseconds
from convlog_sqlite.vocabulary import PROMOTION_RULES

HOUR = 3600


@pytest.fixture
def log(store_path, clock):
    """A log whose clock stands still."""
    with ConversationLog.open(store_path, clock=clock) as opened:
        yield opened


@pytest.fixture
def session(log):
    """A session."""
    return log.session("build")


def found(session, body="The header says 15 minutes.", **keys):
    """An event that may be evidence."""
    return session.message(body, agent="worker", **keys)


def approved(session, events, claim="Tokens live 15 minutes.", *, agent="alice", **how):
    """The acceptance of a proposed claim."""
    how = {"by": "worker", "scope": "store", "key": "jwt"} | how
    return session.approve(session.propose_memory(events, claim, **how), agent=agent)


def promoted(session, events, claim="Tokens live 15 minutes.", **how):
    """A claim that became memory."""
    approval = approved(session, events, claim, **how)
    return session.promote(by=how.get("by", "worker"), approved_by=approval)


def refusal(call):
    """The rules that refuse a call, which writes nothing."""
    with pytest.raises(PromotionRefused) as refused:
        call()
    assert {code for code, _ in refused.value.rules} <= PROMOTION_RULES.keys()
    assert len(set(refused.value.rules)) == len(refused.value.rules)
    return list(refused.value.rules)


def statuses(session):
    """The status of each claim that a session sees, by what it says."""
    return {claim.claim: claim.status for claim in session.memory(whole=True)}


class Refusing:
    """For each rule, a promotion that it refuses: a call, and the events that the rule is about."""

    def __init__(self, log, session, clock):
        self.log, self.session, self.clock = log, session, clock

    def propose(self, events, **how):
        return lambda: self.session.propose_memory(events, "c", by="worker", **how)

    def promote(self, approval, by="worker", **how):
        return lambda: self.session.promote(by=by, approved_by=approval, **how)

    def evidence_missing(self):
        other = found(self.log.session("other"))
        return self.propose([found(self.session), other]), [other.id]

    def evidence_unreadable(self):
        event = found(self.session)
        self.log.redact(events=[event.id], reason="test", by="ops")
        return self.propose([event, found(self.session)]), [event.id]

    def evidence_conflict(self):
        port = self.session.mutation("decision-made", 1, agent="a", state_key="port")
        made = [
            self.session.mutation(
                "decision-made", n, agent=f"a{n}", links={"supersedes": [port.id]}, state_key="port"
            )
            for n in (2, 3)
        ]
        return self.propose([found(self.session), made[1]]), [made[1].id]

    def evidence_ended(self):
        claim = promoted(self.session, [found(self.session)])
        self.session.retract(claim, by="alice")
        return self.propose([claim]), [claim.id]

    def sensitivity(self):
        self.log.set_memory_ceiling("internal", by="ops")
        event = found(self.session, sensitivity="confidential")
        return self.propose([event]), [event.id]

    def private(self):
        event = found(self.session, purposes=["private", "build"])
        return self.propose([found(self.session), event], purposes=["build"]), [event.id]

    def purpose(self):
        event = found(self.session, purposes=["build"])
        return self.propose([event], purposes=["marketing"]), [event.id]

    def fenced(self):
        event = found(self.session, subjects=["Ann Lee"])
        self.log.redact(subject="Ann Lee", reason="subject_request", by="ops", fence=True)
        # What a label says of another event afterwards counts too; it may be written though a fence stands.
        other = found(self.session)
        self.log.label(other.id, subjects=["Ann Lee"], by="ops")
        assert self.log.event(event.id).redacted
        return self.propose([other]), [other.id]

    def approval_missing(self):
        proposal = self.session.propose_memory([found(self.session)], "c", by="worker")
        return self.promote(proposal), [proposal.id]

    def approval_own(self):
        approval = approved(self.session, [found(self.session)])
        return self.promote(approval, by="alice"), [approval.id]

    def approval_other(self):
        event = found(self.session)
        proposal = self.session.propose("Ship it?", agent="worker", approver="lead")
        self.session.grant_role("alice", "lead", agent="ops")
        approval = self.session.approve(proposal, agent="alice")
        return self.promote(approval, events=[event], claim="c"), [approval.id]

    def approval_revoked(self):
        approval = approved(self.session, [found(self.session)])
        rejection = self.session.reject(approval.parent_id, agent="alice")
        return self.promote(approval), [rejection.id]

    def approval_used(self):
        approval = approved(self.session, [found(self.session)])
        claim = self.session.promote(by="worker", approved_by=approval)
        self.session.retract(claim, by="worker")
        return self.promote(approval), [claim.id]

    def conflict(self):
        claim = promoted(self.session, [found(self.session)])
        approval = approved(self.session, [found(self.session)], "Tokens live an hour.")
        return self.promote(approval), [claim.id]

    def superseded(self):
        claim = promoted(self.session, [found(self.session)])
        approval = approved(self.session, [found(self.session)], "An hour.", supersedes=[claim])
        self.session.retract(claim, by="bob")
        return self.promote(approval), [claim.id]

    def expired(self):
        until = from_microseconds(self.clock() // 1000 + HOUR * 1_000_000)
        approval = approved(self.session, [found(self.session)], expires=until)
        self.clock.advance(HOUR)
        return self.promote(approval), [None]


class Passing(Refusing):
    """The same where the rule is kept: a call that gives a claim."""

    def whole(self, events, **how):
        return lambda: promoted(self.session, events, **how)

    def evidence_missing(self):
        return self.whole([found(self.session), found(self.session, "again")])

    def evidence_unreadable(self):
        self.log.redact(events=[found(self.session).id], reason="test", by="ops")
        return self.whole([found(self.session)])

    def evidence_conflict(self):
        port = self.session.mutation("decision-made", 1, agent="a", state_key="port")
        return self.whole(
            [self.session.mutation("decision-made", 2, agent="b", state_key="port", expect=port)]
        )

    def evidence_ended(self):
        return self.whole([promoted(self.session, [found(self.session)], key="other")], key="jwt")

    def sensitivity(self):
        self.log.set_memory_ceiling("internal", by="ops")
        self.log.set_memory_ceiling("confidential", by="ops")
        return self.whole([found(self.session, sensitivity="confidential")])

    def private(self):
        return self.whole([found(self.session, purposes=["build"])])

    def purpose(self):
        events = [
            found(self.session, purposes=names) for names in (["build", "support"], ["support", "billing"])
        ]
        return self.whole([*events, found(self.session)], purposes=["support"])

    def fenced(self):
        self.log.redact(subject="Ann Lee", reason="subject_request", by="ops", fence=True)
        self.log.lift_fence("Ann Lee", by="ops")
        return self.whole([found(self.session, subjects=["Ann Lee"])])

    def approval_missing(self):
        return self.promote(approved(self.session, [found(self.session)]))

    def approval_own(self):
        return self.promote(
            approved(self.session, [found(self.session)], by="alice", agent="worker"), by="alice"
        )

    def approval_other(self):
        event = found(self.session)
        approval = approved(self.session, [event], {"b": [1], "a": 2.5})
        return self.promote(approval, events=[event], claim={"b": [1], "a": 2.5}, scope="store", key="jwt")

    def approval_revoked(self):
        self.log.grant_role("alice", "curator", by="ops")
        approval = approved(self.session, [found(self.session)], approver="curator")
        self.log.revoke_role("bob", "curator", by="ops")
        return self.promote(approval)

    def approval_used(self):
        promoted(self.session, [found(self.session)], key="other")
        return self.promote(approved(self.session, [found(self.session)]))

    def conflict(self):
        promoted(self.session, [found(self.session)], key="other")
        promoted(self.session, [found(self.session)], scope="session")
        return self.whole([found(self.session)])

    def superseded(self):
        claim = promoted(self.session, [found(self.session)])
        return self.whole([found(self.session)], supersedes=[claim])

    def expired(self):
        until = from_microseconds(self.clock() // 1000 + HOUR * 1_000_000)
        approval = approved(self.session, [found(self.session)], expires=until)
        self.clock.advance(HOUR - 1)
        return self.promote(approval)


@pytest.mark.parametrize("rule", PROMOTION_RULES)
class TestRules:
    def test_it_refuses(self, log, session, clock, rule):
        """Named by its code, with the event it is about, and nothing is written."""
        call, events = getattr(Refusing(log, session, clock), rule.replace("-", "_"))()
        head = session.head
        rules = refusal(call)
        assert [about for code, about in rules if code == rule] == events
        assert session.head == head

    def test_it_passes(self, log, session, clock, rule):
        """Where it is kept, the claim stands."""
        claim = getattr(Passing(log, session, clock), rule.replace("-", "_"))()()
        assert claim.kind == "memory-promoted"
        assert [one.status for one in session.memory() if one.id == claim.id] == ["stands"]
        assert list(log.verify(projections=True)) == []


class TestRefusals:
    def test_every_rule_that_refuses_is_named(self, log, session):
        """Not the first one only: who tries again knows all that is in the way."""
        log.redact(subject="Ann", reason="test", by="ops", fence=True)
        secret = found(session, sensitivity="restricted", purposes=["private"])
        gone = found(session)
        log.redact(events=[gone.id], reason="test", by="ops")
        unknown = "0197a3c4-0000-7000-8000-000000000000"
        claim = promoted(session, [found(session)])
        rules = refusal(
            lambda: session.promote(
                [secret, gone, unknown],
                "c",
                scope="store",
                key="jwt",
                by="worker",
                approved_by=None,
                purposes=["x"],
            )
        )
        assert set(rules) == {
            ("approval-missing", None),
            ("conflict", claim.id),
            ("evidence-missing", unknown),
            ("evidence-unreadable", gone.id),
            ("sensitivity", secret.id),
            ("private", secret.id),
            ("purpose", secret.id),
        }

    def test_a_refusal_holds_no_content(self, session):
        """Codes and ids, in one line."""
        with pytest.raises(PromotionRefused) as refused:
            session.promote([found(session)], "hunter2", by="worker", approved_by=None)
        assert str(refused.value) == "the claim does not become memory: approval-missing"

    @pytest.mark.parametrize(
        ("how", "pointer"),
        [
            ({"scope": "everywhere"}, "/scope"),
            ({"scope": "task:"}, "/scope"),
            ({"key": ""}, "/key"),
            ({"key": "k" * 256}, "/key"),
            ({"contested": "yes"}, "/contested"),
            ({"expires": "tomorrow"}, "/expires"),
            ({"expires": 5}, "/expires"),
            ({"by": ""}, "/agent"),
            ({"approver": "a\x00"}, "/approver"),
            ({"purposes": "build"}, "/purposes"),
            ({"sensitivity": "secret"}, "/sensitivity"),
            ({"supersedes": "x"}, "/supersedes"),
            ({"supersedes": ["x"]}, "/supersedes/0"),
            ({"claim": float("nan")}, "/value"),
        ],
    )
    def test_nonsense_is_refused(self, session, how, pointer):
        """With a pointer to the place."""
        event = found(session)
        how = {"by": "worker", "claim": "c"} | how
        with pytest.raises(InvalidEvent) as refused:
            session.propose_memory([event], how.pop("claim"), **how)
        assert refused.value.pointer == pointer
        assert session.head == event.seq

    @pytest.mark.parametrize("events", ["id", ["id"], [5]])
    def test_what_is_no_event_is_refused(self, session, events):
        """A list of events or whole ids, nothing else."""
        found(session)
        with pytest.raises((InvalidEvent, TypeError, AttributeError)):
            session.propose_memory(events, "c", by="worker")

    def test_no_evidence_is_a_rule(self, session):
        """A claim out of nothing."""
        found(session)
        assert refusal(lambda: session.propose_memory([], "c", by="worker")) == [("evidence-missing", None)]

    def test_an_approval_that_does_not_exist(self, session):
        """With nothing said but the approval, nothing can be known of the claim."""
        found(session)
        unknown = "0197a3c4-0000-7000-8000-000000000000"
        assert refusal(lambda: session.promote(by="worker", approved_by=unknown)) == [
            ("approval-missing", unknown)
        ]


class TestNoWayRound:
    """What `promote` does is a mutation like any other, and held to the same rules whichever way it comes."""

    def draft(self, event, **keys):
        """A promotion by hand."""
        said = {
            "type": "mutation",
            "agent": "worker",
            "kind": "memory-promoted",
            "value": "c",
            "state_key": "memory/store/jwt",
            "links": {"derived_from": [event.id]},
            "meta": {"scope": "store", "key": "jwt"},
        }
        return Draft(**(said | keys))

    def test_a_mutation_by_hand(self, log, session):
        """Without an approval it is refused, alone and in a batch."""
        event = found(session)
        assert refusal(lambda: session.append(self.draft(event))) == [("approval-missing", None)]
        assert refusal(lambda: session.append_many([self.draft(event), self.draft(event)]))

    @pytest.mark.parametrize(
        ("keys", "pointer"),
        [
            ({"state_key": None}, "/state_key"),
            ({"state_key": "memory/store/other"}, "/state_key"),
            ({"state_key": "memory/session/jwt"}, "/state_key"),
            ({"meta": {"scope": "store"}}, "/meta/key"),
            ({"meta": {"scope": "x", "key": "jwt"}}, "/meta/scope"),
            ({"meta": {"scope": "store", "key": "jwt", "more": 1}}, "/meta/more"),
            ({"meta": {"scope": "store", "key": "jwt", "expires": "soon"}}, "/meta/expires"),
            ({"meta": {"scope": "store", "key": "jwt", "contested": "yes"}}, "/meta/contested"),
            ({"meta": {"scope": "store", "key": "j" * 250}}, "/meta/key"),
            ({"value": ABSENT}, "/value"),
            ({"kind": "memory-proposed"}, "/performative"),
            ({"kind": "memory-proposed", "performative": "propose"}, "/state_key"),
            ({"kind": "memory-retracted"}, "/links/supersedes"),
        ],
    )
    def test_a_form_that_is_none(self, session, keys, pointer):
        """Every claim has its scope and key where they are looked for."""
        event = found(session)
        with pytest.raises(InvalidEvent) as refused:
            session.append(self.draft(event, **keys))
        assert refused.value.pointer == pointer

    def test_more_purposes_or_other_evidence_than_approved(self, session):
        """What was accepted is what becomes memory, and no more."""
        event, other = found(session, purposes=["a", "b"]), found(session)
        approval = approved(session, [event], purposes=["a"])
        assert ("approval-other", approval.id) in refusal(
            lambda: session.promote(by="worker", approved_by=approval, purposes=["a", "b"])
        )
        for how in (
            {"events": [event, other]},
            {"claim": "d"},
            {"key": "k"},
            {"scope": "session"},
            {"by": "bob"},
        ):
            more = {"by": "worker"} | how
            assert refusal(lambda more=more: session.promote(approved_by=approval, **more)) == [
                ("approval-other", approval.id)
            ], more
        assert session.promote(by="worker", approved_by=approval).purposes == ["a"]

    def test_an_import_is_recorded_as_it_is(self, log, session):
        """What happened elsewhere is not refused here, and what it claims is in conflict for all to see."""
        promoted(session, [found(session)])
        draft = self.draft(found(session), value="d")
        log.append_foreign("build", [(log.foreign_id("test", "1"), draft)])
        assert statuses(session) == {"Tokens live 15 minutes.": "conflicting", "d": "conflicting"}

    def test_one_author_has_nobody_to_approve(self):
        """An ephemeral log makes no memory."""
        with ConversationLog.ephemeral() as log:
            session = log.session("s")
            proposal = session.propose_memory([found(session)], "c", by="worker")
            assert refusal(lambda: session.promote(by="worker", approved_by=proposal))
            assert session.memory() == []


class TestWhatAClaimSays:
    def test_what_it_takes_from_its_evidence(self, log, session):
        """The highest sensitivity, every person, and no purpose that a part of the evidence is not for."""
        events = [
            found(session, sensitivity="confidential", subjects=["Ann"], purposes=["a", "b"]),
            found(session, sensitivity="public", subjects=["Ben", "Ann"], purposes=["b", "c"]),
            found(session),
        ]
        log.label(events[2].id, subjects=["Cyd"], by="ops")
        claim = promoted(session, events)
        assert (claim.sensitivity, claim.purposes) == ("confidential", ["b"])
        subjects = {subject for event in session.read() for subject in event.subjects}
        assert set(claim.subjects) == subjects
        assert len(subjects) == 3
        assert log.redact(subject="Cyd", reason="test", by="ops", dry_run=True).erased == 4

    def test_what_evidence_that_goes_apart_leaves(self, session):
        """Evidence without a common purpose is for nothing together."""
        events = [found(session, purposes=[name]) for name in "ab"]
        assert refusal(lambda: session.propose_memory(events, "c", by="worker")) == [("purpose", None)]

    def test_a_label_in_between_counts(self, log, session):
        """Evidence that is said to be more sensitive after the approval makes the claim so; or refuses it."""
        event = found(session)
        approval = approved(session, [event])
        log.label(event.id, sensitivity="confidential", subjects=["Ann"], by="ops")
        claim = session.promote(by="worker", approved_by=approval)
        assert (claim.sensitivity, len(claim.subjects)) == ("confidential", 1)
        approval = approved(session, [event], key="other")
        log.label(event.id, sensitivity="restricted", by="ops")
        rules = refusal(lambda: session.promote(by="worker", approved_by=approval))
        assert set(rules) == {("sensitivity", event.id), ("private", event.id)}

    def test_where_it_comes_from(self, log, session):
        """Evidence, approval and proposal are named in its envelope, and `why` leads back to them."""
        event = found(session)
        approval = approved(session, [event])
        claim = session.promote(by="worker", approved_by=approval)
        assert claim.links == {"authorized_by": [approval.id], "derived_from": [event.id]}
        assert (claim.parent_id, claim.state_key) == (approval.parent_id, "memory/store/jwt")
        assert {event.id, approval.id, approval.parent_id} <= {found.id for found in log.why(claim.id).events}
        (shown,) = log.memory()
        assert (shown.id, shown.by, shown.approved_by) == (claim.id, "worker", approval.id)
        assert shown.evidence == [{"event": event.id}]
        assert session.state()["memory/store/jwt"]["value"] == "Tokens live 15 minutes."

    @pytest.mark.parametrize("claim", ["x" * 20_000, {"a": ["é", None, 2.5]}, None, "", 0, {"k": "y" * 9000}])
    def test_any_json_value(self, log, session, claim):
        """Short ones in the line, long ones whole beside it."""
        promoted(session, [found(session)], claim)
        assert log.memory()[0].claim == claim
        assert log.memory()[0].to_dict()["claim"] == claim

    def test_a_long_claim_is_compared_whole(self, session):
        """Two that differ only in what the preview leaves out are not the same."""
        event = found(session)
        claims = ["x" * 9000 + mark + "x" * 9000 for mark in "ab"]
        approval = approved(session, [event], claims[0])
        assert refusal(lambda: session.promote([event], claims[1], by="worker", approved_by=approval)) == [
            ("approval-other", approval.id)
        ]
        assert session.promote([event], claims[0], by="worker", approved_by=approval)

    def test_the_key_that_nobody_gave(self, session):
        """Claims of the same evidence are about the same thing, unless they say otherwise; so is what replaces one."""
        event = found(session)
        first = promoted(session, [event], key=None)
        assert first.state_key == f"memory/store/{event.id}"
        approval = approved(session, [event], "other", key=None)
        assert ("conflict", first.id) in refusal(lambda: session.promote(by="worker", approved_by=approval))
        again = promoted(session, [first], "both", key=None, supersedes=[first])
        assert again.state_key == first.state_key

    def test_names_with_slashes(self, session):
        """Scope and key stay apart, whatever they are made of."""
        for scope in ("task:a/b", "agent:x%2F", "session"):
            promoted(session, [found(session)], scope, scope=scope, key="a/b%2Fc")
        assert {(claim.scope, claim.key) for claim in session.memory()} == {
            (scope, "a/b%2Fc") for scope in ("task:a/b", "agent:x%2F", "session")
        }
        assert session.tail(1, kind="memory-promoted")[0].task_id is None
        assert session.tail(5, task_id="a/b")

    def test_a_secret_gives_way(self, store_path):
        """What a scrubbing log puts in its place is what is approved and promoted."""
        with ConversationLog.open(store_path, scrub=True) as log:
            session = log.session("s")
            promoted(
                session,
                [found(session)],
                f"the key is {'ghp' + '_16C7e42F292c6912E7710c838347Ae178B4a'}, keep it",
            )
            assert "ghp_" not in log.memory()[0].claim

    def test_a_fenced_person_in_a_claim(self, log, session):
        """A claim that names one itself is refused as any append is."""
        log.redact(subject="Ann", reason="test", by="ops", fence=True)
        event = found(session)
        with pytest.raises(SubjectFenced):
            session.append(
                Draft(
                    type="mutation",
                    agent="worker",
                    kind="memory-proposed",
                    performative="propose",
                    value="Ann",
                    links={"derived_from": [event.id]},
                    meta={"scope": "session", "key": "k"},
                    subjects=["Ann"],
                )
            )


class TestBecomingOfClaims:
    def test_one_supersedes_another(self, session):
        """With its key, or with another."""
        first = promoted(session, [found(session)], "first")
        second = promoted(session, [found(session)], "second", supersedes=[first])
        third = promoted(session, [found(session)], "third", key="k", supersedes=[second])
        assert statuses(session) == {"first": "superseded", "second": "superseded", "third": "stands"}
        ended = {claim.claim: claim.ended_by for claim in session.memory(whole=True)}
        assert ended == {"first": second.id, "second": third.id, "third": None}
        assert promoted(session, [found(session)], "fourth")

    def test_several_are_consolidated(self, log, session):
        """Into one that is derived from all of them and takes their place, which stays visible."""
        claims = [promoted(session, [found(session)], key, key=key) for key in "abc"]
        whole = promoted(session, claims, "abc", key="abc", supersedes=claims)
        assert statuses(session) == {
            "a": "consolidated",
            "b": "consolidated",
            "c": "consolidated",
            "abc": "stands",
        }
        assert log.claim(whole.id).evidence == [{"event": claim.id} for claim in claims]
        rules = refusal(lambda: promoted(session, claims, "again", key="again", supersedes=claims))
        assert set(rules) == {("evidence-ended", claim.id) for claim in claims}

    def test_a_dissent_is_a_conflict_until_one_supersedes_both(self, log, session):
        """Both stand, marked, and `state` says the same."""
        first = promoted(session, [found(session)], "15 minutes")
        second = promoted(session, [found(session)], "an hour", contested=True)
        assert statuses(session) == {"15 minutes": "conflicting", "an hour": "conflicting"}
        assert [claim.conflicts for claim in session.memory()] == [[second.id], [first.id]]
        assert len(session.state()["memory/store/jwt"]["conflict"]) == 2
        assert {item["open"] for item in session.state("open")} == {"conflict"}
        rules = refusal(lambda: promoted(session, [first, second], "x"))
        assert set(rules) == {("evidence-conflict", claim.id) for claim in (first, second)}
        promoted(session, [first, second], "15 minutes, an hour for admins", supersedes=[first, second])
        assert [claim.status for claim in session.memory()] == ["stands"]
        assert session.state("open") == []
        assert list(log.verify(projections=True)) == []

    def test_a_dissent_is_approved_as_one(self, session):
        """What was proposed as the only one does not come to stand beside another."""
        first = promoted(session, [found(session)], "15 minutes")
        event = found(session)
        proposal = session.propose_memory([event], "an hour", scope="store", key="jwt", by="worker")
        approval = session.approve(proposal, agent="alice")
        draft = Draft(
            type="mutation", agent="worker", kind="memory-promoted", value="an hour", state_key="memory/store/jwt",
            links={"derived_from": [event.id], "authorized_by": [approval.id], "supersedes": [proposal.id]},
            meta={"scope": "store", "key": "jwt"},
        )  # fmt: skip
        assert set(refusal(lambda: session.append(draft))) == {
            ("conflict", first.id),
            ("superseded", proposal.id),
            ("approval-other", approval.id),
        }

    def test_a_retraction_takes_one_out(self, log, session):
        """Once; what was retracted does not stand in the way of what comes, and is no conflict."""
        claim = promoted(session, [found(session)], "first")
        gone = session.retract(claim, by="alice")
        assert (gone.kind, gone.content, gone.links) == ("memory-retracted", {}, {"supersedes": [claim.id]})
        assert statuses(session) == {"first": "retracted"}
        for again in (session.retract, log.retract):
            with pytest.raises(StateConflict):
                again(claim.id, by="alice")
        promoted(session, [found(session)], "second")
        assert statuses(session) == {"first": "retracted", "second": "stands"}
        assert session.state("open") == []
        assert list(log.verify(projections=True)) == []

    def test_one_of_two_in_conflict_is_retracted(self, session):
        """Then the other stands alone."""
        first = promoted(session, [found(session)], "first")
        promoted(session, [found(session)], "second", contested=True)
        session.retract(first, by="alice")
        assert statuses(session) == {"first": "retracted", "second": "stands"}

    def test_what_is_no_claim_is_not_retracted(self, log, session):
        """Nor one of another session; an id that does not exist is an unknown reference."""
        claim = promoted(session, [found(session)])
        for wrong in (found(session).id, claim.parent_id):
            with pytest.raises(InvalidEvent):
                log.retract(wrong, by="a")
        with pytest.raises(InvalidEvent):
            log.session("other").retract(claim, by="a")
        with pytest.raises(UnknownReference):
            log.retract("0197a3c4-0000-7000-8000-000000000000", by="a")
        with pytest.raises(UnknownReference):
            log.claim(claim.parent_id)

    def test_it_expires_by_the_clock(self, log, session, clock):
        """Without any event; then another may stand, and it is no evidence any more."""
        until = from_microseconds(clock() // 1000 + HOUR * 1_000_000)
        claim = promoted(session, [found(session)], "first", expires=until)
        clock.advance(HOUR - 1)
        assert [(one.status, one.expires) for one in session.memory()] == [("stands", until)]
        clock.advance(1)
        assert session.memory() == []
        assert statuses(session) == {"first": "expired"}
        assert refusal(lambda: promoted(session, [claim], key="k")) == [("evidence-ended", claim.id)]
        promoted(session, [found(session)], "second")
        assert statuses(session) == {"first": "expired", "second": "stands"}
        assert session.state("open") == []

    def test_as_it_was(self, session):
        """At an earlier moment a claim stood that does not stand now."""
        claim = promoted(session, [found(session)], "first")
        session.retract(claim, by="alice")
        assert [one["status"] for one in session.at(claim).state("memory")] == ["stands"]
        assert [one["status"] for one in session.state("memory")] == ["retracted"]


class TestScopes:
    def test_who_sees_what(self, log):
        """Claims for the store and for an agent are those of every session; the others stay where they are."""
        one, two = log.session("one"), log.session("two")
        for scope in ("store", "agent:worker", "session", "task:t"):
            promoted(one, [found(one)], scope, scope=scope)
        found(two)
        assert {claim.scope for claim in one.memory()} == {"store", "agent:worker", "session", "task:t"}
        assert {claim.scope for claim in two.memory()} == {"store", "agent:worker"}
        assert [claim.scope for claim in log.memory()] == ["store", "agent:worker", "session", "task:t"]
        assert [claim.scope for claim in two.memory("store")] == ["store"]
        assert log.session("never").memory() == []
        with pytest.raises(InvalidEvent):
            log.memory("everywhere")
        with pytest.raises(UnknownReference):
            log.memory(session="never")

    def test_across_sessions_one_stands(self, log):
        """A claim for the store is refused where another session has one; a dissent is a conflict in both."""
        one, two = log.session("one"), log.session("two")
        first = promoted(one, [found(one)], "first")
        assert ("conflict", first.id) in refusal(lambda: promoted(two, [found(two)], "second"))
        promoted(two, [found(two)], "own", scope="session")
        second = promoted(two, [found(two)], "second", contested=True)
        assert [claim.conflicts for claim in log.memory("store")] == [[second.id], [first.id]]
        assert {claim.status for claim in two.memory("store")} == {"conflicting"}
        log.retract(first.id, by="alice")
        assert [(claim.claim, claim.status) for claim in one.memory()] == [("second", "stands")]

    def test_tenants_have_their_own(self, log):
        """One store, two tenants: no claim of the one is seen, or in the way, at the other."""
        for tenant in ("acme", "globex", None):
            session = log.session(f"s-{tenant}", tenant=tenant)
            promoted(session, [found(session)], str(tenant))
            assert [(claim.claim, claim.status) for claim in session.memory()] == [(str(tenant), "stands")]
        assert [claim.status for claim in log.memory()] == ["stands"] * 3

    def test_forks(self, log, session):
        """A fork sees what it shares; what ends there ends there, but for what is everybody's."""
        own = promoted(session, [found(session)], "own", scope="session")
        wide = promoted(session, [found(session)], "wide")
        fork = session.fork("fork", agent="ops")
        assert statuses(fork) == {"own": "stands", "wide": "stands"}
        fork.retract(own, by="ops")
        assert (statuses(fork)["own"], statuses(session)["own"]) == ("retracted", "stands")
        assert promoted(fork, [found(fork)], "new", scope="session", key="jwt")
        rules = refusal(lambda: promoted(session, [found(session)], "x", scope="session", key="jwt"))
        assert rules == [("conflict", own.id)]
        fork.retract(wide, by="ops")
        assert statuses(session)["wide"] == "retracted"
        assert promoted(session, [found(session)], "wide again")
        assert list(log.verify(projections=True)) == []

    def test_the_ceiling_is_the_stores(self, log, store_path, session):
        """For every handle, from now on; what is restricted is private at any."""
        assert log.memory_ceiling == "confidential"
        log.set_memory_ceiling("restricted", by="ops")
        with ConversationLog.open(store_path) as other:
            assert other.memory_ceiling == "restricted"
        event = found(session, sensitivity="restricted")
        assert refusal(lambda: session.propose_memory([event], "c", by="worker")) == [("private", event.id)]
        with pytest.raises(InvalidEvent):
            log.set_memory_ceiling("high", by="ops")


class TestReaders:
    """Who asks as an agent gets what the view of its role lets through."""

    def test_ceilings(self, log, session):
        """Above the sensitivity, of a person, for another purpose: not shown, in no list."""
        promoted(session, [found(session)], "plain", key="a")
        promoted(session, [found(session, sensitivity="confidential")], "secret", key="b")
        promoted(session, [found(session, subjects=["Ann"])], "person", key="c")
        promoted(session, [found(session, purposes=["billing"])], "billing", key="d")
        for agent, role in (("w", "worker"), ("v", "verifier")):
            log.grant_role(agent, role, by="ops")

        def said(**how):
            return {claim.claim for claim in log.memory(**how)}

        assert said(reader="w") == {"plain", "secret", "person"}
        assert said(reader="w", purpose="billing") == {"plain", "secret", "person", "billing"}
        assert said(reader="v") == {"plain"}
        assert said(purpose="billing") == {"plain", "secret", "person", "billing"}
        assert said(purpose="other") == {"plain", "secret", "person"}

    def test_claims_for_another_agent(self, log, session):
        """Are not for this one."""
        for name in ("w", "v"):
            log.grant_role(name, "worker", by="ops")
            promoted(session, [found(session)], name, scope=f"agent:{name}")
        assert [claim.claim for claim in log.memory(reader="w")] == ["w"]

    def test_values_that_a_view_withholds(self, log, session):
        """Who may see envelopes only sees that there is a claim, its status and provenance."""
        claim = promoted(session, [found(session)], "hunter2")
        log.grant_role("eve", "auditor", by="ops")
        (shown,) = log.memory(reader="eve")
        assert (shown.id, shown.claim, shown.withheld, shown.status) == (claim.id, None, True, "stands")
        assert "hunter2" not in json.dumps(shown.to_dict())

    @pytest.mark.parametrize(
        ("payload", "there"),
        [
            ((), (False, False)),
            (("value",), (True, False)),
            (("meta",), (False, True)),
            (("*",), (True, True)),
        ],
    )
    def test_what_a_claim_shows_of_its_payload_goes_with_the_keys(self, log, session, payload, there):
        """What it says stands in `value`, until when it holds in `meta`; each is shown where the view shows that."""
        log.define_view(View(name="some", payload=payload, roles=["reviewer"]), by="ops")
        log.grant_role("eve", "reviewer", by="ops")
        promoted(session, [found(session)], expires="2099-01-01T00:00:00Z")
        (shown,) = log.memory(reader="eve")
        said = shown.to_dict()
        assert ("claim" in said, "expires" in said) == there
        assert shown.withheld is not there[0]

    def test_what_was_ended_out_of_sight_is_ended(self, log, session):
        """A claim that was superseded by one above the reader's ceiling does not stand for it."""
        first = promoted(session, [found(session)], "old")
        promoted(session, [found(session, sensitivity="confidential")], "new", supersedes=[first])
        log.grant_role("v", "verifier", by="ops")
        assert log.memory(reader="v") == []
        assert [claim.status for claim in log.memory(reader="v", whole=True)] == ["superseded"]

    def test_a_reader_without_a_role_is_refused(self, log, session):
        """Not answered with an empty list; with a role in one session only, that one is shown."""
        found(session)
        with pytest.raises(NotAuthorized):
            log.memory(reader="nobody")
        promoted(session, [found(session)], "here")
        other = log.session("other")
        promoted(other, [found(other)], "there", key="k")
        with pytest.raises(NotAuthorized):
            log.memory(reader="nobody")
        other.grant_role("nobody", "worker", agent="ops")
        assert [claim.claim for claim in log.memory(reader="nobody")] == ["there"]

    def test_a_slice_folds_what_it_selects(self, log, session):
        """The projection through a view knows the events of the view, and says nothing of evidence beyond it."""
        event = found(session)
        promoted(session, [event], "plain")
        log.redact(events=[event.id], reason="test", by="ops", keep_derived=True)
        view = View(name="claims", max_sensitivity="internal", selects=())
        assert session.through(view).state("memory")[0]["evidence"][0]["redacted"]["reason"] == "test"

    def test_participants(self, log, session):
        """A participant makes memory as itself, and what it says names what it had heard."""
        worker, alice = session.join("worker", role="worker"), session.join("alice", role="orchestrator")
        event = worker.message("15 minutes")
        alice.listen()
        proposal = worker.propose_memory([event], "15 minutes", scope="store", key="jwt")
        claim = worker.promote(approved_by=alice.approve(proposal))
        assert (claim.agent, claim.parent_id, claim.seen is not None) == ("worker", proposal.id, True)
        assert worker.retract(claim).agent == "worker"

    def test_a_participant_makes_memory_of_what_it_may_read(self, session):
        """What its view keeps back is no evidence of its own, though it knows the id."""
        boss = session.join("boss", role="orchestrator")
        events = [boss.message("plain"), boss.message("of Ann", subjects=["Ann"])]
        checker = session.join("checker", role="verifier")
        rules = refusal(lambda: checker.propose_memory(events, "c"))
        assert rules == [("evidence-unreadable", events[1].id)]
        assert checker.propose_memory(events[:1], "c").agent == "checker"
        auditor = session.join("auditor", role="auditor")
        assert refusal(lambda: auditor.propose_memory(events[:1], "c"))
        missing = "0197a3c4-0000-7000-8000-000000000000"
        assert refusal(lambda: checker.propose_memory([missing], "c")) == [("evidence-missing", missing)]


# Two processes, and what comes in between


RACING = """
    import json, sys
    from convlog_sqlite import ConversationLog, PromotionRefused
    with ConversationLog.open(sys.argv[1], durability="normal") as log:
        session = log.session("build")
        for line in sys.stdin:
            try:
                said = session.promote(by="worker", approved_by=line.strip()).id
            except PromotionRefused as refused:
                said = refused.rules
            print(json.dumps(said), flush=True)
"""


class TestInterference:
    def test_of_two_conflicting_claims_one_stands(self, log, session, store_path):
        """Two processes promote at the same time: one wins, and the other is told by which claim it lost."""
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(RACING), str(store_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for number in range(25):
            approvals = [
                approved(session, [found(session)], f"{number} {side}", key=f"k{number}") for side in range(2)
            ]
            for racer, approval in zip(racers, approvals, strict=True):
                racer.stdin.write(approval.id + "\n")
                racer.stdin.flush()
            said = [json.loads(racer.stdout.readline()) for racer in racers]
            won = [one for one in said if isinstance(one, str)]
            lost = [one for one in said if not isinstance(one, str)]
            assert len(won) == 1, said
            assert lost == [[["conflict", won[0]]]]
        for racer in racers:
            racer.communicate("")
            assert racer.returncode == 0
        assert [claim.status for claim in log.memory()] == ["stands"] * 25
        assert list(log.verify(projections=True)) == []

    def in_between(self, log, monkeypatch, what):
        """Let something happen after `promote` has read the log, and before its transaction begins."""
        real = type(log).append_drafts

        def interrupted(*arguments, **keys):
            monkeypatch.setattr(type(log), "append_drafts", real)
            what()
            return real(*arguments, **keys)

        monkeypatch.setattr(type(log), "append_drafts", interrupted)

    def test_the_approval_is_revoked_meanwhile(self, log, session, store_path, monkeypatch):
        """By another process: by a word of the approver, a withdrawal, or the loss of its role."""
        log.grant_role("alice", "curator", by="ops")
        with ConversationLog.open(store_path) as other:
            there = other.session("build")
            for revoke in (
                lambda approval: there.reject(approval.parent_id, agent="alice"),
                lambda approval: there.message(
                    "wait", agent="alice", performative="cancel", parent_id=approval.id
                ),
                lambda _: other.revoke_role("alice", "curator", by="ops"),
            ):
                approval = approved(session, [found(session)], approver="curator")
                self.in_between(log, monkeypatch, lambda revoke=revoke, approval=approval: revoke(approval))
                rules = refusal(lambda approval=approval: session.promote(by="worker", approved_by=approval))
                assert [code for code, _ in rules] == ["approval-revoked"]

    def test_the_evidence_is_redacted_meanwhile(self, log, session, store_path, monkeypatch):
        """Then the claim is not written, and what was proposed is gone too: nothing of it is left."""
        with ConversationLog.open(store_path) as other:
            event = found(session)
            approval = approved(session, [event], "xyzzy-mark")
            self.in_between(
                log, monkeypatch, lambda: other.redact(events=[event.id], reason="test", by="ops")
            )
            rules = refusal(lambda: session.promote(by="worker", approved_by=approval))
            assert set(rules) == {
                ("evidence-unreadable", event.id),
                ("evidence-unreadable", approval.parent_id),
            }
            event = found(session)
            self.in_between(
                log, monkeypatch, lambda: other.redact(events=[event.id], reason="test", by="ops")
            )
            rules = refusal(lambda: session.propose_memory([event], "xyzzy-mark", by="worker"))
            assert rules == [("evidence-unreadable", event.id)]
        assert b"xyzzy" not in b"".join(log.lines("build"))

    def test_a_redaction_that_is_only_decided_counts(self, log, session, monkeypatch):
        """From the moment that the intent is committed, though the keys are still there."""
        event = found(session)
        approval = approved(session, [event])

        def die(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("convlog_sqlite.keystore.Keystore.destroy", die)
            with pytest.raises(KeyboardInterrupt):
                log.redact(events=[event.id], reason="test", by="ops")
            assert log.event(event.id).answer == "live"
            rules = refusal(lambda: session.promote(by="worker", approved_by=approval))
        assert set(rules) == {("evidence-unreadable", event.id), ("evidence-unreadable", approval.parent_id)}

    def test_a_claim_that_was_promoted_before_its_label_is_found(self, log, session):
        """Whom the evidence turns out to be about later leads to the claim as well."""
        event = found(session)
        promoted(session, [event])
        log.label(event.id, subjects=["Ann"], by="ops")
        assert log.redact(subject="Ann", reason="test", by="ops").derived == 2
        assert statuses(session) == {None: "erased"}
