"""A session through the public API, in one process: what is recorded, what is refused, what is read back."""

import dataclasses
import hashlib
import json
import re
import traceback
import uuid
from datetime import UTC, datetime

import pytest

from convlog_sqlite import (
    ABSENT,
    Attachment,
    ConversationLog,
    ConvlogError,
    Draft,
    EventTooLarge,
    IdempotencyConflict,
    InvalidEvent,
    NotAStore,
    PairingError,
    PayloadCorrupt,
    PayloadErased,
    PayloadLost,
    Refused,
    StoreClosed,
    StoreReadOnly,
    UnknownReference,
)
from convlog_sqlite.canonical import ENVELOPE_KEYS, PAYLOAD_KEYS
from convlog_sqlite.keystore import erasure_record
from convlog_sqlite.store.preparing import prepare

NOWHERE = "019b7d3a-5c2e-7abc-8def-0123456789ab"
INLINE = 8 * 1024


@pytest.fixture
def log(store_path, clock):
    """An open log whose clock stands still."""
    with ConversationLog.open(store_path, clock=clock) as opened:
        yield opened


@pytest.fixture
def session(log):
    """A session that was opened by its first message, which has seq 2."""
    opened = log.session("s")
    opened.message("first", agent="user")
    return opened


def draft(body="x", **keys):
    """A message, if nothing else is said."""
    return Draft(**{"type": "message", "agent": "a", "body": body, **keys})


def bodies(events):
    """What the events say."""
    return [event.body for event in events]


def slots_of(log, event):
    """The slots of an event, its payload's first."""
    with log._store.database.read() as connection:
        found = "SELECT number FROM slot JOIN envelope USING (pos) WHERE id = ? ORDER BY part"
        return [slot for (slot,) in connection.execute(found, (uuid.UUID(event.id).bytes,)).fetchall()]


def overwrite(log, slot, data):
    """Put 40 bytes in a slot of the keystore."""
    with (log.path / "log.keys").open("r+b") as file:
        file.seek(8192 + 40 * slot)
        file.write(data)


# Recording


def test_every_key_of_a_message_is_recorded(log, session):
    """Each key that a caller may give stands in the line, in canonical order, and in the event that is read back."""
    evidence = session.message("evidence", agent="user")
    event = session.message(
        "hello",
        agent="worker",
        role="verifier",
        to=("b", "c"),
        performative="inform",
        thread_id="side",
        task_id="jwt",
        parent_id=evidence.id,
        links={"derived_from": [evidence.id], "evidence": (evidence.id,)},
        correlation_id="c-1",
        traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01",
        content_type="text/markdown",
        model="m-1",
        sensitivity="restricted",
        purposes=["support"],
        subjects=["Ann"],
        source={"at": "2025-12-31T23:59:59.000001Z", "native_id": "n#1", "harness": "h"},
        attachments=[Attachment("image/png", b"\x00\x01")],
        usage={"input_tokens": 3},
        meta={"z": 1, "a": [None]},
        idempotency_key="once",
    )
    line = json.loads(event.line)
    blob, subject = line["attachments"][0].pop("blob"), line["subjects"].pop()
    assert re.fullmatch(r"[0-9a-f]{32}", subject)
    assert uuid.UUID(blob)
    assert line == {
        "v": 1,
        "id": event.id,
        "seq": 4,
        "ts": "2026-01-02T03:04:05.678901Z",
        "session": "s",
        "agent": "worker",
        "role": "verifier",
        "type": "message",
        "to": ["b", "c"],
        "performative": "inform",
        "thread_id": "side",
        "task_id": "jwt",
        "parent_id": evidence.id,
        "links": {"evidence": [evidence.id], "derived_from": [evidence.id]},
        "correlation_id": "c-1",
        "traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01",
        "content_type": "text/markdown",
        "model": "m-1",
        "sensitivity": "restricted",
        "purposes": ["support"],
        "subjects": [],
        "source": {"harness": "h", "native_id": "n#1", "at": "2025-12-31T23:59:59.000001Z"},
        "body": "hello",
        "attachments": [{"media_type": "image/png", "bytes": 2}],
        "usage": {"input_tokens": 3},
        "meta": {"z": 1, "a": [None]},
    }
    order = [key for key in (*ENVELOPE_KEYS, *PAYLOAD_KEYS) if key in line]
    assert list(line) == order
    assert list(line["links"]) == ["evidence", "derived_from"]
    assert list(line["meta"]) == ["z", "a"]
    for read_back in (session.tail(1)[0], session.event(4), log.event(event.id)):
        assert read_back == event
        assert read_back.line == event.line


def test_a_call_its_result_and_a_mutation_are_recorded(session):
    """The keys of the other types stand in their lines, and a result takes over from its call what it does not say."""
    call = session.tool_call(
        "Bash", {"command": "ls"}, agent="w", task_id="jwt", thread_id="side", correlation_id="c"
    )
    result = session.tool_result(call, ["a.py"], agent="tool", status="error", content_type="text/plain")
    mutation = session.mutation("task-done", {"ok": True}, agent="w", task_id="jwt")
    kept = session.mutation("state-set", None, agent="w", task_id="jwt", state_key="plan")
    assert (call.type, call.tool, call.args) == ("tool_call", "Bash", {"command": "ls"})
    assert (result.type, result.call_id, result.status) == ("tool_result", call.id, "error")
    assert (result.result, result.parent_id, result.tool) == (["a.py"], call.id, "Bash")
    assert (result.task_id, result.thread_id, result.correlation_id) == ("jwt", "side", "c")
    assert (mutation.kind, mutation.state_key, mutation.value) == ("task-done", "task/jwt", {"ok": True})
    assert (kept.state_key, kept.value, "value" in kept.content) == ("plan", None, True)


