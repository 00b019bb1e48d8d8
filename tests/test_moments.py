"""Moments: a session as of an event, a seq or an instant; and replay, which goes through it again."""

import asyncio
import inspect
import random
from datetime import UTC, datetime, timedelta, timezone

import pytest

from convlog_sqlite import (
    AsyncConversationLog,
    AsyncMoment,
    ConversationLog,
    Draft,
    InvalidEvent,
    Moment,
    UnknownReference,
)
from convlog_sqlite.replaying import EFFECT_MARKS, MARKS
from convlog_sqlite.vocabulary import EFFECT_STATES, PERFORMATIVES


@pytest.fixture
def timed(store_path, clock):
    """A log whose clock is set, and a session with a message each second from the clock's start on."""
    with ConversationLog.open(store_path, clock=clock) as log:
        yield log, log.session("s"), clock


class TestPoints:
    @pytest.mark.parametrize(
        "point",
        [
            lambda event: event,
            lambda event: event.id,
            lambda event: event.id.upper(),
            lambda event: event.seq,
            lambda event: event.ts,
            lambda event: datetime.fromisoformat(event.ts),
            lambda event: datetime.fromisoformat(event.ts).astimezone(timezone(timedelta(hours=-7))),
            lambda event: event.ts.replace("T", " ").replace("Z", "+00:00"),
        ],
    )
    def test_a_point_is_an_event_an_id_a_seq_or_an_instant(self, timed, point):
        """Each of the forms names the same moment."""
        _, session, clock = timed
        events = []
        for text in "abc":
            clock.advance(1)
            events.append(session.message(text, agent="a"))
        moment = session.at(point(events[1]))
        assert (moment.id, moment.seq, moment.head) == ("s", 3, 3)
        assert [event.body for event in moment.tail(2)] == ["a", "b"]

    def test_an_instant_stands_for_the_last_event_not_after_it(self, timed):
        """Between two events it is the first of them, behind all of them the last."""
        _, session, clock = timed
        session.message("a", agent="a")
        at = datetime.fromtimestamp(clock.now // 1000 / 1e6, UTC)
        clock.advance(10)
        session.message("b", agent="a")
        assert session.at(at + timedelta(seconds=5)).seq == 2
        assert session.at(at + timedelta(days=400)).seq == 3

    def test_before_the_first_event_there_was_nothing(self, timed):
        """No session was there, so none can be read as of then."""
        _, session, clock = timed
        session.message("a", agent="a")
        with pytest.raises(UnknownReference) as refused:
            session.at(datetime.fromtimestamp(clock.now / 1e9 - 60, UTC))
        assert refused.value.field == "at"

    def test_a_clock_that_steps_hides_nothing(self, timed):
        """What was recorded while a clock ran ahead does not hide what came later, nor does a step back."""
        _, session, clock = timed
        start = clock.now
        session.message("a", agent="a")
        clock.advance(86_400)
        session.message("ahead", agent="a")
        clock.set(start + 2_000_000_000)
        session.message("c", agent="a")
        clock.set(start - 3_600_000_000_000)
        session.message("behind", agent="a")
        clock.set(start + 9_000_000_000)
        session.message("e", agent="a")
        instant = datetime.fromtimestamp(start / 1e9, UTC)
        assert session.at(instant + timedelta(seconds=8)).seq == 5
        assert session.at(instant + timedelta(seconds=9)).seq == 6
        assert session.at(instant - timedelta(minutes=30)).seq == 5

    def test_random_clocks_agree_with_a_scan(self, timed):
        """For any clock, an instant is the largest seq whose ts is not after it, across forks too."""
        _, session, clock = timed
        seed = random.randrange(2**32)
        print("seed", seed)
        chance = random.Random(seed)
        start = clock.now
        for number in range(60):
            clock.set(start + chance.randrange(20) * 1_000_000_000)
            session.message("x", agent="a")
            if number % 20 == 19:
                session = session.fork(f"f{number}", at=chance.randrange(1, session.head + 1), agent="a")
        events = session.read()
        for second in range(-1, 21):
            instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
                microseconds=start // 1000 + second * 10**6
            )
            seqs = [event.seq for event in events if datetime.fromisoformat(event.ts) <= instant]
            if seqs:
                assert session.at(instant).seq == max(seqs)
            else:
                with pytest.raises(UnknownReference):
                    session.at(instant)

    def test_an_instant_is_found_far_from_the_end(self, timed, monkeypatch):
        """It is looked for some rows at a time, as often as it takes."""
        from convlog_sqlite.store import points

        monkeypatch.setattr(points, "_AT_ONCE", 3)
        _, session, clock = timed
        first = session.message("a", agent="a")
        clock.advance(5)
        session.append_many([Draft(type="message", agent="a", body="x")] * 20)
        assert session.at(first.ts).seq == 2

    @pytest.mark.parametrize(
        "point",
        [
            0, -1, 3, 2**70, True, 1.0, None, b"x", "", "zz", "0197", "0" * 33, "2026-13-01T00:00:00Z",
            "2026-01-01T00:00:00", "2026-01-01Tnonsense", datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None), "019b7d3a-5c2e-7abc-8def-0123456789ab",
        ],
    )  # fmt: skip
    def test_what_is_no_point_is_refused(self, log, point):
        """Beyond the end, before the beginning, an unknown event, an instant without a zone, anything else."""
        log.session("s").message("a", agent="a")
        with pytest.raises((UnknownReference, InvalidEvent)):
            log.session("s").at(point)

    def test_an_event_of_another_session_is_refused(self, log):
        """It is no point in this one."""
        log.session("s").message("a", agent="a")
        other = log.session("t").message("a", agent="a")
        with pytest.raises(InvalidEvent) as refused:
            log.session("s").at(other)
        assert refused.value.pointer == "/at"

    def test_an_ambiguous_id_is_refused(self, timed):
        """Where several ids begin like that, more of it is needed."""
        _, session, _ = timed
        event = session.message("a", agent="a")
        with pytest.raises(InvalidEvent, match="give more of it"):
            session.at(event.id[:8])

    def test_a_session_that_does_not_exist_has_no_moments(self, log):
        """It is named."""
        with pytest.raises(UnknownReference) as refused:
            log.session("nowhere").at(1)
        assert refused.value.field == "session"


