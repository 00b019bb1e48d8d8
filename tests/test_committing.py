"""Group commit: threads that append at once share transactions, and one that is refused harms no other."""

import threading
from itertools import pairwise

import pytest

from convlog_sqlite import Draft, InvalidEvent, PairingError, Refused, UnknownReference
from convlog_sqlite.store import committing
from convlog_sqlite.store.committing import Writer
from convlog_sqlite.store.preparing import prepare


def in_threads(*calls):
    """Run calls at once; what each returned or raised, in order."""
    outcomes = [None] * len(calls)
    ready = threading.Barrier(len(calls))

    def run(number, call):
        ready.wait()
        try:
            outcomes[number] = call()
        except Refused as refused:
            outcomes[number] = refused

    threads = [threading.Thread(target=run, args=one) for one in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_threads_lose_and_double_nothing(log):
    """Eight threads append to four sessions: every event is there once, in the order of its thread, without gaps."""
    count = 60

    def appender(number):
        session = log.session(f"s{number % 4}")
        return lambda: [session.message(f"{number}-{n}", agent=f"a{number}").body for n in range(count)]

    outcomes = in_threads(*(appender(number) for number in range(8)))
    assert [[f"{number}-{n}" for n in range(count)] for number in range(8)] == outcomes
    for number in range(4):
        events = log.session(f"s{number}").read()
        assert list(range(1, 2 * count + 2)) == [event.seq for event in events]
        for agent in (f"a{number}", f"a{number + 4}"):
            said = [int(event.body.split("-")[1]) for event in events if event.agent == agent and event.body]
            assert list(range(count)) == said
    assert list(log.verify()) == []


def test_whom_a_commit_woke_is_waited_for(log, monkeypatch):
    """Two that were committed together are again, though one of them leads before the other has its next."""
    writer, sizes = log._store.writer, []
    commit = Writer._commit

    def counted(self, requests):
        sizes.append(len(requests))
        return commit(self, requests)

    def other_runs(_seconds):
        draft = Draft(type="message", agent="b", body="other")
        writer._join([writer.request("s", None, [prepare(draft, b"")])])

    monkeypatch.setattr(Writer, "_commit", counted)
    session = log.session("s")
    session.message("opened", agent="a")
    together(
        log,
        ("s", [Draft(type="message", agent="a", body="x")]),
        ("s", [Draft(type="message", agent="b", body="x")]),
    )
    monkeypatch.setattr(committing.time, "sleep", other_runs)
    session.message("mine", agent="a")
    monkeypatch.undo()
    assert sizes == [1, 2, 2]
    assert [event.body for event in session.tail(2)] == ["mine", "other"]


def test_one_alone_waits_for_nobody(log, monkeypatch):
    """An append that follows on one of its own commits at once."""
    session = log.session("s")
    session.message("x", agent="a")
    monkeypatch.setattr(committing.time, "sleep", lambda _seconds: pytest.fail("it waited"))
    session.message("x", agent="a")


def together(log, *appends):
    """The outcomes of appends that are committed in one transaction."""
    return log.append_together([(session, None, drafts) for session, drafts in appends])


def test_a_refused_append_takes_no_seq_and_harms_no_other(log):
    """In one transaction with a refused append, the others are recorded as if it had never been."""
    unknown = "01900000-0000-7000-8000-000000000000"
    good = Draft(type="message", agent="a", body="x")
    first, second, third = together(
        log,
        ("s", [good]),
        ("s", [good, Draft(type="message", agent="a", body="y", parent_id=unknown)]),
        ("s", [good]),
    )
    assert isinstance(second, UnknownReference)
    assert second.index == 1
    assert [2, 3] == [first[0].seq, third[0].seq]
    assert list(log.verify()) == []


def test_a_refused_append_does_not_open_its_session(log):
    """A session that only a refused append named does not exist afterwards, also for the handle that tried."""
    unknown = "01900000-0000-7000-8000-000000000000"
    bad = Draft(type="message", agent="a", body="x", parent_id=unknown)
    good = Draft(type="message", agent="a", body="x")
    refused, _ = together(log, ("new", [bad]), ("other", [good]))
    assert isinstance(refused, UnknownReference)
    assert {"_store", "other"} == {session.id for session in log.sessions()}
    assert 2 == log.session("new").append(good).seq


def test_two_results_for_one_call_in_one_transaction(log):
    """Of two results that are committed together, the first counts and the second is refused."""
    call = log.session("s").tool_call("t", {}, agent="a")
    result = Draft(type="tool_result", agent="a", call_id=call.id, result=1)
    first, second = together(log, ("s", [result]), ("s", [result]))
    assert call.id == first[0].call_id
    assert isinstance(second, PairingError)
    assert [] == log.session("s").open_calls()


def test_a_refused_result_leaves_its_call_open(log):
    """A result that is refused for another reason has not answered its call."""
    session = log.session("s")
    call = session.tool_call("t", {}, agent="a")
    unknown = "01900000-0000-7000-8000-000000000000"
    bad = Draft(type="tool_result", agent="a", call_id=call.id, result=1, links={"evidence": [unknown]})
    refused, _ = together(log, ("s", [bad]), ("s", [Draft(type="message", agent="a", body="x")]))
    assert isinstance(refused, UnknownReference)
    assert [call.id] == [event.id for event in session.open_calls()]


def test_one_key_from_many_threads_is_one_event(log):
    """The same idempotency key from eight threads at once records one event, and all get it."""
    session = log.session("s")
    outcomes = in_threads(*[lambda: session.message("x", agent="a", idempotency_key="k").id] * 8)
    assert 1 == len(set(outcomes))
    assert 2 == session.head


def test_one_key_twice_in_one_transaction(log):
    """The same key twice among appends that are committed together gives the same event twice."""
    draft = Draft(type="message", agent="a", body="x", idempotency_key="k")
    first, second = together(log, ("s", [draft]), ("s", [draft]))
    assert first == second


def test_a_draft_that_breaks_a_rule_is_refused_before_the_transaction(log):
    """What needs no database to be refused does not reach it, and the others go on."""
    refused, fine = together(
        log, ("s", [Draft(type="message", agent="")]), ("s", [Draft(type="message", agent="a", body="x")])
    )
    assert isinstance(refused, InvalidEvent)
    assert 2 == fine[0].seq


@pytest.mark.parametrize("count", [1, 2, 50])
def test_slots_are_used_once_and_not_wasted(log, count):
    """Appends use one slot an event; what was leased and not used is used by the next."""
    session = log.session("s")
    for _ in range(count):
        session.message("x", agent="a")
    with log._store.database.read() as connection:
        slots = [row[0] for row in connection.execute("SELECT number FROM slot ORDER BY number").fetchall()]
    assert count + 3 == len(slots)  # and two events of the store's own, and the opening of the session
    assert all(before < after for before, after in pairwise(slots))
    assert slots[-1] <= count + 5