def test_what_a_result_says_itself_goes_before_its_call(session):
    """A result with a parent, task, thread or tool name of its own keeps them."""
    call = session.tool_call("Bash", agent="w", task_id="jwt", thread_id="side")
    keys = {"task_id": "other", "thread_id": "main", "parent_id": session.event(2).id}
    said = session.append(
        Draft(type="tool_result", agent="t", call_id=call.id, tool="bash-2", result=None, **keys)
    )
    assert {key: getattr(said, key) for key in keys} == keys
    assert (said.tool, said.status) == ("bash-2", "ok")


def test_a_session_opens_with_its_first_event(log):
    """A session is not there before something is appended, and begins with `session-opened` by the same agent."""
    quiet = log.session("quiet", tenant="acme")
    assert (quiet.head, quiet.tail(), quiet.read(), quiet.open_calls(), list(quiet.jsonl())) == (
        0,
        [],
        [],
        [],
        [],
    )
    assert "quiet" not in [found.id for found in log.sessions()]
    first = quiet.message("x", agent="ann")
    opened = quiet.event(1)
    assert (opened.type, opened.kind, opened.agent, opened.tenant) == (
        "mutation",
        "session-opened",
        "ann",
        "acme",
    )
    assert (first.seq, quiet.head) == (2, 2)


def test_the_default_sensitivity_is_left_out(session):
    """`internal` is what a line without the key says."""
    event = session.message("x", agent="a", sensitivity="internal")
    assert b"sensitivity" not in event.line
    assert event.sensitivity == "internal"


def test_names_of_people_are_never_written(log, session):
    """A subject stands as the same keyed pseudonym in each event of the store, and in no file by name."""
    one = session.message("x", agent="a", subjects=["Ann Example"])
    two = log.session("t").message("y", agent="a", subjects=["Bo", "Ann Example"])
    assert one.subjects[0] == two.subjects[1] != two.subjects[0]
    with ConversationLog.ephemeral() as other:
        assert other.session("s").message("x", agent="a", subjects=["Ann Example"]).subjects != one.subjects
    for path in log.path.rglob("*"):
        # Not log.db and its companions: to open and close them here would drop SQLite's locks.
        if path.is_file() and not path.name.startswith("log.db"):
            assert b"Ann Example" not in path.read_bytes()
    with log._store.database.read() as connection:
        assert not connection.execute("SELECT 1 FROM name WHERE text LIKE '%Ann%'").fetchall()


