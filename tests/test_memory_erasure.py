"""Claims go with their evidence: in the same intent, wherever they are, whatever dies; or stay, and say so."""

import os
import signal

import pytest
from test_erasure import DYING, STEPS, pending, residue, run, secrets_of, slots_of, tombstones

from convlog_sqlite import ConversationLog, Draft, Projection, RetentionPolicy, UnderHold, restore
from convlog_sqlite.store import expiring

MARK = "xyzzy-claim"
WHY = {"reason": "test", "by": "operator"}
DAY = 86_400


def promoted(session, events, claim=MARK, *, key="k", by="worker", **how):
    """A claim that became memory."""
    proposal = session.propose_memory(events, claim, scope="store", key=key, by=by, **how)
    return session.promote(by=by, approved_by=session.approve(proposal, agent="alice"))


def claims_of(session):
    """Every event that says what a claim says: proposals and claims."""
    return [
        event
        for kind in ("memory-proposed", "memory-promoted")
        for event in session.read(limit=1000, kind=kind)
    ]


@pytest.fixture
def session(log):
    """A session."""
    return log.session("s")


class TestReach:
    def test_a_claim_goes_with_its_evidence(self, log, session, tmp_path):
        """And its proposal: no file holds either, no key of them is left, and the redaction counts them."""
        event = session.message("evidence", agent="a")
        claim = promoted(session, [event, session.message("more", agent="a")], MARK * 2000)
        log.export_to(tmp_path / "out")
        needles = [MARK.encode(), *secrets_of(log, claims_of(session))]
        held = [os.open(log.mirror.path("s"), os.O_RDONLY)]
        assert residue([MARK.encode()], log.path, tmp_path / "out")
        plan = log.redact(events=[event.id], **WHY, dry_run=True)
        assert (plan.matched, plan.erased, plan.derived) == (3, 3, 2)
        assert log.claim(claim.id).status == "stands"
        done = log.redact(events=[event.id], **WHY)
        assert (done.matched, done.erased, done.derived, done.complete) == (3, 3, 2, True)
        assert residue(needles, log.path, tmp_path / "out", held=held) == []
        assert log.event(done.redactions[0]).value | {"digest": ""} == {
            "reason": "test",
            "scope": "event",
            "derived": 2,
            "events": 3,
            "digest": "",
        }
        shown = log.claim(claim.id)
        assert (shown.status, shown.claim, shown.redacted["by"]) == ("erased", None, done.redactions[0])
        assert list(log.verify(projections=True)) == []
        os.close(held[0])

    def test_transitively(self, log, session):
        """What was consolidated from a claim goes with that claim's evidence; claims of other evidence stay."""
        events = [session.message(name, agent="a") for name in "abc"]
        claims = [promoted(session, [event], event.body, key=event.body) for event in events]
        promoted(session, claims[:2], "ab", key="ab", supersedes=claims[:2])
        promoted(session, [events[2]], "c again", key="c2")
        done = log.redact(events=[events[0].id], **WHY)
        assert done.derived == 4
        answers = {claim.key: claim.status for claim in session.memory(whole=True)}
        assert answers == {
            "a": "consolidated",
            "b": "consolidated",
            "c": "stands",
            "ab": "erased",
            "c2": "stands",
        }
        assert {claim.key: claim.redacted is None for claim in session.memory(whole=True)} == {
            "a": False,
            "b": True,
            "c": True,
            "ab": False,
            "c2": True,
        }

    @pytest.mark.parametrize("scope", ["session", "task", "agent", "subject"])
    def test_whatever_the_scope(self, log, scope):
        """Evidence that is erased among others takes its claims with it."""
        session = log.session("s")
        event = session.message("evidence", agent="a", task_id="t", subjects=["Ann"])
        promoted(session, [event])
        named = {"session": "s", "task": "t", "agent": "a", "subject": "Ann"}[scope]
        log.redact(**{scope: named}, **WHY)
        assert [one.answer for one in claims_of(session)] == ["erased"] * 2
        assert residue([MARK.encode()], log.path) == []

    def test_a_proposal_that_was_never_approved(self, log, session):
        """It says what the evidence said, and goes too."""
        event = session.message("evidence", agent="a")
        session.propose_memory([event], MARK, by="worker")
        assert log.redact(events=[event.id], **WHY).derived == 1
        assert residue([MARK.encode()], log.path) == []

    @pytest.mark.parametrize("which", [0, 1])
    @pytest.mark.parametrize("keep", [False, True])
    def test_a_claim_and_its_proposal_say_the_same(self, log, session, which, keep):
        """Who erases one erases the other, whether or not what is derived is kept; the evidence stays."""
        event = session.message("evidence", agent="a")
        promoted(session, [event])
        chosen = claims_of(session)[which]
        log.redact(events=[chosen.id], **WHY, keep_derived=keep)
        assert [one.answer for one in claims_of(session)] == ["erased"] * 2
        assert log.event(event.id).answer == "live"
        assert residue([MARK.encode()], log.path) == []

    def test_in_a_fork(self, log, session):
        """A claim of a fork from what it shares goes with it, in an intent of its own session."""
        event = session.message("evidence", agent="a")
        fork = session.fork("f", agent="ops")
        promoted(fork, [event])
        done = log.redact(events=[event.id], **WHY)
        assert (done.derived, len(done.redactions)) == (2, 2)
        assert [one.answer for one in claims_of(fork)] == ["erased"] * 2
        assert residue([MARK.encode()], log.path) == []
        assert fork.tail(1)[0].value["derived"] == 2

    def test_snapshots_of_the_caller_go_too(self, log, session):
        """A projection that holds claims is folded anew, and its snapshot is destroyed with them."""
        event = session.message("evidence", agent="a")
        promoted(session, [event])
        for _ in range(12):
            session.append_many([Draft(type="message", agent="a", body="x")] * 100)
        held = Projection(
            "claims", lambda state, event: {**state, event.id: event.value}, kinds=("memory-*",)
        )
        assert MARK in str(session.state(held))
        with log._store.database.read() as connection:
            ((slot,),) = connection.execute("SELECT slot FROM snapshot").fetchall()
        log.redact(events=[event.id], **WHY)
        assert MARK not in str(session.state(held))
        assert not isinstance(log._store.keystore.read([slot])[0], bytes)

    def test_a_store_without_claims_looks_for_none(self, log, session, monkeypatch):
        """Where nothing was ever proposed, a redaction costs what it did."""
        event = session.message("x", agent="a")
        monkeypatch.setattr("convlog_sqlite.store.deriving._closed", None)
        assert log.redact(events=[event.id], **WHY).erased == 1