class TestReading:
    def test_calls_are_open_as_of_then(self, log):
        """A call that has a result by now had none then."""
        session = log.session("s")
        first = session.tool_call("x", agent="a")
        second = session.tool_call("y", agent="a")
        session.tool_result(second, 1, agent="a")
        session.tool_result(first, 2, agent="a")
        assert session.open_calls() == []
        opened = [[event.seq for event in session.at(seq).open_calls()] for seq in range(1, 6)]
        assert opened == [[], [2], [2, 3], [2], []]

    def test_what_comes_later_is_not_there(self, log):
        """Whatever place a read asks for, it ends at the moment."""
        session = log.session("s")
        for text in "abcd":
            session.message(text, agent="a")
        moment = session.at(3)
        session.message("later", agent="a")
        assert [event.seq for event in moment.read(after=1, before=100)] == [2, 3]
        assert moment.read(limit=3).next is None
        assert [event.seq for event in moment.tail(2, before=100)] == [2, 3]
        assert (moment.event(3).body, moment.event(4), moment.event(0)) == ("b", None, None)
        assert len(list(moment.jsonl())) == 3
        assert moment.tail(5, agent="nobody") == []

    def test_erased_is_erased_at_every_moment(self, log):
        """Going back in time does not bring content back."""
        session = log.session("s")
        event = session.message("secret", agent="a")
        session.message("b", agent="a")
        log.redact(events=[event.id], reason="test", by="ops")
        assert session.at(event).event(event.seq).answer == "erased"

    def test_a_read_of_nothing_is_refused(self, log):
        """Bounds below what gets further are refused, as in a session."""
        log.session("s").message("a", agent="a")
        moment = log.session("s").at(1)
        with pytest.raises(ValueError, match="1 event or more"):
            moment.open_calls(max_scan=0)
        with pytest.raises(ValueError, match="0 or more"):
            moment.tail(-1)


