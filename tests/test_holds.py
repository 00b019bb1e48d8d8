"""Holds: what they cover, that they overlap, and that nothing erases what is held without saying so."""

import threading

import pytest

from convlog_sqlite import (
    ConversationLog,
    InvalidEvent,
    NotAStore,
    PayloadCorrupt,
    RetentionPolicy,
    StoreReadOnly,
    UnderHold,
    UnknownReference,
)
from convlog_sqlite.redaction import Redactor, _Alone
from convlog_sqlite.store import erasing

WIPE = """
UPDATE payload SET sealed = zeroblob(length(sealed)) WHERE pos =
(SELECT pos FROM envelope AS v JOIN session AS s ON s.id = v.session WHERE s.name = '_store' ORDER BY pos DESC LIMIT 1)"""


@pytest.fixture
def event(log):
    """An event that every scope can name."""
    return log.session("build").message("secret", agent="worker", task_id="jwt", subjects=["Ann Lee"])


def answer(log, event):
    """Whether the content of an event is there."""
    return log.event(event.id).answer


def redact(log, event, **more):
    """Erase one event."""
    return log.redact(events=[event.id], reason="test", by="ops", **more)


class TestPlacing:
    def test_a_hold_is_a_mutation_of_its_placer_in_the_store_session(self, log, event):
        """Who placed and who released it stands in the log, and what it covers."""
        hold = log.place_hold(task="jwt", reason="legal_order", by="counsel")
        log.release_hold(hold.id, by="clerk")
        placed, released = log.session("_store").tail(2)
        assert (placed.id, placed.kind, placed.agent) == (hold.id, "hold-placed", "counsel")
        assert placed.value == {"scope": "task", "name": "jwt", "reason": "legal_order"}
        assert (released.kind, released.agent, released.value) == (
            "hold-released",
            "clerk",
            {"hold": hold.id},
        )

    def test_holds_are_listed_until_they_are_released(self, log, event):
        """The list says what stands now, in any handle, oldest first."""
        first = log.place_hold(session="build", reason="test", by="ops")
        second = log.place_hold(agent="worker", reason="test", by="ops")
        with ConversationLog.open(log.path, read_only=True) as other:
            assert other.holds() == [first, second]
        assert log.release_hold(first.id, by="ops") == first
        assert log.holds() == [second]

    def test_a_person_is_never_named(self, log, event):
        """A hold on a subject is stored, mirrored and shown as a keyed digest."""
        hold = log.place_hold(subject="Ann Lee", reason="test", by="ops")
        assert hold.name == event.subjects[0]
        assert not any(b"Ann Lee" in line for line in log.lines("_store"))

    def test_the_mirror_shows_it(self, log, event):
        """The line of the hold stands in the mirror when the call returned."""
        hold = log.place_hold(session="build", reason="test", by="ops")
        assert hold.id in log.mirror.path("_store").read_text()

    def test_callers_still_do_not_write_to_the_store_session(self, log):
        """A hold cannot be forged by an append."""
        with pytest.raises(InvalidEvent):
            log.session("_store").mutation("hold-placed", {}, agent="mallory")

    @pytest.mark.parametrize(
        "scope",
        [
            {},
            {"session": "build", "task": "jwt"},
            {"agent": ""},
            {"session": "../x"},
        ],
    )
    def test_a_wrong_scope_is_refused(self, log, event, scope):
        """One scope, with a name."""
        with pytest.raises(InvalidEvent):
            log.place_hold(**scope, reason="test", by="ops")
        assert log.holds() == []

    def test_a_reason_is_one_of_the_list(self, log, event):
        """No free text: a note could quote what is held."""
        with pytest.raises(InvalidEvent) as refused:
            log.place_hold(session="build", reason="because Ann asked", by="ops")
        assert refused.value.pointer == "/reason"

    @pytest.mark.parametrize(
        "scope", [{"session": "nowhere"}, {"event": "0" * 8 + "-0000-7000-8000-" + "0" * 12}]
    )
    def test_what_does_not_exist_cannot_be_held(self, log, event, scope):
        """A mistyped session or event would hold nothing."""
        with pytest.raises(UnknownReference):
            log.place_hold(**scope, reason="test", by="ops")

    def test_an_unknown_hold_cannot_be_released(self, log, event):
        """Nor one that was released: nothing is written."""
        hold = log.place_hold(session="build", reason="test", by="ops")
        log.release_hold(hold.id, by="ops")
        head = log.session("_store").head
        for hold_id in (hold.id, event.id, "nonsense" * 100):
            with pytest.raises(UnknownReference):
                log.release_hold(hold_id, by="ops")
        assert log.session("_store").head == head

    def test_a_read_only_handle_places_none(self, log, event):
        """It says so before anything else."""
        with ConversationLog.open(log.path, read_only=True) as other, pytest.raises(StoreReadOnly):
            other.place_hold(session="build", reason="test", by="ops")

    def test_an_ephemeral_log_has_none(self):
        """History that is gone at close is not held."""
        with ConversationLog.ephemeral() as log:
            log.session("s").message("x", agent="a")
            with pytest.raises(NotAStore):
                log.place_hold(session="s", reason="test", by="a")
            assert log.holds() == []

    def test_a_log_with_holds_verifies(self, log, event):
        """The mutations are events like all others."""
        hold = log.place_hold(session="build", reason="test", by="ops")
        log.release_hold(hold.id, by="ops")
        assert list(log.verify()) == []

    def test_threads_place_holds_and_append_at_once(self, log, event):
        """None is lost, and the chains hold."""
        session = log.session("build")

        def work(number):
            for _ in range(10):
                log.place_hold(task=f"t{number}", reason="test", by="ops")
                session.message("more", agent="worker")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(log.holds()) == 40
        assert list(log.verify()) == []