class TestKept:
    def test_a_claim_that_is_kept_shows_that_its_evidence_is_gone(self, log, session):
        """By which redaction, in every list; the redaction says that something was kept."""
        event = session.message("evidence", agent="a")
        other = session.message("more", agent="a")
        claim = promoted(session, [event, other])
        plan = log.redact(events=[event.id], **WHY, keep_derived=True, dry_run=True)
        assert (plan.erased, plan.derived, plan.derived_kept) == (1, 0, 2)
        done = log.redact(events=[event.id], **WHY, keep_derived=True)
        assert (done.erased, done.derived, done.derived_kept) == (1, 0, 2)
        assert log.event(done.redactions[0]).value["derived_kept"] == 2
        (shown,) = log.memory()
        assert (shown.id, shown.status, shown.claim) == (claim.id, "stands", MARK)
        gone = log.event(event.id).redacted
        assert list(shown.evidence) == [{"event": event.id, "redacted": gone}, {"event": other.id}]
        assert gone["by"] == done.redactions[0]

    def test_it_goes_when_somebody_says_so_later(self, log, session):
        """The evidence is erased already, and what was kept is not."""
        event = session.message("evidence", agent="a")
        promoted(session, [event])
        log.redact(events=[event.id], **WHY, keep_derived=True)
        done = log.redact(events=[event.id], **WHY)
        assert (done.matched, done.erased, done.already, done.derived) == (3, 2, 1, 2)
        assert residue([MARK.encode()], log.path) == []

    def test_a_restored_database_keeps_what_was_kept(self, log, session, tmp_path):
        """Recording again what an erasure destroyed erases no claim that was kept then."""
        event = session.message("evidence", agent="a")
        claim = promoted(session, [event])
        log.backup(tmp_path / "backup")
        log.redact(events=[event.id], **WHY, keep_derived=True)
        log.close()
        restore(tmp_path / "backup", log.path, by="ops")
        with ConversationLog.open(log.path) as restored:
            assert restored.event(event.id).answer == "erased"
            assert restored.claim(claim.id).claim == MARK
            assert [finding for finding in restored.verify() if finding.rule == "tombstone"] == []

    def test_a_restored_database_does_not_bring_a_claim_back(self, log, session, tmp_path):
        """What went with its evidence stays gone, as the evidence does."""
        event = session.message("evidence", agent="a")
        claim = promoted(session, [event])
        log.backup(tmp_path / "backup")
        log.redact(events=[event.id], **WHY)
        log.close()
        restore(tmp_path / "backup", log.path, by="ops")
        with ConversationLog.open(log.path) as restored:
            assert restored.claim(claim.id).status == "erased"
            assert residue([MARK.encode()], log.path) == []


