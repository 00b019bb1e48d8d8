"""Budgets: what fits is the newest, whole pairs, cut where it is long, and what is missing is said to the number."""

import asyncio
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from convlog_sqlite import (
    AsyncConversationLog,
    Attachment,
    BudgetTooSmall,
    ConversationLog,
    Corrupt,
    Erased,
    Event,
    Live,
    Locked,
    fit,
    strictjson,
)
from convlog_sqlite.budget import shortened

MARK = re.compile(r"\[… ([\d,]+) characters left out …\]")
MAIN = {"message": "body", "tool_call": "args", "tool_result": "result", "mutation": "value"}
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"

texts = st.one_of(
    st.text(max_size=40),
    st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=4), st.integers(1, 3000)),
    st.sampled_from(["\0" * 900, FAMILY * 300, "e\u0301" * 500, '"\\\n' * 400, "👍🏽" * 500, "\r\n" * 700]),
)
values = st.one_of(
    texts,
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(texts, max_size=3),
    st.dictionaries(texts, texts, max_size=2),
)


def an_event(seq, kind, payload, **keys):
    """An event as the log gives it; `payload` is a dict, or the answer that there is instead."""
    envelope = {
        "v": 1,
        "id": f"0192{seq:028x}",
        "seq": seq,
        "ts": "2026-01-02T03:04:05.678901Z",
        "session": "s",
    }
    envelope |= {"agent": "ann", "type": kind, **keys}
    return Event(
        strictjson.dump(envelope), Live(strictjson.dump(payload)) if isinstance(payload, dict) else payload
    )


@st.composite
def pages(draw):
    """Events of any type, with gaps in seq, some of them the results of calls in front of them."""
    events, open_calls = [], []
    seq = draw(st.integers(0, 10**6))
    for _ in range(draw(st.integers(1, 9))):
        seq += draw(st.integers(1, 3))
        kind = draw(st.sampled_from(["message", "tool_call", "tool_result", "mutation"]))
        keys = {}
        if kind == "tool_result" and open_calls:
            keys["call_id"] = open_calls.pop(draw(st.integers(0, len(open_calls) - 1))).id
        if draw(st.booleans()):
            keys["task_id"] = draw(st.text(min_size=1, max_size=9))
        payload = draw(
            st.sampled_from([None, None, None, None, Erased("0192", "2026", "expired"), Locked(), Corrupt()])
        )
        if payload is None:
            payload = {MAIN[kind]: draw(texts if kind == "message" else values)}
            if draw(st.integers(0, 3)) == 0:
                payload["meta"] = draw(st.dictionaries(texts, values, max_size=2))
            if draw(st.integers(0, 5)) == 0:
                payload["withheld"] = True
        event = an_event(seq, kind, payload, **keys)
        events.append(event)
        if kind == "tool_call":
            open_calls.append(event)
    return events


def printed(page, *, brief):
    """What is printed, as text."""
    return b"".join(page.lines(brief=brief)).decode()


def said_of(page, *, brief):
    """What the lines say: that of what was left out, and those of events; each is JSON."""
    raw = list(page.lines(brief=brief))
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in raw)
    lines = [json.loads(line) for line in raw]
    left_out = lines.pop(0)["left_out"] if "left_out" in lines[0] else None
    return left_out, lines


def smallest_of(events, *, brief):
    """The smallest budget that works."""
    with pytest.raises(BudgetTooSmall) as refused:
        fit(events, 1, brief=brief)
    assert refused.value.max_chars == 1
    return refused.value.smallest


