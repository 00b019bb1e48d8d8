"""Labels: said afterwards, they count as what the event said of itself, and outlive its content."""

import asyncio

import pytest

from convlog_sqlite import (
    AsyncConversationLog,
    ConversationLog,
    InvalidEvent,
    RetentionPolicy,
    StoreReadOnly,
    UnderHold,
    UnknownReference,
)

DROP_POSTING = "DELETE FROM posting WHERE facet = 5 AND seq = ?"
ADD_POSTING = "INSERT INTO posting SELECT session, facet, name, 3 FROM posting WHERE facet = 5 AND seq = 2"


@pytest.fixture
def event(log):
    """An event that says nothing of the person it is about."""
    return log.session("build").message("she lives at 5 Elm St", agent="worker")


def restricted(log, **match):
    """Let a policy stand that erases what is restricted, or `match`, after a minute; what would be erased now."""
    log.set_policy(
        RetentionPolicy(id="p", match=match or {"sensitivity": "restricted"}, max_age="1m"), by="ops"
    )
    return log.apply_retention(by="ops", dry_run=True).erased


class TestLabels:
    def test_a_label_is_a_mutation_without_content(self, log, event):
        """It stands in the event's session and names it as evidence; the person is a keyed digest."""
        label = log.label(
            event.id.replace("-", ""), subjects=["Ann Lee"], sensitivity="confidential", by="ops"
        )
        assert (label.session, label.kind, label.agent) == ("build", "event-labelled", "ops")
        assert label.links == {"evidence": [event.id]}
        assert label.content == {}
        assert label.sensitivity == "confidential"
        assert b"Ann Lee" not in b"".join(log.lines())
        assert log.session("build").message("x", agent="a", subjects=["Ann Lee"]).subjects == label.subjects
        assert list(log.verify()) == []

    def test_redact_by_subject_finds_the_event(self, log, event):
        """The event is erased, and the label, whose envelope still says it."""
        other = log.session("build").message("about nobody", agent="worker")
        log.label(event.id, subjects=["Ann Lee"], by="ops")
        done = log.redact(subject="Ann Lee", reason="subject_request", by="ops")
        assert done.erased == 2
        assert log.event(event.id).answer == "erased"
        assert log.event(other.id).answer == "live"
        assert log.redact(subject="Ann Lee", reason="test", by="ops").already == 2
        assert list(log.verify()) == []

    def test_the_erased_can_be_labelled(self, log, event):
        """The label outlives the content, and may come after it."""
        log.redact(events=[event.id], reason="test", by="ops")
        log.label(event.id, subjects=["Ann Lee"], sensitivity="restricted", by="ops")
        assert log.redact(subject="Ann Lee", reason="test", by="ops", dry_run=True).already == 1

    def test_a_hold_on_the_person_covers_the_event(self, log, event):
        """Whether the hold or the label came first."""
        hold = log.place_hold(subject="Ann Lee", reason="legal_order", by="counsel")
        log.label(event.id, subjects=["Bob", "Ann Lee"], by="ops")
        with pytest.raises(UnderHold) as refused:
            log.redact(events=[event.id], reason="test", by="ops")
        assert refused.value.holds == (hold.id,)

    def test_policies_match_by_label(self, store_path, clock):
        """By subject, and by the highest of the sensitivities of the event and its labels."""
        with ConversationLog.open(store_path, clock=clock) as log:
            event = log.session("s").message("x", agent="a")
            log.session("s").message("y", agent="a")
            clock.advance(3600)
            assert restricted(log) == 0
            log.label(event.id, sensitivity="restricted", by="ops")
            log.label(event.id, sensitivity="confidential", by="ops")
            assert restricted(log) == 1
            assert "policy p@" in log.explain(event.id)
            log.label(event.id, subjects=["Ann Lee"], by="ops")
            assert restricted(log, subject="Ann Lee") == 1
            assert restricted(log, sensitivity="internal") == 2, (
                "the opening and the other message: it is no longer one"
            )
            assert log.apply_retention(by="ops").erased == 2

    def test_a_label_only_raises(self, log):
        """Lower than the event is refused; who names people only leaves a public event public."""
        public = log.session("s").message("x", agent="a", sensitivity="public")
        assert log.label(public.id, subjects=["Ann"], by="ops").sensitivity == "public"
        secret = log.session("s").message("x", agent="a", sensitivity="restricted")
        with pytest.raises(InvalidEvent) as refused:
            log.label(secret.id, sensitivity="internal", by="ops")
        assert refused.value.pointer == "/sensitivity"
        assert log.label(secret.id, subjects=["Ann"], by="ops").sensitivity == "restricted"

    def test_labels_repeat_and_overlap(self, log):
        """The same label twice, one of what the event says itself, and a label on a label: nothing is doubled."""
        own = log.session("s").message("x", agent="a", subjects=["Ann"])
        first = log.label(own.id, subjects=["Ann"], by="ops")
        log.label(own.id, subjects=["Ann", "Bob"], by="ops")
        log.label(first.id, subjects=["Bob"], by="ops")
        assert log.redact(subject="Ann", reason="test", by="ops").erased == 3
        assert list(log.verify()) == []

    def test_a_draft_is_a_label_too(self, log, event):
        """An agent may label in a batch with the event, by the same rules, checked in the same transaction."""
        session = log.session("build")
        for links in (
            None,
            {"derived_from": [event.id]},
            {"evidence": [log.session("_store").tail(1)[0].id]},
        ):
            with pytest.raises(InvalidEvent) as refused:
                session.mutation("event-labelled", agent="a", subjects=["Ann"], links=links)
            assert refused.value.pointer.startswith("/links/evidence")
        with pytest.raises(InvalidEvent):
            log.session("other").mutation("event-labelled", agent="a", links={"evidence": [event.id]})
        assert session.head == 2
        session.mutation(
            "event-labelled", {"why": "seen"}, agent="a", subjects=["Ann"], links={"evidence": [event.id]}
        )
        assert log.redact(subject="Ann", reason="test", by="ops").erased == 2

    @pytest.mark.parametrize(
        "keys",
        [{}, {"subjects": "Ann"}, {"subjects": [""]}, {"sensitivity": "secret"}, {"subjects": ["A", "A"]}],
    )
    def test_bad_labels_are_refused(self, log, event, keys):
        """A label says something, of people by name and with a word of the list; nothing is written."""
        with pytest.raises(InvalidEvent):
            log.label(event.id, by="ops", **keys)
        assert log.session("build").head == 2

    def test_what_is_not_there_or_not_the_callers_is_refused(self, log, event):
        """Unknown events, those of the store itself, and read-only handles."""
        with pytest.raises(UnknownReference):
            log.label("00000000-0000-7000-8000-000000000000", subjects=["Ann"], by="ops")
        with pytest.raises(InvalidEvent):
            log.label(log.session("_store").tail(1)[0].id, subjects=["Ann"], by="ops")
        with ConversationLog.open(log.path, read_only=True) as reader, pytest.raises(StoreReadOnly):
            reader.label(event.id, subjects=["Ann"], by="ops")

    def test_verify_finds_a_label_that_is_not_followed(self, log, event):
        """A labelled event that is not posted under the person, and one that is without a label, are faults."""
        log.label(event.id, subjects=["Ann"], by="ops")
        log.session("build").message("x", agent="a")
        assert list(log.verify()) == []
        with log._store.database.write() as connection:
            connection.execute(DROP_POSTING, (event.seq,))
        assert [(found.rule, found.seq) for found in log.verify()] == [("index", event.seq)]
        with log._store.database.write() as connection:
            connection.execute(DROP_POSTING, (3,))
        assert {found.rule for found in log.verify()} == {"index"}

    def test_verify_finds_a_posting_that_nobody_said(self, log, event):
        """Being posted under somebody else's label is a fault."""
        log.label(event.id, subjects=["Ann"], by="ops")
        other = log.session("build").message("x", agent="a")
        with log._store.database.write() as connection:
            connection.execute(ADD_POSTING.replace(" 3 ", f" {other.seq} "))
        assert [(found.rule, found.seq) for found in log.verify()] == [("index", other.seq)]

    def test_an_ephemeral_log_has_labels(self):
        """They are events like any other."""
        with ConversationLog.ephemeral() as log:
            event = log.session("s").message("x", agent="a")
            log.label(event.id, subjects=["Ann"], by="a")
            assert log.redact(subject="Ann", reason="test", by="a").erased == 2


def test_the_async_twins_do_the_same(store_path):
    """label, fences, lift_fence, redact with a fence, and scrub, awaited."""

    async def body():
        async with AsyncConversationLog.open(store_path, scrub=True) as log:
            event = await log.session("s").message("ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ0cD2fG4hJ6", agent="a")
            assert event.body == "[secret:github-token]"
            assert log.scrubbed == {"github-token": 1}
            await log.label(event.id, subjects=["Ann"], sensitivity="restricted", by="ops")
            assert (await log.redact(subject="Ann", reason="test", by="ops", fence=True)).erased == 2
            (fence,) = await log.fences()
            assert await log.lift_fence("Ann", by="ops") == fence
            assert await log.fences() == []
        async with AsyncConversationLog.ephemeral(scrub=True) as log:
            event = await log.session("s").message("AKIA" + "Q2W3E4R5T6Y7U2I3", agent="a")
            assert event.body == "[secret:aws-access-key]"

    asyncio.run(body())