class TestHolds:
    def test_a_hold_on_a_claim_blocks_the_whole(self, log, session):
        """Nothing is erased, unless the claim is kept or the hold overridden."""
        event = session.message("evidence", agent="a")
        claim = promoted(session, [event])
        hold = log.place_hold(event=claim.id, reason="legal_order", by="counsel")
        for dry_run in (True, False):
            with pytest.raises(UnderHold) as refused:
                log.redact(events=[event.id], **WHY, dry_run=dry_run)
            assert (refused.value.holds, refused.value.count) == ((hold.id,), 1)
        assert log.event(event.id).answer == "live"
        assert (tombstones(log), pending(log)) == (0, 0)
        assert log.redact(events=[event.id], **WHY, keep_derived=True).derived_kept == 2
        done = log.redact(events=[event.id], **WHY, override_hold=hold.id)
        assert log.event(done.redactions[0]).value["overridden"] == [hold.id]
        assert log.claim(claim.id).status == "erased"


class TestRetention:
    @pytest.fixture
    def log(self, store_path, clock):
        """A log whose clock stands still, and a policy for messages."""
        with ConversationLog.open(store_path, clock=clock) as opened:
            opened.set_policy(
                RetentionPolicy(id="old", match={"type": "message"}, max_age="30d", keep_last=0), by="ops"
            )
            yield opened

    def aged(self, log, session, clock, days=31):
        """Evidence that is due and its claim."""
        event = session.message("evidence", agent="a")
        clock.advance(days * DAY)
        return event, promoted(session, [event])

    def test_what_is_due_takes_its_claims_along(self, log, session, clock):
        """By the policy that the evidence is due by; the plan and the outcome say the same."""
        event, claim = self.aged(log, session, clock)
        plan = log.apply_retention(by="ops", dry_run=True)
        done = log.apply_retention(by="ops")
        for found in (plan, done):
            assert (found.erased, found.derived, found.derived_kept) == (3, 2, 0)
            assert found.policies == {"old@1": 3}
        assert log.claim(claim.id).status == "erased"
        assert log.event(event.id).answer == "erased"
        assert residue([MARK.encode()], log.path) == []
        assert log.apply_retention(by="ops").erased == 0

    def test_kept_on_demand(self, log, session, clock):
        """As with redact."""
        _, claim = self.aged(log, session, clock)
        done = log.apply_retention(by="ops", keep_derived=True)
        assert (done.erased, done.derived, done.derived_kept) == (1, 0, 2)
        assert "redacted" in log.claim(claim.id).evidence[0]

    def test_a_hold_or_a_min_age_keeps_the_claim_and_not_the_evidence(self, log, session, clock):
        """What is to be remembered longer than what it came from is; it shows that its evidence is gone."""
        _, held = self.aged(log, session, clock)
        log.place_hold(event=held.id, reason="legal_order", by="counsel")
        for kind in ("memory-promoted", "memory-proposed"):
            policy = RetentionPolicy(id=kind, match={"kind": kind, "session": "t"}, min_age="365d")
            log.set_policy(policy, by="ops")
        event = log.session("t").message("evidence", agent="a")
        clock.advance(31 * DAY)
        kept = promoted(log.session("t"), [event], key="k2")
        plan = log.apply_retention(by="ops", dry_run=True)
        done = log.apply_retention(by="ops")
        for found in (plan, done):
            # Of the held claim the proposal goes, which nothing keeps; and its approval, which is a message.
            assert (found.derived, found.derived_kept) == (1, 3)
        for claim in (held, kept):
            shown = log.claim(claim.id)
            assert (shown.status, "redacted" in shown.evidence[0]) == ("stands", True)

    def test_a_proposal_may_go_before_its_claim(self, log, session, clock):
        """A policy about proposals is none about claims."""
        log.set_policy(RetentionPolicy(id="new", match={"kind": "memory-proposed"}, max_age="1d"), by="ops")
        _, claim = self.aged(log, session, clock, days=1)
        clock.advance(2 * DAY)
        assert log.apply_retention(by="ops").erased == 1
        assert log.claim(claim.id).status == "stands"

    def test_page_by_page(self, log, session, clock, monkeypatch):
        """A claim of evidence on several pages, itself due, is counted once, in the plan as in the outcome."""
        monkeypatch.setattr(expiring, "PAGE", 3)
        log.set_policy(RetentionPolicy(id="all", match={"type": "mutation"}, max_age="60d"), by="ops")
        events = [session.message(f"{n}", agent="a") for n in range(8)]
        promoted(session, events)
        promoted(session, events[5:], key="k2")
        clock.advance(61 * DAY)
        plan = log.apply_retention(by="ops", dry_run=True)
        done = log.apply_retention(by="ops")
        assert plan.policies == done.policies
        assert (plan.erased, plan.derived) == (done.erased, done.derived)
        assert done.erased == 8 + 1 + 4 + 2  # messages, the opening, proposals and claims, approvals
        assert residue([MARK.encode()], log.path) == []