def test_a_clock_that_steps_back_changes_no_order(session, clock):
    """Events keep the order in which they were appended; what the clock said is data."""
    clock.set(datetime(2026, 5, 1, tzinfo=UTC))
    session.message("one", agent="a")
    clock.set(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
    session.message("two", agent="a")
    clock.advance(3600)
    session.message("three", agent="a")
    events = session.tail(3)
    assert bodies(events) == ["one", "two", "three"]
    assert [event.seq for event in events] == [3, 4, 5]
    assert [event.ts for event in events] == [
        "2026-05-01T00:00:00.000000Z",
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:59:59.999999Z",
    ]


# Refusing


def test_a_refused_draft_leaves_nothing(session):
    """After a refusal the head is what it was, and the next event takes the next seq."""
    head = session.head
    for refused in (
        draft(body=1),
        draft(parent_id=NOWHERE),
        Draft(type="tool_result", agent="a", call_id=NOWHERE, result=1),
    ):
        with pytest.raises(Refused) as error:
            session.append(refused)
        assert error.value.index is None
    assert session.head == head
    assert session.message("next", agent="a").seq == head + 1


@pytest.mark.parametrize(
    "bad",
    [
        draft(body="\ud800"),
        draft(parent_id=NOWHERE),
        draft(links={"evidence": [NOWHERE]}),
        Draft(type="tool_result", agent="a", call_id=NOWHERE, result=1),
        draft(body="other", idempotency_key="used"),
        draft(meta={"x": "y" * (16 * 1024 * 1024)}),
    ],
    ids=["value", "parent", "link", "call", "idempotency", "size"],
)
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_batch_is_all_or_nothing(session, bad, at):
    """One bad draft refuses the batch with its number, and of the others nothing is there, names and calls included."""
    session.append(draft(body="mine", idempotency_key="used"))
    head = session.head
    drafts = [Draft(type="tool_call", agent=f"new-{n}", tool="t") for n in range(4)]
    drafts.insert(at, bad)
    with pytest.raises(Refused) as refused:
        session.append_many(drafts)
    assert refused.value.index == at
    assert session.head == head
    assert session.open_calls() == []
    assert session.read(agent="new-0") == []


def test_a_batch_is_in_order_and_may_refer_to_itself(session):
    """Drafts of a batch follow each other without gaps; a generator does as well; an empty one is nothing."""
    recorded = session.append_many(draft(str(number)) for number in range(5))
    assert bodies(recorded) == ["0", "1", "2", "3", "4"]
    assert [event.seq for event in recorded] == [3, 4, 5, 6, 7]
    assert session.tail(5) == recorded
    assert session.append_many([]) == []
    assert session.append_many(iter(())) == []


@pytest.mark.parametrize("key", ["parent_id", "call_id", "links"])
def test_a_reference_to_nothing_is_refused(session, key):
    """UnknownReference carries the field and the value."""
    given = {"evidence": [session.event(1).id, NOWHERE]} if key == "links" else NOWHERE
    keys = {"type": "tool_result", "result": 1, "body": ABSENT} if key == "call_id" else {}
    with pytest.raises(UnknownReference) as refused:
        session.append(draft(**{**keys, key: given}))
    assert refused.value.field == ("links/evidence" if key == "links" else key)
    assert refused.value.value == NOWHERE


def test_a_parent_may_be_in_another_session(log, session):
    """What made an agent open a session may stand in another."""
    cause = session.message("go", agent="a")
    effect = log.session("other").message("gone", agent="b", parent_id=cause.id)
    assert log.event(effect.parent_id) == cause


def test_an_event_that_is_too_large_is_refused(session):
    """Over 16 MiB of payload is EventTooLarge, with both numbers; attachments do not count."""
    for keys in ({"body": "x" * (16 << 20)}, {"body": "x" * (9 << 20), "meta": {"y": "z" * (9 << 20)}}):
        with pytest.raises(EventTooLarge) as refused:
            session.append(draft(**keys))
        assert refused.value.size > refused.value.limit == 16 << 20
    assert session.head == 2
    session.append(draft(attachments=[Attachment("a/b", bytes(17 << 20))]))


@pytest.mark.parametrize("session_id", ["_store", "../x", "", "a."])
def test_a_session_that_is_not_a_callers(log, session_id):
    """What is no session id is refused at once; nobody appends to the store's own session."""
    with pytest.raises(InvalidEvent) as refused:
        log.session(session_id).message("x", agent="a")
    assert refused.value.pointer == "/session"


def test_session_ids_that_differ_by_case_cannot_both_be(log):
    """They are file names: the second is refused, whether it was asked for before or after the first was made."""
    early = log.session("Build")
    log.session("build").message("x", agent="a")
    with pytest.raises(InvalidEvent):
        log.session("BUILD")
    with pytest.raises(InvalidEvent):
        early.message("x", agent="a")
    assert [found.id for found in log.sessions()] == ["_store", "build"]


def test_a_session_belongs_to_one_tenant(log):
    """Another tenant finds no such session; who names none may append, and the event has the session's tenant."""
    log.session("s", tenant="acme").message("x", agent="a")
    log.session("free").message("x", agent="a")
    for session_id, tenant in (("s", "other"), ("free", "acme")):
        with pytest.raises(UnknownReference) as refused:
            log.session(session_id, tenant=tenant)
        assert refused.value.field == "session"
    assert log.session("s").message("y", agent="a").tenant == "acme"
    assert log.session("free").tail(1)[0].tenant is None
    assert {found.id: found.tenant for found in log.sessions()} == {"_store": None, "free": None, "s": "acme"}


def test_a_tenant_that_came_first_keeps_the_session(log):
    """Two handles on a session that was not there: the tenant of the first append wins, the other is refused."""
    mine, theirs = log.session("s", tenant="acme"), log.session("s", tenant="other")
    mine.message("x", agent="a")
    with pytest.raises(UnknownReference):
        theirs.message("x", agent="a")
    assert mine.head == 2


# Idempotency


@pytest.mark.parametrize(
    "said",
    [
        draft("hello", to=["b"], meta={"a": 1, "b": [1.0, True]}, sensitivity="internal"),
        draft("long " * 4000),
        draft(attachments=[Attachment("a/b", b"one"), Attachment("a/b", b"two")]),
        Draft(type="tool_call", agent="a", tool="t", args={"x": [1] * 9000}),
        Draft(type="mutation", agent="a", kind="task-done", task_id="t", value=None),
        draft("hello", subjects=["Ann"], source={"harness": "h", "at": "2026-01-01T00:00:00.000000Z"}),
    ],
    ids=["message", "long text", "attachments", "long arguments", "mutation", "digests"],
)
def test_the_same_key_again_gives_the_first_event(session, said, clock):
    """A repeated append changes nothing and returns the first event, also in one batch and after a reopening."""
    said = dataclasses.replace(said, idempotency_key="once")
    first = session.append(said)
    clock.advance(60)
    assert session.append(said) == first
    assert session.append_many([said, draft("between"), said])[2] == first
    assert session.head == 4
    with ConversationLog.open(session._log.path) as again:
        assert again.session("s").append(said) == first


def test_a_key_repeated_within_a_batch_counts_once(session):
    """The second of two equal drafts in one batch is the first."""
    one, between, two = session.append_many(
        [draft(idempotency_key="k"), draft("between"), draft(idempotency_key="k")]
    )
    assert (one, between.seq, session.head) == (two, 4, 4)


def test_a_result_may_be_repeated(session):
    """A repeated result is no second one, although its call has a result by then."""
    call = session.tool_call("t", agent="a", task_id="jwt")
    first = session.tool_result(call, 1, agent="t", idempotency_key="k")
    assert session.tool_result(call, 1, agent="t", idempotency_key="k") == first
    with pytest.raises(PairingError):
        session.tool_result(call, 1, agent="t", idempotency_key="l")


@pytest.mark.parametrize(
    "other",
    [
        {"agent": "b"},
        {"role": "worker"},
        {"to": ["b", "c"]},
        {"to": ()},
        {"task_id": "t"},
        {"sensitivity": "public"},
        {"subjects": ["Bo"]},
        {"body": "hello "},
        {"meta": {"a": True, "b": [0]}},
        {"meta": {"a": 1.0, "b": [0]}},
        {"meta": {"a": 1, "b": [False]}},
        {"meta": None},
        {"attachments": [Attachment("a/b", b"TWO")]},
        {"attachments": [Attachment("a/c", b"one")]},
        {"attachments": [Attachment("a/b", b"one")] * 2},
        {"attachments": ()},
        {"body": "long " * 4000},
    ],
    ids=lambda other: next(iter(other)),
)
def test_the_same_key_for_other_content_is_a_conflict(session, other):
    """Another value of any key, content and attachments included, is IdempotencyConflict and names the first event."""
    said = {
        "body": "hello",
        "to": ["b"],
        "subjects": ["Ann"],
        "meta": {"a": 1, "b": [0]},
        "attachments": [Attachment("a/b", b"one")],
        "idempotency_key": "k",
    }
    first = session.append(draft(**said))
    with pytest.raises(IdempotencyConflict) as conflict:
        session.append(draft(**{**said, **other}))
    assert conflict.value.first == first.id
    assert session.head == first.seq


def test_two_long_texts_with_one_preview_are_told_apart(session):
    """Content that differs only where the line leaves it out is other content."""
    text = "x" * 20_000
    session.append(draft(text, idempotency_key="k"))
    assert session.append(draft(text, idempotency_key="k")).seq == 3
    with pytest.raises(IdempotencyConflict):
        session.append(draft(text[:9000] + "y" + text[9001:], idempotency_key="k"))


def test_the_order_of_the_keys_of_an_object_is_no_other_content(session):
    """JSON objects are the same in any order of keys."""
    first = session.tool_call("t", {"a": 1, "b": 2}, agent="a", idempotency_key="k")
    assert session.tool_call("t", {"b": 2, "a": 1}, agent="a", idempotency_key="k") == first


def test_a_key_is_of_its_session(log, session):
    """Another session may use the same key for something else."""
    first = session.append(draft("one", idempotency_key="k"))
    assert log.session("t").append(draft("two", idempotency_key="k")).id != first.id


def test_a_refused_append_uses_no_key(session):
    """A key is used by an event, not by an attempt."""
    with pytest.raises(UnknownReference):
        session.append(draft("one", parent_id=NOWHERE, idempotency_key="k"))
    assert session.append(draft("two", idempotency_key="k")).body == "two"


def test_a_key_outlives_what_was_erased(log, session):
    """When the content can no longer be compared the first event is returned, whatever is said now."""
    first = session.append(draft("secret", idempotency_key="k"))
    overwrite(log, slots_of(log, first)[0], erasure_record(uuid.UUID(NOWHERE).bytes, 0, 2))
    again = session.append(draft("something else", idempotency_key="k"))
    assert (again.id, again.answer, session.head) == (first.id, "erased", first.seq)


def test_a_key_is_stored_as_a_keyed_digest_only(log, session):
    """No table holds an idempotency key, nor a digest of it that could be guessed."""
    session.append(draft(idempotency_key="guess-me"))
    with log._store.database.read() as connection:
        ((digest, pos),) = connection.execute("SELECT digest, pos FROM idempotency").fetchall()
    assert (len(digest), pos) == (16, 5)
    for text in (b"guess-me", b"s\0guess-me"):
        assert digest not in {hashlib.new(name, text).digest()[:16] for name in ("sha256", "md5", "blake2b")}
    assert b"guess-me" not in b"".join(log.lines())


# Pairs


def test_a_call_takes_one_result(session):
    """The second result of a call is refused, also within a batch, and leaves nothing."""
    call = session.tool_call("t", agent="a")
    session.tool_result(call.id, 1, agent="t")
    result = Draft(type="tool_result", agent="t", call_id=call.id, result=2)
    with pytest.raises(PairingError) as refused:
        session.append(result)
    assert refused.value.call_id == call.id
    later = session.tool_call("t", agent="a")
    result = Draft(type="tool_result", agent="t", call_id=later.id, result=2)
    with pytest.raises(PairingError) as refused:
        session.append_many([result, result])
    assert refused.value.index == 1
    assert session.open_calls() == [later]


def test_a_result_answers_a_call_of_its_own_session(log, session):
    """Neither a message nor a call of another session takes a result."""
    with pytest.raises(PairingError):
        session.tool_result(session.event(2), 1, agent="t")
    call = log.session("other").tool_call("t", agent="a")
    with pytest.raises(PairingError):
        session.tool_result(call, 1, agent="t")
    assert log.session("other").open_calls() == [call]


def test_open_calls_are_those_without_a_result(session):
    """Calls that wait are listed in order, page by page; an answered one is gone."""
    calls = [session.tool_call("t", {"n": n}, agent="a") for n in range(5)]
    session.tool_result(calls[1], 1, agent="t")
    waiting = [calls[0], *calls[2:]]
    assert session.open_calls() == waiting
    page = session.open_calls(limit=3)
    assert page == waiting[:3]
    assert session.open_calls(after=page.next, limit=3) == waiting[3:]
    with pytest.raises(ValueError, match="0 or more"):
        session.open_calls(limit=-1)


def test_an_orphan_result_needs_a_source(session):
    """A result without a call is taken only as an import, which says where it comes from."""
    with pytest.raises(InvalidEvent):
        session.append(Draft(type="tool_result", agent="t", result=1))
    orphan = session.append(Draft(type="tool_result", agent="t", result=1, source={"harness": "h"}))
    assert (orphan.call_id, orphan.source) == (None, {"harness": "h"})


def test_pairs_are_never_parted(session):
    """With pairs=True each result in the page has its call before it, however the window or a filter cuts."""
    calls = [session.tool_call("t", n, agent="a") for n in range(4)]
    session.message("between", agent="a")
    results = [session.tool_result(call, n, agent="t") for n, call in enumerate(calls)]
    assert session.tail(2) == results[2:]
    assert session.tail(2, pairs=True) == [*calls[2:], *results[2:]]
    assert session.tail(4, pairs=True, type="tool_result") == [*calls, *results]
    assert session.tail(20, pairs=True) == session.tail(20)
    later = session.tool_call("t", agent="a")
    answer = session.tool_result(later, 1, agent="t")
    page = session.tail(2, pairs=True, type="tool_result")
    assert page == [calls[3], results[3], later, answer]
    assert page.next == results[3].seq


# Content that is not in the line


@pytest.mark.parametrize(
    "text",
    [
        "x" * 8191,
        "é" * 5000,
        "\U0001f600" * 3000,
        "a\U0001f600" * 2000,
        "\x01" * 1400,
        "\u2028" * 3000,
        "\\" * 5000,
    ],
    ids=["ascii", "two bytes", "four bytes", "mixed", "controls", "separators", "escapes"],
)
def test_a_long_text_is_kept_whole_and_cut_at_code_points(session, text):
    """The line holds head and tail of whole characters and says how many bytes; the whole comes back on demand."""
    event = session.message(text, agent="a")
    head, _, rest = event.body.partition("\n[… ")
    left_out, _, tail = rest.partition(" bytes left out …]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert head
    assert tail
    kept = len(head.encode()) + len(tail.encode())
    assert event.truncated == {"bytes": len(text.encode()), "kept": kept}
    assert int(left_out) == len(text.encode()) - kept > 0
    assert len(head) + len(tail) < len(text)
    assert kept <= INLINE // 2
    assert session.content(event) == text
    assert session.content(session.tail(1)[0]) == text


@pytest.mark.parametrize(
    "text", ["x" * 8190, "é" * 4095, "\x01" * 1365], ids=["ascii", "two bytes", "controls"]
)
def test_a_text_that_fits_the_line_is_in_the_line(session, text):
    """Up to 8 KiB of JSON a value stands in the line as it is."""
    event = session.message(text, agent="a")
    assert (event.body, event.truncated, session.content(event)) == (text, None, text)


@pytest.mark.parametrize("verb", ["args", "result", "value"])
def test_a_long_value_is_kept_whole(session, verb):
    """A value that is no text is previewed as its JSON and comes back as the value it is."""
    long = {"list": [{"n": number, "f": 0.5, "t": "é"} for number in range(2000)]}
    call = session.tool_call("t", long if verb == "args" else None, agent="a")
    event = {
        "args": lambda: call,
        "result": lambda: session.tool_result(call, long, agent="t"),
        "value": lambda: session.mutation("state-set", long, agent="a"),
    }[verb]()
    assert getattr(event, verb).startswith('{"list":[{"n":0,')
    assert getattr(event, verb).endswith("]}")
    assert session.content(event) == long


def test_content_is_whatever_the_event_holds(session):
    """`content` gives the one value of an event, or None where there is none."""
    call = session.tool_call("t", agent="a")
    assert session.content(call) is None
    assert session.content(session.tool_result(call, {"a": 1}, agent="t")) == {"a": 1}
    assert session.content(session.message("x", agent="a")) == "x"
    assert session.content(session.message(agent="a", attachments=[Attachment("a/b", b"")])) is None


def test_attachments_come_back_byte_for_byte(log, session):
    """Each attachment is kept apart, in pieces if it is large, and found by its number."""
    contents = [b"", b"\x00\xff", bytes(range(256)) * 8192 + b"end"]
    event = session.message(agent="a", attachments=[Attachment("image/png", content) for content in contents])
    assert [item["bytes"] for item in event.attachments] == [len(content) for content in contents]
    assert len({item["blob"] for item in event.attachments}) == 3
    assert len(slots_of(log, event)) == 4
    for read_back in (event, session.tail(1)[0]):
        assert [session.attachment(read_back, index) for index in range(3)] == contents
    for index in (3, -1, -2):
        with pytest.raises(UnknownReference):
            session.attachment(event, index)
    assert not list(log.verify())


def test_a_whole_value_is_no_attachment(session):
    """The blob behind a long text is not to be had as an attachment."""
    event = session.message("x" * 9000, agent="a")
    for index in (-1, 0):
        with pytest.raises(UnknownReference):
            session.attachment(event, index)


def test_blobs_of_an_erased_or_lost_event_say_so(log, session):
    """A blob whose key is gone raises what its slot says, also when the event was read before."""
    event = session.message("x" * 9000, agent="a", attachments=[Attachment("a/b", b"one")])
    _, whole, attachment = slots_of(log, event)
    overwrite(log, whole, erasure_record(uuid.UUID(NOWHERE).bytes, 0, 2))
    overwrite(log, attachment, bytes(40))
    with pytest.raises(PayloadErased) as erased:
        session.content(event)
    assert (erased.value.by, erased.value.why) == (NOWHERE, "secret_leak")
    with pytest.raises(PayloadLost):
        session.attachment(event)


def unguard(connection):
    """Let blobs be changed, as somebody who can write the file could."""
    for trigger in ("chunk_update", "chunk_delete", "blob_update"):
        connection.execute(f"DROP TRIGGER {trigger}")


@pytest.mark.parametrize(
    "change", ["UPDATE chunk SET sealed = x'00' WHERE id = {0}", "DELETE FROM chunk WHERE id = {0}"]
)
def test_a_damaged_piece_of_a_blob_is_corrupt(log, session, change):
    """A piece that is gone or was changed makes the blob corrupt, never shorter; verify finds it."""
    event = session.message(agent="a", attachments=[Attachment("a/b", bytes(3 << 20))])
    with log._store.database.write() as connection:
        unguard(connection)
        connection.execute(change.format(slots_of(log, event)[1] * 65536 + 2))
    with pytest.raises(PayloadCorrupt):
        session.attachment(event)
    assert "payload-corrupt" in {finding.rule for finding in log.verify()}


def test_exchanged_pieces_of_a_blob_are_corrupt(log, session):
    """Pieces are bound to their number, and the last says that it is the last."""
    event = session.message(agent="a", attachments=[Attachment("a/b", bytes(3 << 20))])
    first = slots_of(log, event)[1] * 65536
    with log._store.database.write() as connection:
        one, two = (
            row[0] for row in connection.execute("SELECT sealed FROM chunk ORDER BY id LIMIT 2").fetchall()
        )
        unguard(connection)
        connection.execute("UPDATE chunk SET sealed = ? WHERE id = ?", (two, first))
        connection.execute("UPDATE chunk SET sealed = ? WHERE id = ?", (one, first + 1))
    with pytest.raises(PayloadCorrupt):
        session.attachment(event)
    other = session.message(agent="a", attachments=[Attachment("a/b", bytes(2 << 20))])
    with log._store.database.write() as connection:
        connection.execute("UPDATE blob SET chunks = 1 WHERE slot = ?", (slots_of(log, other)[1],))
    with pytest.raises(PayloadCorrupt):
        session.attachment(other)


# Reading


@pytest.fixture
def many(log):
    """A session of 61 events with every filter key in them, and the drafts as dicts by seq."""
    session, said = log.session("many"), {}
    drafts = []
    for number in range(60):
        keys = {"type": "message", "agent": f"agent-{number % 3}", "body": str(number)}
        if number % 2:
            keys["task_id"] = f"task-{number % 5}"
        if number % 4 == 0:
            keys["thread_id"] = "side"
        if number % 6 == 0:
            keys |= {"to": ["ann", "bo"], "performative": "inform"}
        if number % 10 == 0:
            keys["correlation_id"] = "c"
        if number % 7 == 0:
            keys = {**keys, "type": "tool_call", "tool": "t", "args": number}
            del keys["body"]
        elif number % 11 == 0:
            keys = {**keys, "type": "mutation", "kind": "state-set", "value": number}
            del keys["body"]
        said[number + 2] = keys
        drafts.append(Draft.from_dict(keys))
    session.append_many(drafts)
    return session, said


FILTERS = [
    {},
    {"agent": "agent-1"},
    {"task_id": "task-3"},
    {"thread_id": "side"},
    {"to": "bo"},
    {"type": "tool_call"},
    {"tool": "t"},
    {"kind": "state-set"},
    {"performative": "inform"},
    {"correlation_id": "c"},
    {"agent": "agent-0", "task_id": "task-1"},
    {"agent": "agent-0", "type": "message", "thread_id": "side"},
    {"to": "ann", "type": "tool_call", "correlation_id": "c"},
    {"agent": "nobody"},
    {"to": "agent-0"},
    {"tool": "t", "kind": "state-set"},
    {"agent": None, "tool": "t"},
]


def matching(said, filters):
    """The seqs that a filter lets through."""
    wanted = {key: value for key, value in filters.items() if value is not None}
    return [
        seq
        for seq, keys in said.items()
        if all(
            value in keys.get(key, ()) if key == "to" else keys.get(key) == value
            for key, value in wanted.items()
        )
    ]


def seqs(page):
    """The seqs of a page."""
    return [event.seq for event in page]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("max_scan", [1, 7, 20_000])
def test_pages_of_a_filtered_read_give_each_match_once(many, filters, limit, max_scan):
    """Walking by `next`, forwards or backwards, with any limit and any bound, gives all matches and nothing twice."""
    session, said = many
    expected = matching(said, filters)
    start = session.read(after=1, limit=limit, max_scan=max_scan, **filters)
    found, page, steps = seqs(start), start, 0
    while page.next is not None:
        assert len(page) <= limit
        page = session.read(after=page.next, limit=limit, max_scan=max_scan, **filters)
        found += seqs(page)
        steps += 1
        assert steps < 200
    assert found == expected
    page = session.tail(limit, max_scan=max_scan, **filters)
    found, steps = seqs(page), 0
    while page.next is not None:
        page = session.tail(limit, before=page.next, max_scan=max_scan, **filters)
        found = seqs(page) + found
        steps += 1
        assert steps < 200
    assert [seq for seq in found if seq > 1] == expected


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_bounds_of_a_read_are_exclusive(many, filters):
    """`after` and `before` leave out what they name, with every filter."""
    session, said = many
    expected = [seq for seq in matching(said, filters) if 10 < seq < 40]
    assert seqs(session.read(after=10, before=40, **filters)) == expected
    assert (
        seqs(session.tail(5, before=40, **filters))
        == [seq for seq in matching(said, filters) if seq < 40][-5:]
    )


def test_the_edges_of_a_read(many):
    """Nothing is asked for, or nothing is there: then nothing comes, and no bound means another."""
    session, _ = many
    assert (session.tail(0), session.read(limit=0), session.read(after=61)) == ([], [], [])
    assert (session.read(before=0), session.read(before=1), session.tail(before=0)) == ([], [], [])
    assert seqs(session.read(after=-5, limit=2)) == [1, 2]
    assert seqs(session.read(after=-5, agent="agent-1", limit=1, max_scan=1)) in ([], [3])
    assert (session.event(0), session.event(-1), session.event(62)) == (None, None, None)
    assert seqs(session.tail(1000)) == list(range(1, 62))
    assert session.tail(61).next is None
    assert session.tail(60).next == 2
    assert list(session.jsonl(before=0)) == []
    assert len(list(session.jsonl(after=59))) == 2
    for negative in (
        lambda: session.tail(-1),
        lambda: session.read(limit=-1),
        lambda: session.read(max_scan=0, tool="t"),
    ):
        with pytest.raises(ValueError, match="or more"):
            negative()


@pytest.mark.parametrize(
    ("filters", "pointer"),
    [
        ({"colour": "red"}, "/colour"),
        ({"type": "thought"}, "/type"),
        ({"agent": 5}, "/agent"),
        ({"to": ["a"]}, "/to"),
    ],
)
def test_what_is_no_filter_is_refused(session, filters, pointer):
    """An unknown filter, an unknown type and a value that is no text name themselves."""
    for read in (session.tail, session.read):
        with pytest.raises(InvalidEvent) as refused:
            read(**filters)
        assert refused.value.pointer == pointer


def test_lines_are_the_events_of_all_sessions(log, many):
    """`lines` and `jsonl` give the stored lines, sessions by id, then seq."""
    session, _ = many
    log.session("a").message("x", agent="a")
    assert list(session.jsonl()) == [event.line for event in session.read()]
    expected = [*log.session("_store").jsonl(), *log.session("a").jsonl(), *session.jsonl()]
    assert list(log.lines()) == expected
    assert list(log.lines("many", "a")) == [*session.jsonl(), *log.session("a").jsonl()]
    mirror = log.path / "sessions" / "many" / "conversation.jsonl"
    assert mirror.read_bytes() == b"".join(session.jsonl())


def test_an_event_is_found_by_its_id(log, session):
    """An id finds its event in whatever session; what is no id, or nobody's, is an unknown reference."""
    event = log.session("other").message("x", agent="a")
    assert log.event(event.id) == event
    for nothing in (NOWHERE, "", "x", "é", event.id + "0", "-" * 32):
        with pytest.raises(UnknownReference):
            log.event(nothing)


def test_sessions_are_summed_up(log, session, clock):
    """The list of sessions says how many events, since when, until when, and how many calls wait."""
    clock.advance(1)
    session.tool_call("t", agent="a")
    found = {summary.id: summary for summary in log.sessions()}
    assert list(found) == ["_store", "s"]
    assert (found["s"].events, found["s"].open_calls) == (3, 1)
    assert (found["s"].first_ts, found["s"].last_ts) == (
        "2026-01-02T03:04:05.678901Z",
        "2026-01-02T03:04:06.678901Z",
    )


def test_a_session_that_was_imported_is_as_old_as_its_events(log):
    """Not as its import, though the first things in a transcript may have no time of their own."""
    session = log.session("old")
    for at in (None, None, "2020-01-02T00:00:00.000000Z", "2020-01-03T00:00:00.000000Z"):
        source = {"harness": "claude-code"} | ({} if at is None else {"at": at})
        session.message("x", agent="a", source=source)
    (found,) = (summary for summary in log.sessions() if summary.id == "old")
    assert (found.first_ts, found.last_ts) == ("2020-01-02T00:00:00.000000Z", "2020-01-03T00:00:00.000000Z")


# Handles


def test_what_was_written_is_there_after_reopening(store_path, clock):
    """Another handle, open at the same time or later, reads the same bytes and goes on with the next seq."""
    with ConversationLog.open(store_path, clock=clock) as one, ConversationLog.open(store_path) as two:
        first = one.session("s").message("one", agent="a")
        second = two.session("s").message("two", agent="b", parent_id=first.id)
        assert one.session("s").tail(2) == [first, second]
        lines = list(one.lines())
    with ConversationLog.open(store_path) as again:
        assert not again.created
        assert list(again.lines()) == lines
        assert again.session("s").message("three", agent="a").seq == 4
        assert list(again.verify()) == []


def test_a_read_only_handle_reads_and_writes_nothing(store_path):
    """A handle that was opened to read sees new events of others, and refuses to append."""
    with ConversationLog.open(store_path) as log:
        log.session("s").message("one", agent="a")
        with ConversationLog.open(store_path, read_only=True) as reader:
            assert bodies(reader.session("s").tail(1)) == ["one"]
            with pytest.raises(StoreReadOnly):
                reader.session("s").message("x", agent="a")
            log.session("s").message("two", agent="a")
            assert bodies(reader.session("s").tail(2)) == ["one", "two"]


def test_a_closed_handle_says_so(log, session):
    """Every use after close is StoreClosed, appends included."""
    log.close()
    log.close()
    for use in (
        lambda: session.message("x", agent="a"),
        lambda: session.append_many([draft(), draft()]),
        session.tail,
        session.read,
        session.open_calls,
        lambda: session.head,
        lambda: list(session.jsonl()),
        lambda: log.event(NOWHERE),
        lambda: log.session("s"),
        log.sessions,
        lambda: list(log.lines()),
    ):
        with pytest.raises(StoreClosed):
            use()


@pytest.fixture
def ephemeral(clock):
    """A log in memory."""
    with ConversationLog.ephemeral(clock=clock) as opened:
        yield opened


def test_an_ephemeral_log_is_a_log(ephemeral, tmp_path, monkeypatch):
    """All verbs and reads work in memory, and no file is written."""
    monkeypatch.chdir(tmp_path)
    session = ephemeral.session("s")
    call = session.tool_call("t", {"a": 1}, agent="me", task_id="jwt")
    session.tool_result(call, "x" * 20_000, agent="me")
    event = session.message(agent="me", attachments=[Attachment("a/b", b"one")], idempotency_key="k")
    assert session.message(agent="me", attachments=[Attachment("a/b", b"one")], idempotency_key="k") == event
    assert session.attachment(event) == b"one"
    assert [found.seq for found in session.tail(2, pairs=True)] == [2, 3, 4]
    assert seqs(session.read(task_id="jwt")) == [2, 3]
    assert ephemeral.event(call.id) == call
    assert [found.id for found in ephemeral.sessions()] == ["s"]
    assert list(ephemeral.verify()) == []
    assert (ephemeral.path, ephemeral.created) == (None, True)
    for none in (lambda: ephemeral.mirror, lambda: ephemeral.export_to(tmp_path)):
        with pytest.raises(NotAStore):
            none()
    assert list(tmp_path.iterdir()) == []


def test_an_ephemeral_log_has_one_author(ephemeral):
    """A second author is refused and leaves nothing; who was only refused is no author."""
    session = ephemeral.session("s")
    with pytest.raises(InvalidEvent) as refused:
        session.append_many([draft(agent="a"), draft(agent="b")])
    assert (refused.value.pointer, refused.value.index) == ("/agent", 1)
    with pytest.raises(InvalidEvent):
        session.append(draft(agent="a", body=1))
    session.message("mine", agent="b")
    with pytest.raises(InvalidEvent):
        ephemeral.session("t").message("not mine", agent="a")
    assert session.head == 2


def test_two_authors_at_once_are_one_too_many(ephemeral):
    """Of two that append together to an ephemeral log the first is its author."""
    one, other = ephemeral.append_together(
        [("s", None, [draft("mine", agent="a")]), ("s", None, [draft("not mine", agent="b")])]
    )
    assert bodies(one) == ["mine"]
    assert isinstance(other, InvalidEvent)
    assert ephemeral.session("s").head == 2


def test_two_ephemeral_logs_know_nothing_of_each_other(ephemeral):
    """Each has its own events and its own keys."""
    ephemeral.session("s").message("x", agent="a")
    with ConversationLog.ephemeral() as other:
        assert other.session("s").head == 0


# Nothing that is printed shows content


CANARY = "canary-7f3a91"


def every_refusal(log, session):
    """Things that go wrong, each with the canary as content."""
    call = session.tool_call("t", {"x": CANARY}, agent="a")
    session.tool_result(call, CANARY, agent="t")
    used = session.append(draft(CANARY, idempotency_key="k"))
    lost = session.message(CANARY, agent="a")
    overwrite(log, slots_of(log, lost)[0], bytes(40))
    odd = {"meta": {"x": {CANARY}}}
    return [
        lambda: session.append(draft(CANARY + "\ud800")),
        lambda: session.append(draft(CANARY.encode())),
        lambda: session.append(draft("x", **odd)),
        lambda: session.append(draft("x", meta={"x": [CANARY, float("nan")]})),
        lambda: session.append(draft("x", usage=[CANARY])),
        lambda: session.append(draft(CANARY, idempotency_key="k", agent="b")),
        lambda: session.append(draft(CANARY, parent_id=NOWHERE)),
        lambda: session.append(draft(CANARY * (2 << 20))),
        lambda: session.append(draft(CANARY, attachments=[CANARY])),
        lambda: session.append(draft(CANARY, attachments=[Attachment("a/b", CANARY)])),
        lambda: session.append(draft(CANARY, subjects=[CANARY, CANARY])),
        lambda: session.append(draft(CANARY, idempotency_key=CANARY + "\n")),
        lambda: session.append(Draft(type="mutation", agent="a", kind="No", value=CANARY)),
        lambda: session.append(Draft(type="tool_call", agent="a", tool="t", args=(CANARY,))),
        lambda: session.tool_result(call, CANARY, agent="t"),
        lambda: session.append_many([draft(CANARY), draft(CANARY, parent_id=NOWHERE)]),
        lambda: log.event(lost.id).require_payload(),
        lambda: Draft.from_dict({"type": "message", "agent": "a", "body": CANARY, "nobody": CANARY}),
        lambda: Draft.from_dict([CANARY]),
        lambda: session.attachment(used, 5),
    ]


def test_no_error_shows_content(log, session):
    """Neither the text nor the repr of an error, nor of what it was raised from, nor its traceback, shows content."""
    refusals = every_refusal(log, session)
    for number, refusal in enumerate(refusals):
        with pytest.raises(ConvlogError) as raised:
            refusal()
        error = raised.value
        said = [str(error), repr(error), repr(vars(error)), *traceback.format_exception_only(error)]
        while error is not None:
            said += [str(error), repr(error)]
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        assert CANARY not in "".join(said), number
        assert "\n" not in str(raised.value)


def test_no_repr_shows_content(log, session):
    """The repr and text of everything public, and of what passes through the package, shows no content and no key."""
    attachment = Attachment("a/b", CANARY.encode())
    said = draft(
        CANARY, attachments=[attachment], meta={"x": CANARY}, idempotency_key=CANARY, subjects=[CANARY]
    )
    event = session.append(said)
    long = session.message(CANARY * 1000, agent="a")
    page = session.tail(2)
    shown = [
        log,
        session,
        said,
        attachment,
        event,
        event.payload,
        page,
        long,
        log.sessions(),
        log.anchor(),
        log.status(),
    ]
    shown += [log.mirror, list(log.verify()), log._store, log._store.keystore.header, log.reader]
    for item in shown:
        assert CANARY not in repr(item) + str(item)
    assert bodies(page)[0] == CANARY
    prepared = prepare(draft(CANARY * 1000, attachments=[attachment]), bytes(32))
    assert CANARY not in repr(prepared) + repr(prepared.blobs)
    master = log._store.keystore.header.master[:32]
    assert repr(master)[2:-1] not in repr(log._store) + repr(log._store.keystore.header)