class TestHeld:
    @pytest.mark.parametrize("scope", ["session", "task", "agent", "subject", "event"])
    def test_each_scope_holds(self, log, event, scope):
        """A held event is not erased, and the refusal says by which hold and how many events."""
        name = {"session": "build", "task": "jwt", "agent": "worker", "subject": "Ann Lee", "event": event.id}
        hold = log.place_hold(**{scope: name[scope]}, reason="test", by="ops")
        with pytest.raises(UnderHold) as refused:
            redact(log, event)
        assert (refused.value.holds, refused.value.count) == ((hold.id,), 1)
        assert answer(log, event) == "live"
        log.release_hold(hold.id, by="ops")
        assert redact(log, event).erased == 1

    @pytest.mark.parametrize("scope", [{"task": "other"}, {"agent": "other"}, {"subject": "Bob"}])
    def test_others_are_not_held(self, log, event, scope):
        """A hold covers what it names and nothing else."""
        log.place_hold(**scope, reason="test", by="ops")
        assert redact(log, event).erased == 1

    def test_the_whole_call_is_refused(self, log, event):
        """One held event among many: none is erased, nothing is written."""
        free = log.session("build").message("free", agent="other")
        log.place_hold(event=event.id, reason="test", by="ops")
        head = log.session("build").head
        with pytest.raises(UnderHold):
            log.redact(session="build", reason="test", by="ops")
        assert answer(log, free) == "live"
        assert log.session("build").head == head

    def test_a_dry_run_is_refused_like_the_call(self, log, event):
        """It says what the call would do."""
        log.place_hold(event=event.id, reason="test", by="ops")
        with pytest.raises(UnderHold):
            redact(log, event, dry_run=True)

    def test_all_holds_must_be_released(self, log, event):
        """Holds overlap: each keeps what it covers for itself."""
        holds = [
            log.place_hold(session="build", reason="test", by="ops"),
            log.place_hold(task="jwt", reason="test", by="ops"),
            log.place_hold(task="jwt", reason="legal_order", by="ops"),
        ]
        for hold in holds:
            with pytest.raises(UnderHold) as refused:
                redact(log, event)
            assert hold.id in refused.value.holds
            log.release_hold(hold.id, by="ops")
        assert redact(log, event).erased == 1

    def test_a_hold_covers_what_comes_later(self, log, event):
        """Events that are appended under it are held too."""
        log.place_hold(task="jwt", reason="test", by="ops")
        later = log.session("elsewhere").message("new", agent="x", task_id="jwt")
        with pytest.raises(UnderHold):
            redact(log, later)

    def test_what_was_erased_before_is_not_counted(self, log, event):
        """Only what would be erased can be held."""
        redact(log, event)
        log.place_hold(task="jwt", reason="test", by="ops")
        assert redact(log, event).already == 1

    def test_a_hold_that_cannot_be_read_stops_every_erasure(self, log, event):
        """What it held is unknown: nothing is erased."""
        log.place_hold(task="other", reason="test", by="ops")
        with log._store.database.write() as connection:
            connection.execute(WIPE)
        with pytest.raises(PayloadCorrupt):
            redact(log, event)
        assert answer(log, event) == "live"