REDACT_EVIDENCE = """
    event = log.session("s").read(type="message")[0]
    log.redact(events=[event.id], reason="test", by="operator")
    print("returned")
"""


class TestCrashes:
    @pytest.mark.parametrize("step", STEPS)
    def test_the_next_open_finishes_what_a_kill_left(self, log, session, tmp_path, step):
        """After kill -9 at each step of the erasure, one open for writing has erased the claim with its evidence."""
        event = session.message("evidence", agent="a")
        claim = promoted(session, [event], MARK * 3000)
        session.message("kept", agent="a")
        log.export_to(tmp_path / "out")
        needles = [MARK.encode(), *secrets_of(log, claims_of(session))]
        slots = len(slots_of(log, claims_of(session)))
        assert slots == 4  # each has its whole value beside the line
        log.close()
        done = run(DYING + f"    {STEPS[step]}\n" + REDACT_EVIDENCE, log.path, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        with ConversationLog.open(log.path, read_only=True) as reading:
            assert [found for found in reading.verify() if found.rule != "mirror-behind"] == []
        with ConversationLog.open(log.path) as again:
            assert pending(again) == 0
            assert residue(needles, log.path, tmp_path / "out") == []
            assert again.claim(claim.id).status == "erased"
            assert {one.answer for one in claims_of(again.session("s"))} == {"erased"}
            assert again.session("s").read(type="message")[-1].body == "kept"
            assert list(again.verify(projections=True)) == []