@given(events=pages(), spare=st.integers(0, 9000), brief=st.booleans())
@example(events=[an_event(1, "message", {"body": "\0" * 5000})], spare=0, brief=False)
@example(events=[an_event(1, "message", {"body": "x" * 10_000_000})], spare=500, brief=True)
@example(events=[an_event(9, "tool_call", {"args": ["y" * 3000]})], spare=77, brief=False)
def test_what_is_there_fits_is_the_newest_and_adds_up(events, spare, brief):
    """For any page and budget: it fits, holds the newest, parts no pair, and what it leaves out adds up."""
    budget = smallest_of(events, brief=brief) + spare
    page = fit(events, budget, brief=brief)
    assert len(printed(page, brief=brief)) <= budget
    left_out, lines = said_of(page, brief=brief)

    by_seq = {event.seq: event for event in events}
    there = [event.seq for event in page]
    assert there == sorted(set(there)) == [line["seq"] for line in lines]
    assert there[-1] == events[-1].seq
    gone = [event.seq for event in events if event.seq not in there]
    cut = [event for event in page if event is not by_seq[event.seq]]
    if not gone and not cut:
        assert left_out is None is page.left_out
    else:
        assert left_out == page.left_out.to_dict()
        assert (left_out["events"], left_out["cut"]) == (len(gone), len(cut))
        extent = (gone[0], gone[-1]) if gone else (None, None)
        assert (left_out.get("from"), left_out.get("to")) == extent

    answered = {event.call_id: event for event in events if event.call_id}
    for call_id, result in answered.items():
        call = next(event for event in events if event.id == call_id)
        assert (call.seq in there) == (result.seq in there)
    if gone:
        behind = [event.seq for event in events if event.seq >= page.next]
        assert set(behind) <= set(there)
        calls = {by_seq[seq].id for seq in there if seq < page.next}
        assert calls <= {by_seq[seq].call_id for seq in there if seq >= page.next}


@given(events=pages(), spare=st.integers(0, 3000), brief=st.booleans())
def test_a_cut_event_is_itself_but_for_its_content(events, spare, brief):
    """An event that was cut has its envelope and the ends of its content, and the mark says how much is between."""
    page = fit(events, smallest_of(events, brief=brief) + spare, brief=brief)
    by_seq = {event.seq: event for event in events}
    for event in page:
        whole = by_seq[event.seq]
        assert event.envelope_bytes == whole.envelope_bytes
        if event is whole:
            continue
        assert event.answer == "live"
        assert event.withheld == whole.withheld
        main = MAIN[event.type]
        assert set(event.content) <= {main, "cut", "withheld"}
        assert [key for key in whole.content if key not in event.content] == event.cut.get("without", [])
        if "kept" not in event.cut:
            assert event.content[main] == whole.content[main]
            continue
        value = whole.content[main]
        text = value if isinstance(value, str) else strictjson.dump(value).decode()
        short, kept = event.content[main], event.cut["kept"]
        assert event.cut["characters"] == len(text) > kept >= 0
        marks = [
            found for found in MARK.finditer(short) if int(found[1].replace(",", "")) == len(text) - kept
        ]
        assert any(
            text.startswith(head := short[: found.start()].removesuffix("\n"))
            and text.endswith(tail := short[found.end() :].removeprefix("\n"))
            and kept in range(len(head) + len(tail) - 2, len(head) + len(tail) + 3)
            for found in marks
        )


@given(events=pages(), less=st.integers(1, 400), brief=st.booleans())
def test_a_budget_too_small_is_refused_with_the_smallest_that_works(events, less, brief):
    """What is named as the smallest works, and nothing below it does."""
    smallest = smallest_of(events, brief=brief)
    assert fit(events, smallest, brief=brief)
    with pytest.raises(BudgetTooSmall) as refused:
        fit(events, max(smallest - less, 1), brief=brief)
    assert refused.value.smallest == smallest


@given(text=texts, count=st.integers(0, 500))
def test_text_is_cut_between_what_belongs_together(text, count):
    """No cut parts an accent from its letter, the people of an emoji, or a line end; what is kept is counted."""
    short, kept = shortened(text, min(count, len(text)))
    assert kept <= count
    head, _, tail = short.partition("[…")
    assert not tail.endswith("\u200d") or text.endswith("\u200d")
    if text in (FAMILY * 300, "e\u0301" * 500, "👍🏽" * 500, "\r\n" * 700):
        head, tail = head.removesuffix("\n"), tail.partition("…]")[2].removeprefix("\n")
        unit = next(unit for unit in (FAMILY, "e\u0301", "👍🏽", "\r\n") if text.startswith(unit))
        if unit != "\r\n":
            assert (len(head) % len(unit), len(tail) % len(unit)) == (0, 0)
        assert kept % len(unit) == 0