class TestReplaying:
    def test_every_performative_and_state_has_a_mark(self):
        """The tables are whole, and say nothing else."""
        assert MARKS.keys() == PERFORMATIVES
        assert EFFECT_MARKS.keys() == EFFECT_STATES.keys()
        assert {*MARKS.values(), *EFFECT_MARKS.values()} == {"intent", "fact"}

    def test_events_come_in_order_marked_as_intent_or_fact(self, log):
        """What was asked for is never taken for what took place."""
        session = log.session("s")
        session.message("told", agent="a")
        session.message("asked", agent="a", performative="request")
        session.message("informed", agent="a", performative="inform")
        answered = session.tool_call("x", agent="a")
        session.tool_call("y", agent="a")
        session.tool_result(answered, 1, agent="a")
        proposed = session.tool_call("pay", agent="a", effect={"state": "proposed"})
        session.mutation("effect-attempted", agent="a", effect={"state": "attempted", "id": proposed.id})
        session.mutation("effect-committed", agent="a", effect={"state": "committed", "id": proposed.id})
        found = list(session.replay())
        assert [one.event.seq for one in found] == list(range(1, 11))
        assert [one.mark for one in found] == [
            "fact", "fact", "intent", "fact", "fact", "intent", "fact", "intent", "intent", "fact",
        ]  # fmt: skip
        assert found[2].line == b'{"mark":"intent",' + found[2].event.line[1:]

    def test_a_call_is_an_intent_where_its_result_is_not_replayed(self, log):
        """As of the end of the replay it had none."""
        session = log.session("s")
        call = session.tool_call("x", agent="a")
        session.tool_result(call, 1, agent="a")
        assert [one.mark for one in session.replay(end=call)] == ["fact", "intent"]
        assert [one.mark for one in session.replay()] == ["fact", "fact", "fact"]

    def test_both_ends_belong_to_it(self, timed):
        """By seq, by event, and by instant: what was recorded at the instant itself is in."""
        _, session, clock = timed
        events = []
        for text in "abcd":
            clock.advance(1)
            events.append(session.message(text, agent="a"))

        def seqs(**borders):
            return [one.event.seq for one in session.replay(**borders)]

        assert seqs(start=2, end=3) == [2, 3]
        assert seqs(start=events[1], end=events[1]) == [3]
        assert seqs(start=events[1].ts, end=events[2].ts) == [3, 4]
        assert seqs(start="1999-01-01T00:00:00Z", end=2) == [1, 2]
        assert seqs(start="2999-01-01T00:00:00Z") == []
        for borders in ({"start": 4, "end": 2}, {"start": 4, "end": 3}, {"start": events[3].ts, "end": 2}):
            with pytest.raises(InvalidEvent):
                session.replay(**borders)
        with pytest.raises(UnknownReference):
            session.replay(end=99)

    def test_they_come_as_far_apart_as_they_happened(self, timed):
        """So many times as fast; a clock that stepped back is not waited for, a slow reader catches up."""
        _, session, clock = timed
        for seconds in (0, 4, -100, 102, 2 * 86_400):
            clock.advance(seconds)
            session.message("x", agent="a")
        now, slept = [0.0], []

        def sleep(seconds):
            slept.append(seconds)
            now[0] += seconds

        for number, _ in enumerate(session.replay(speed=2, sleep=sleep, clock=lambda: now[0])):
            now[0] += 0.5 if number == 1 else 0
        assert slept == [pytest.approx(1.5), pytest.approx(1.0), pytest.approx(86_400)]

    def test_imported_events_come_as_their_source_says(self, log):
        """What was recorded at once may have happened hours apart."""
        session = log.session("s")
        for hour in (1, 3):
            source = {"harness": "claude-code", "at": f"2020-01-01T0{hour}:00:00.000000Z"}
            session.message("x", agent="a", source=source)
        slept = []
        for _ in session.replay(start=2, speed=1, sleep=slept.append, clock=lambda: 0.0):
            pass
        assert slept == [7200.0]

    def test_as_fast_as_it_goes_sleeps_not_at_all(self, timed):
        """The default."""
        _, session, clock = timed
        for _ in range(3):
            clock.advance(5)
            session.message("x", agent="a")
        assert len(list(session.replay(sleep=pytest.fail))) == 4

    @pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf")])
    def test_a_speed_is_above_zero(self, log, speed):
        """Anything else is refused at once."""
        with pytest.raises(ValueError, match="speed"):
            log.session("s").replay(speed=speed)

    def test_a_fork_is_replayed_from_the_beginning_of_what_it_shares(self, log):
        """And what is appended meanwhile does not belong to it."""
        session = log.session("s")
        session.message("a", agent="a")
        fork = session.fork("f", agent="a")
        replay = fork.replay()
        fork.message("later", agent="a")
        assert [one.event.session for one in replay] == ["s", "s", "f"]

    def test_nothing_is_replayed_of_a_session_without_events(self, log):
        """No error, and no event."""
        assert list(log.session("nowhere").replay()) == []