class TestOverriding:
    def test_an_override_is_recorded(self, log, event):
        """The redaction event names the hold that it went over."""
        hold = log.place_hold(task="jwt", reason="legal_order", by="counsel")
        done = redact(log, event, override_hold=hold.id)
        assert done.erased == 1
        assert log.event(done.redactions[0]).value["overridden"] == [hold.id]
        assert log.holds() == [hold]

    def test_every_hold_must_be_overridden(self, log, event):
        """The refusal names those that were not."""
        first = log.place_hold(task="jwt", reason="test", by="ops")
        second = log.place_hold(session="build", reason="test", by="ops")
        with pytest.raises(UnderHold) as refused:
            redact(log, event, override_hold=first.id)
        assert refused.value.holds == (second.id,)
        done = redact(log, event, override_hold=[first.id, second.id])
        assert log.event(done.redactions[0]).value["overridden"] == sorted([first.id, second.id])

    def test_only_what_stood_in_the_way_is_recorded(self, log, event):
        """A hold that covers none of a session's events was not overridden there."""
        other = log.session("other").message("x", agent="worker")
        hold = log.place_hold(task="jwt", reason="test", by="ops")
        done = log.redact(agent="worker", reason="test", by="ops", override_hold=hold.id)
        said = {log.event(one).session: log.event(one).value for one in done.redactions}
        assert said["build"]["overridden"] == [hold.id]
        assert "overridden" not in said["other"]
        assert answer(log, other) == "erased"

    def test_an_unknown_hold_is_an_error(self, log, event):
        """Also one that was released."""
        hold = log.place_hold(task="jwt", reason="test", by="ops")
        log.release_hold(hold.id, by="ops")
        with pytest.raises(UnknownReference):
            redact(log, event, override_hold=hold.id)
        assert answer(log, event) == "live"


class TestRaces:
    def test_a_hold_placed_before_the_decision_counts(self, log, event, monkeypatch):
        """However late it came: the check is made in the transaction that decides."""
        enter = _Alone.__enter__

        def late(self):
            entered = enter(self)
            with ConversationLog.open(log.path) as other:
                other.place_hold(task="jwt", reason="test", by="ops")
            return entered

        monkeypatch.setattr(_Alone, "__enter__", late)
        with pytest.raises(UnderHold):
            redact(log, event)
        assert answer(log, event) == "live"

    def test_a_hold_that_comes_while_it_is_decided_waits(self, log, event, monkeypatch):
        """It stands behind the decision in the log, and did not see the event erased without one."""
        placing = threading.Thread(
            target=lambda: other.place_hold(task="jwt", reason="test", by="ops"), daemon=True
        )
        decide = erasing.decide

        def slowly(*arguments):
            placing.start()
            placing.join(0.3)
            assert placing.is_alive(), "it was placed in the middle of the decision"
            return decide(*arguments)

        with ConversationLog.open(log.path) as other:
            monkeypatch.setattr(erasing, "decide", slowly)
            assert redact(log, event).erased == 1
            placing.join(10)
            assert len(other.holds()) == 1

    def test_a_hold_placed_while_retention_looks_counts(self, log, event, clock, monkeypatch):
        """What a page showed before the hold was placed is looked at again under the lock."""
        log.set_policy(RetentionPolicy(id="p", max_age="1d"), by="ops")
        expiry = Redactor._expiry

        def late(self, database, now):
            found = expiry(self, database, now + 10**9 * 86_400 * 2)
            pages = found._pages

            def paged():
                for number, page in enumerate(pages()):
                    if not number:
                        with ConversationLog.open(log.path) as other:
                            other.place_hold(task="jwt", reason="test", by="ops")
                    yield page

            found._pages = paged
            return found

        monkeypatch.setattr(Redactor, "_expiry", late)
        done = log.apply_retention(by="ops")
        assert (done.erased, done.held) == (1, 1), "the opening of the session is due, the event is held"
        assert answer(log, event) == "live"