def test_of_long_events_several_are_there():
    """A long event gets a part of the budget, so that there are others beside it."""
    events = [an_event(seq, "message", {"body": f"{seq} " * 4000}) for seq in range(1, 11)]
    page = fit(events, 4000)
    assert [event.seq for event in page] == [7, 8, 9, 10]
    assert len(printed(page, brief=False)) > 3900, "room that nothing else takes goes to what was cut"


def test_an_event_alone_takes_the_whole_budget():
    """Where nothing else needs the room, the newest has it."""
    page = fit([an_event(1, "message", {"body": "word " * 4000})], 3000)
    assert 2950 <= len(printed(page, brief=False)) <= 3000


def test_nothing_in_nothing():
    """No events fit in any budget, and a budget is one character or more."""
    assert fit([], 1) == []
    with pytest.raises(ValueError, match="1 character"):
        fit([], 0)


def test_brief_says_the_few_keys(log):
    """The keys that an agent needs, absent ones left out, and the answer of a payload that cannot be read."""
    session = log.session("s")
    session.message("Do it.", agent="lead", to=["bob"], task_id="t", performative="request", meta={"a": 1})
    call = session.tool_call("shell", {"cmd": "ls"}, agent="bob")
    session.tool_result(call, None, agent="bob")
    gone = session.mutation("plan-set", [1], agent="lead")
    log.redact(events=[gone.id], reason="user_delete", by="ops")
    briefs = [event.brief() for event in session.tail(5)]
    assert briefs[:3] == [
        {"seq": 2, "agent": "lead", "type": "message", "to": ["bob"], "task_id": "t", "performative": "request",
         "body": "Do it."},
        {"seq": 3, "agent": "bob", "type": "tool_call", "tool": "shell", "args": {"cmd": "ls"}},
        {"seq": 4, "agent": "bob", "type": "tool_result", "tool": "shell", "status": "ok", "result": None},
    ]  # fmt: skip
    assert briefs[3].keys() == {"seq", "agent", "type", "kind", "redacted"}
    assert briefs[3]["redacted"]["reason"] == "user_delete"


