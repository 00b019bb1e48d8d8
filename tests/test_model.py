"""The public API against a plain list: whatever is done in whatever order, the log is what a list would be."""

import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from convlog_sqlite import (
    Attachment,
    ConversationLog,
    Draft,
    IdempotencyConflict,
    InvalidEvent,
    PairingError,
    UnknownReference,
)

NOWHERE = "019b7d3a-5c2e-7abc-8def-0123456789ab"
INHERITED = ("tool", "task_id", "thread_id", "correlation_id")

sessions = st.sampled_from(["a", "b", "c.d"])
agents = st.sampled_from(["ann", "bo", "cy"])
# Few of them are long: those are kept as blobs. Made by a function, so that a failing example stays readable.
texts = st.text(max_size=8) | st.sampled_from(["x", "é\U0001f600", "\x00"]).map(lambda text: text * 9000)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
# What every type may have, and what a read can be narrowed to.
shared = st.fixed_dictionaries(
    {"agent": agents},
    optional={
        "to": st.lists(agents, min_size=1, max_size=2, unique=True),
        "task_id": st.sampled_from(["t1", "t2"]),
        "thread_id": st.sampled_from(["main", "side"]),
        "performative": st.sampled_from(["inform", "request"]),
        "correlation_id": st.sampled_from(["c1", "c2"]),
        "meta": st.dictionaries(st.text(max_size=3), values, max_size=2),
    },
)
own = st.one_of(
    st.fixed_dictionaries({"type": st.just("message"), "body": texts}),
    st.fixed_dictionaries(
        {"type": st.just("tool_call"), "tool": st.sampled_from(["Bash", "Read"])}, optional={"args": values}
    ),
    st.fixed_dictionaries(
        {"type": st.just("mutation"), "kind": st.sampled_from(["state-set", "task-done"])},
        optional={"value": values},
    ),
)
said = st.builds(lambda one, other: {**one, **other}, shared, own)
spoiling = st.sampled_from(
    [
        {"agent": ""},
        {"meta": {"x": 2**70}},
        {"parent_id": NOWHERE},
        {"links": {"evidence": [NOWHERE]}},
        {"performative": "shout"},
        {"to": ["x", "x"]},
    ]
)
filters = st.fixed_dictionaries(
    {},
    optional={
        "agent": agents | st.just("nobody"),
        "type": st.sampled_from(["message", "tool_call", "tool_result", "mutation"]),
        "task_id": st.sampled_from(["t1", "t2"]),
        "thread_id": st.sampled_from(["main", "side"]),
        "tool": st.sampled_from(["Bash", "Read"]),
        "kind": st.sampled_from(["state-set", "session-opened"]),
        "to": agents,
        "performative": st.sampled_from(["inform", "request"]),
        "correlation_id": st.sampled_from(["c1", "c2"]),
    },
)
limits = st.integers(1, 6)
scans = st.sampled_from([1, 2, 5, 20_000])


@dataclass
class Plain:
    """A session as a list: what was said, the lines, and which calls wait."""

    said: list = field(default_factory=list)
    lines: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    answered: list = field(default_factory=list)

    def matching(self, wanted):
        """The seqs that a filter lets through."""
        return [
            seq
            for seq, keys in enumerate(self.said, 1)
            if all(
                value in keys.get(key, ()) if key == "to" else keys.get(key) == value
                for key, value in wanted.items()
            )
        ]


def is_within(keys, line):
    """Whether a line says all that was said; long values stand in it as previews."""
    return all(
        line.get(key) == value or (key in ("body", "args", "value", "result") and "truncated" in line)
        for key, value in keys.items()
    )