class TestComparing:
    def test_two_branches_part_where_they_were_forked(self, log):
        """Where, what each has since, which calls wait in one only, and which state stands apart."""
        trunk = log.session("s")
        call = trunk.tool_call("x", agent="a")
        first = trunk.mutation("state-set", 1, agent="a", state_key="k")
        trunk.mutation("state-set", 1, agent="a", state_key="same")
        fork = trunk.fork("f", at=4, agent="a")
        trunk.tool_result(call, 1, agent="a")
        second = trunk.mutation("state-set", 2, agent="a", state_key="k", expect=first)
        mine = fork.mutation("state-set", 3, agent="b", state_key="new")
        own = fork.tool_call("y", agent="b")
        found = log.diff("s", "f")
        assert (found.a, found.b, found.seq, found.event) == ("s", "f", 4, trunk.event(4).id)
        assert found.heads == (6, 7)
        assert found.open_calls == ((), (call.id, own.id))
        assert [(one.state_key, one.a, one.b) for one in found.states] == [
            ("k", (second.id,), (first.id,)),
            ("new", (), (mine.id,)),
        ]
        turned = log.diff("f", "s")
        assert turned.open_calls == found.open_calls[::-1]
        assert [(one.a, one.b) for one in turned.states] == [(one.b, one.a) for one in found.states]

    def test_siblings_part_at_the_earlier_fork_point(self, log):
        """Whatever the depth: two forks share what both their lines hold."""
        trunk = log.session("s")
        for _ in range(5):
            trunk.message("x", agent="a")
        deep = trunk.fork("one", at=5, agent="a").fork("two", agent="a")
        other = trunk.fork("three", at=3, agent="a")
        assert log.diff(deep.id, other.id).seq == 3
        assert log.diff(deep.id, "one").seq == 6
        assert log.diff(deep.id, "s").seq == 5

    def test_a_session_differs_from_itself_in_nothing(self, log):
        """And strangers share nothing."""
        log.session("s").tool_call("x", agent="a")
        log.session("t").message("x", agent="a")
        same = log.diff("s", "s")
        assert (same.seq, same.heads, same.open_calls, same.states) == (2, (2, 2), ((), ()), ())
        strangers = log.diff("s", "t")
        assert (strangers.seq, strangers.event) == (0, None)
        with pytest.raises(UnknownReference):
            log.diff("s", "nowhere")


class TestAsync:
    def test_every_read_has_a_twin(self):
        """What a moment can do, its twin can, with the same parameters."""
        for name in (name for name in vars(Moment) if not name.startswith("_") and name != "of"):
            if inspect.isfunction(getattr(Moment, name)):
                ours, theirs = (inspect.signature(getattr(cls, name)) for cls in (Moment, AsyncMoment))
                assert list(ours.parameters) == list(theirs.parameters), name

    def test_the_twins_give_what_the_sync_verbs_give(self, store_path):
        """Moments, forks, differences and replays, awaited."""

        async def main():
            async with AsyncConversationLog.open(store_path) as log:
                session = log.session("s")
                call = await session.tool_call("x", agent="a")
                await session.tool_result(call, 1, agent="a")
                moment = await session.at(call)
                assert (moment.id, moment.seq, moment.head) == ("s", 2, 2)
                assert [event.id for event in await moment.open_calls()] == [call.id]
                assert [event.seq for event in await moment.tail(1)] == [2]
                assert [event.seq for event in await moment.read()] == [1, 2]
                assert await moment.event(2) == call
                assert await moment.event(3) is None
                assert len([line async for line in moment.jsonl()]) == 2
                with pytest.raises(UnknownReference):
                    await session.at(9)
                fork = await session.fork("f", call, agent="a")
                assert (fork.id, await fork.head()) == ("f", 3)
                assert [event.id for event in await fork.open_calls()] == [call.id]
                assert len([line async for line in fork.jsonl(inherited=True)]) == 3
                found = await log.diff("s", "f")
                assert (found.seq, found.open_calls) == (2, ((), (call.id,)))
                slept = []

                async def sleep(seconds):
                    slept.append(seconds)

                marks = [one.mark async for one in session.replay(speed=1e-9, sleep=sleep, clock=lambda: 0.0)]
                assert marks == ["fact", "fact", "fact"]
                assert max(slept) <= 86_400
                with pytest.raises(ValueError, match="speed"):
                    await anext(session.replay(speed=0))

        asyncio.run(main())