class TestTails:
    """A budget through each call that takes one."""

    @pytest.fixture
    def session(self, log):
        """A call in front of long messages, and its result behind them."""
        session = log.session("s")
        call = session.tool_call("shell", {"cmd": "make"}, agent="bob")
        for number in range(8):
            session.message(f"{number} " * 700, agent="lead", task_id="t")
        session.tool_result(call, "done", agent="bob")
        return session

    def test_the_call_of_a_result_is_there(self, session):
        """A result in the window brings its call, from in front of the window too."""
        page = session.tail(3, max_chars=2000)
        assert page[0].seq == 2
        assert page[-1].call_id == page[0].id
        assert session.tail(3, max_chars=10**6) == session.tail(3, pairs=True)

    def test_next_goes_on_with_what_was_left_out(self, session):
        """Page by page towards the front, every event comes."""
        seen, before = set(), None
        while True:
            page = session.tail(20, before=before, max_chars=1500)
            seen |= {event.seq for event in page}
            before = page.next
            if before is None:
                break
        assert seen == set(range(1, 12))

    def test_filters_narrow_what_is_weighed(self, session):
        """What is left out is counted among what the filters let through."""
        page = session.tail(20, max_chars=1500, task_id="t")
        assert len(page) + page.left_out.events == 8
        assert all(event.task_id == "t" for event in page)

    def test_a_moment_and_a_slice_do_the_same(self, log, session):
        """A budget holds for a session as it was, and for what a view shows."""
        whole = session.tail(20, max_chars=1500, brief=True)
        for other in (session.at(11), session.through("everything"), session.at(11).through("everything")):
            page = other.tail(20, max_chars=1500, brief=True)
            assert (page, page.left_out, page.next) == (whole, whole.left_out, whole.next)
        assert sum(len(line.decode()) for line in whole.lines(brief=True)) <= 1500

    def test_who_listens_has_read_what_was_there(self, log, session):
        """What was left out is not noted as read; what is noted is found again with its calls."""
        participant = session.join("bob", role="worker", view="everything")
        page = participant.listen(20, max_chars=1500)
        assert page.left_out.events
        acted = participant.message("On it.")
        seen = session.seen("bob", acted)
        assert [event.seq for event in seen.events] == [event.seq for event in page]
        assert seen.matches

    def test_a_budget_that_holds_nothing_is_not_a_reading(self, log, session):
        """Who was refused has heard nothing."""
        participant = session.join("bob", role="worker", view="everything")
        with pytest.raises(BudgetTooSmall):
            participant.listen(20, max_chars=10)
        assert participant.heard_upto == 0

    def test_the_whole_content_of_a_cut_event_is_at_hand(self, log, session):
        """`content` gives what the log holds, whatever a budget left of it, and for previews too."""
        session.message("z" * 50_000, agent="lead", attachments=[Attachment("text/plain", b"a")])
        *_, whole, _, last = session.tail(20, max_chars=1800)
        assert last.cut["without"] == ["attachments"]
        assert last.truncated == session.tail(1)[0].truncated
        assert session.content(last) == "z" * 50_000
        assert whole.cut
        assert session.content(whole) == session.event(whole.seq).body

    def test_an_erased_event_is_there_as_erased(self, log, session):
        """What was erased has nothing to cut, and says why."""
        result = session.tail(1)[0]
        log.redact(events=[result.id], reason="user_delete", by="ops")
        page = session.tail(20, max_chars=1500)
        there = next(event for event in page if event.id == result.id)
        assert there.redacted["reason"] == "user_delete"


def test_the_async_twins_keep_to_budgets(store_path):
    """An async session, a moment, a slice and a participant give what the sync ones give."""

    async def body():
        async with AsyncConversationLog.open(store_path) as log:
            session = log.session("s")
            for number in range(6):
                await session.message(f"{number} " * 900, agent="ann")
            moment, shown = await session.at(7), await session.through("everything")
            pages = [await source.tail(9, max_chars=2000, brief=True) for source in (session, moment, shown)]
            bob = await session.join("bob", role="worker", view="everything")
            pages.append(await bob.listen(9, max_chars=2000, brief=True))
            return pages

    pages = asyncio.run(body())
    with ConversationLog.open(store_path) as log:
        whole = log.session("s").at(7).tail(9, max_chars=2000, brief=True)
    assert pages[:3] == [whole] * 3
    assert all(page.left_out.events for page in pages)
    assert pages[3][-1].seq == 8


def test_a_fork_keeps_to_a_budget(log):
    """A result in a fork brings its call from what the fork shares."""
    session = log.session("s")
    call = session.tool_call("shell", "x" * 3000, agent="bob")
    session.message("y" * 3000, agent="ann")
    fork = session.fork("f", agent="ann")
    fork.message("z" * 3000, agent="ann")
    fork.tool_result(call, "w" * 3000, agent="bob")
    page = fork.tail(2, max_chars=1400)
    assert [event.type for event in page][:1] == ["tool_call"]
    assert sum(len(line.decode()) for line in page.lines()) <= 1400


def test_a_body_of_ten_megabytes_is_cut(store_path):
    """Long content costs its own reading, not the page."""
    with ConversationLog.init(store_path, mirror=False) as log:
        session = log.session("s")
        session.message("é" * 5_000_000, agent="ann")
        page = session.tail(20, max_chars=400)
        assert sum(len(line.decode()) for line in page.lines()) <= 400
        assert len(session.content(page[0])) == 5_000_000