class LogMachine(RuleBasedStateMachine):
    """One store, several sessions, and what a list would hold."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="convlog-model-"))
        self.now = 1_767_323_045_678_901_000
        self.plain = {}
        self.keys = {}
        self.log = None

    @initialize()
    def open(self):
        """Open the store, normal durability: nobody pulls the plug here."""
        self.log = ConversationLog.open(
            self.directory / ".convlog", durability="normal", clock=lambda: self.now
        )

    def recorded(self, session, keys, event):
        """Note in the list what the log recorded, and check that it says the same."""
        plain = self.plain.setdefault(session, Plain())
        if not plain.said:
            plain.said.append({"agent": keys["agent"], "type": "mutation", "kind": "session-opened"})
            plain.lines.append(self.log.session(session).event(1).line)
        plain.said.append(keys)
        plain.lines.append(event.line)
        line = json.loads(event.line)
        assert line["seq"] == len(plain.said)
        assert line["session"] == session
        assert is_within(keys, line)
        if keys["type"] == "tool_call":
            plain.waiting.append(event)

    @rule(session=sessions, keys=said)
    def append(self, session, keys):
        """One draft."""
        self.recorded(session, keys, self.log.session(session).append(Draft.from_dict(keys)))

    @rule(session=sessions, drafts=st.lists(said, max_size=5))
    def append_many(self, session, drafts):
        """Several, all or none."""
        events = self.log.session(session).append_many([Draft.from_dict(keys) for keys in drafts])
        assert len(events) == len(drafts)
        for keys, event in zip(drafts, events, strict=True):
            self.recorded(session, keys, event)

    @rule(
        session=sessions, drafts=st.lists(said, max_size=3), keys=said, spoiled=spoiling, at=st.integers(0, 3)
    )
    def refused(self, session, drafts, keys, spoiled, at):
        """A batch with one bad draft in it: nothing happens."""
        at = min(at, len(drafts))
        batch = [*drafts[:at], {**keys, **spoiled}, *drafts[at:]]
        with pytest.raises((InvalidEvent, UnknownReference)) as error:
            self.log.session(session).append_many([Draft.from_dict(keys) for keys in batch])
        assert error.value.index == (at if drafts else None)

    @rule(session=sessions, result=values, number=st.integers(0, 9), agent=agents)
    def answer(self, session, result, number, agent):
        """A result for one of the calls that wait."""
        plain = self.plain.get(session, Plain())
        if not plain.waiting:
            return
        call = plain.waiting.pop(number % len(plain.waiting))
        plain.answered.append(call)
        event = self.log.session(session).tool_result(call, result, agent=agent)
        keys = {
            "type": "tool_result",
            "agent": agent,
            "call_id": call.id,
            "parent_id": call.id,
            "result": result,
        }
        keys |= {key: value for key in INHERITED if (value := getattr(call, key)) is not None}
        self.recorded(session, keys, event)

    @rule(session=sessions, other=sessions, number=st.integers(0, 9))
    def answer_twice_or_elsewhere(self, session, other, number):
        """A second result, or one in another session: nothing happens."""
        plain = self.plain.get(session, Plain())
        calls = plain.answered if other == session else plain.answered + plain.waiting
        if calls:
            with pytest.raises(PairingError):
                self.log.session(other).tool_result(calls[number % len(calls)], 1, agent="ann")

    @rule(
        session=sessions,
        key=st.sampled_from(["k1", "k2"]),
        body=st.sampled_from(["x", "y", "zz"]).map(lambda text: text * (1 if len(text) == 1 else 9000)),
    )
    def append_once(self, session, key, body):
        """A draft with an idempotency key: recorded, there already, or in conflict."""
        keys = {"type": "message", "agent": "ann", "body": body}
        draft = Draft.from_dict({**keys, "idempotency_key": key})
        first = self.keys.get((session, key))
        if first is None:
            event = self.log.session(session).append(draft)
            self.keys[session, key] = (body, event)
            self.recorded(session, keys, event)
        elif first[0] == body:
            assert self.log.session(session).append(draft) == first[1]
        else:
            with pytest.raises(IdempotencyConflict) as conflict:
                self.log.session(session).append(draft)
            assert conflict.value.first == first[1].id

    @rule(session=sessions, agent=agents, content=st.binary(max_size=40))
    def attach(self, session, agent, content):
        """A message that is an attachment."""
        draft = Draft(type="message", agent=agent, attachments=[Attachment("a/b", content)])
        event = self.log.session(session).append(draft)
        self.recorded(session, {"type": "message", "agent": agent}, event)
        assert self.log.session(session).attachment(event) == content

    @rule(session=sessions, wanted=filters, limit=limits, scan=scans, after=st.integers(-1, 20))
    def read(self, session, wanted, limit, scan, after):
        """Page by page, forwards."""
        found, at = [], after
        while at is not None:
            page = self.log.session(session).read(after=at, limit=limit, max_scan=scan, **wanted)
            assert len(page) <= limit
            found += page
            assert page.next is None or page.next > at
            at = page.next
        self.compare(
            session, [seq for seq in self.plain.get(session, Plain()).matching(wanted) if seq > after], found
        )

    @rule(session=sessions, wanted=filters, limit=limits, scan=scans, before=st.none() | st.integers(0, 20))
    def tail(self, session, wanted, limit, scan, before):
        """Page by page, backwards; the first page is the last matches."""
        found, at, first = [], before, True
        while first or at is not None:
            page = self.log.session(session).tail(limit, before=at, max_scan=scan, **wanted)
            assert len(page) <= limit
            found = page + found
            assert page.next is None or at is None or page.next < at
            at, first = page.next, False
        matching = self.plain.get(session, Plain()).matching(wanted)
        self.compare(session, [seq for seq in matching if before is None or seq < before], found)

    @rule(session=sessions, limit=limits)
    def tail_in_pairs(self, session, limit):
        """The last events, and in front of them the calls that they answer."""
        events = self.log.session(session).tail(limit, pairs=True)
        plain = self.plain.get(session, Plain())
        last = set(range(1, len(plain.said) + 1)[-limit:])
        there = {event.id for event in events}
        assert all(event.call_id in there for event in events if event.call_id)
        answered = {event.call_id for event in events if event.seq in last}
        assert [event.seq for event in events] == sorted(event.seq for event in events)
        assert last == {event.seq for event in events if event.seq in last or event.id not in answered}

    def compare(self, session, expected, found):
        """Events against lines of the list."""
        lines = self.plain.get(session, Plain()).lines
        assert [event.seq for event in found] == expected
        assert [event.line for event in found] == [lines[seq - 1] for seq in expected]

    @rule(seconds=st.sampled_from([-3600, -1, 0, 1, 86_400]))
    def turn_the_clock(self, seconds):
        """Time passes, or steps back."""
        self.now += seconds * 1_000_000_000

    @rule()
    def reopen(self):
        """Close the store and open it again."""
        self.log.close()
        self.open()

    @rule(session=sessions, keys=said)
    def append_elsewhere(self, session, keys):
        """Another handle appends."""
        with ConversationLog.open(self.log.path, durability="normal", clock=lambda: self.now) as other:
            event = other.session(session).append(Draft.from_dict(keys))
        self.recorded(session, keys, event)

    @invariant()
    def heads_and_open_calls_agree(self):
        """At every moment the heads and the waiting calls are those of the lists."""
        if self.log is None:
            return
        for name, plain in self.plain.items():
            session = self.log.session(name)
            assert session.head == len(plain.said)
            waiting = sorted(plain.waiting, key=lambda event: event.seq)
            assert session.open_calls() == waiting

    def teardown(self):
        """At the end lines, summaries and mirror say what the lists say, and nothing is found to be wrong."""
        try:
            if self.log is not None:
                self.compare_all()
        finally:
            if self.log is not None:
                self.log.close()
            shutil.rmtree(self.directory)

    def compare_all(self):
        """Everything that can be listed."""
        assert list(self.log.verify()) == []
        summaries = {found.id: found for found in self.log.sessions()}
        assert set(summaries) == {"_store", *self.plain}
        for name, plain in self.plain.items():
            assert list(self.log.session(name).jsonl()) == plain.lines
            assert (summaries[name].events, summaries[name].open_calls) == (
                len(plain.said),
                len(plain.waiting),
            )
            mirror = self.log.path / "sessions" / name / "conversation.jsonl"
            assert mirror.read_bytes() == b"".join(plain.lines)


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)


class TestModel(LogMachine.TestCase):
    """Whatever is done in whatever order, the log is what a list would be."""
