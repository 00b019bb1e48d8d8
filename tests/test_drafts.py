"""Drafts: what a caller may say, and where a draft that breaks a rule is at fault."""

import json
from pathlib import Path

import pytest

from convlog_sqlite import ABSENT, Attachment, Draft, ForeignDraft, InvalidEvent, drafts, errors
from convlog_sqlite.canonical import ENVELOPE_KEYS, PAYLOAD_KEYS
from convlog_sqlite.vocabulary import KINDS, PERFORMATIVES, SENSITIVITIES, STATUSES

VECTORS = Path(__file__).parent / "vectors"
DRAFTS = json.loads((VECTORS / "drafts.json").read_text(encoding="utf-8"))
SESSIONS = json.loads((VECTORS / "sessions.json").read_text(encoding="utf-8"))
EVENT_ID = "019b7d3a-5c2e-7abc-8def-0123456789ab"


@pytest.mark.parametrize("case", DRAFTS, ids=[case["name"] for case in DRAFTS])
def test_a_draft_that_breaks_a_rule_is_refused(case):
    """Each draft of drafts.json is refused with the class and the pointer that stand beside it."""
    with pytest.raises(getattr(errors, case["class"])) as refused:
        drafts.validate(Draft.from_dict(case["draft"]))
    assert case["pointer"] == refused.value.pointer
    assert refused.value.rule
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("case", SESSIONS, ids=[case["name"] for case in SESSIONS])
def test_what_is_no_session_id_is_refused(case):
    """Each session id of sessions.json is refused."""
    with pytest.raises(getattr(errors, case["class"])) as refused:
        drafts.check_session_id(case["session"])
    assert case["pointer"] == refused.value.pointer
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("session", ["a", "0", "A.b_c-d", "a" * 128, "a..b", "_store"])
def test_what_is_a_session_id_is_taken(session):
    """Letters, digits, dots, underscores and hyphens make a session id of up to 128 characters."""
    drafts.check_session_id(session)


@pytest.mark.parametrize(
    ("draft", "pointer"),
    [
        (Draft(type="message", agent="a", attachments=5), "/attachments"),
        (Draft(type="message", agent="a", attachments=(item for item in ())), "/attachments"),
        (Draft(type="message", agent="a", attachments=["x"]), "/attachments/0"),
        (
            Draft(type="message", agent="a", attachments=[Attachment("text", b"")]),
            "/attachments/0/media_type",
        ),
        (
            Draft(type="message", agent="a", attachments=[Attachment("a/b", bytearray(b"x"))]),
            "/attachments/0/content",
        ),
        (Draft(type="message", agent="a", body="x", to={"b"}), "/to"),
        (Draft(type="message", agent="a", body="x", to=(name for name in "bc")), "/to"),
        (Draft(type="message", agent="a", body="x", to=""), "/to"),
        (Draft(type="message", agent=(), body="x"), "/agent"),
        (Draft(type=None, agent="a"), "/type"),
        (Draft(type="tool_call", agent="a", tool="t", args=()), "/args"),
        (Draft(type="message", agent="a", body="x", meta={"k": b"x"}), "/meta/k"),
        (Draft(type="message", agent="a", body="x", meta={1: "x"}), "/meta"),
    ],
)
def test_a_draft_made_in_python_is_held_to_the_same_rules(draft, pointer):
    """What only Python can say, and JSON cannot, is refused at its place too."""
    with pytest.raises(InvalidEvent) as refused:
        drafts.validate(draft)
    assert pointer == refused.value.pointer


@pytest.mark.parametrize("empty", [(), [], {}])
@pytest.mark.parametrize("key", ["to", "links", "purposes", "subjects", "attachments"])
def test_an_empty_list_is_an_absent_one(key, empty):
    """A list that holds nothing is as good as not given: it leaves no key."""
    given = drafts.validate(Draft(type="message", agent="a", body="x", **{key: empty}))
    assert given == {"agent": "a", "body": "x"}


@pytest.mark.parametrize("content", [None, False, 0, "", [], {}])
@pytest.mark.parametrize(
    ("key", "draft"),
    [
        ("args", {"type": "tool_call", "agent": "a", "tool": "t"}),
        ("result", {"type": "tool_result", "agent": "a", "call_id": EVENT_ID}),
        ("value", {"type": "mutation", "agent": "a", "kind": "k"}),
    ],
)
def test_null_and_nothing_are_content(key, draft, content):
    """null, false, zero and what is empty are kept as arguments, results and values; ABSENT is not there."""
    given = drafts.validate(Draft.from_dict({**draft, key: content}))
    assert given[key] == content
    assert type(given[key]) is type(content)
    assert key not in drafts.validate(Draft.from_dict(draft))
    assert getattr(Draft.from_dict(draft), key) is ABSENT


def test_every_key_a_caller_may_set_is_a_key_of_the_line():
    """A draft has the keys of envelope and payload without those of the store, and what is asked of the log."""
    own = set(ENVELOPE_KEYS) | set(PAYLOAD_KEYS)
    assert drafts._DRAFT_KEYS == own - drafts.STORE_KEYS | {"idempotency_key", "expect", "lease"}
    assert drafts._DRAFT_KEYS - {"type"} == set(drafts._CHECKS)


def test_the_words_of_every_closed_list_are_taken():
    """All performatives, statuses, sensitivities and kinds pass."""
    assert len(PERFORMATIVES) == 22
    for word in PERFORMATIVES:
        drafts.validate(Draft(type="message", agent="a", body="", performative=word))
    for word in SENSITIVITIES:
        drafts.validate(Draft(type="message", agent="a", body="", sensitivity=word))
    for word in STATUSES:
        drafts.validate(Draft(type="tool_result", agent="a", call_id=EVENT_ID, status=word))
    for word in KINDS:
        drafts.validate(Draft(type="mutation", agent="a", kind=word.replace("*", "x")))


def test_a_name_may_be_256_characters_of_any_script():
    """Names are counted in characters, not bytes, and may have blanks and emoji."""
    for name in ("x" * 256, "ä" * 256, "\U0001f600" * 256, "Ann Lee", "a/b"):
        drafts.validate(Draft(type="message", agent=name, body="", to=[name]))


def test_a_draft_from_json_is_the_draft_from_python():
    """`from_dict` takes every key, null for what is not given, and attachments in base64."""
    said = {
        "type": "message",
        "agent": "a",
        "role": None,
        "to": ["b"],
        "body": "x",
        "attachments": [{"media_type": "image/png", "base64": "AAE="}],
        "idempotency_key": "k",
    }
    made = Draft(
        type="message",
        agent="a",
        to=["b"],
        body="x",
        attachments=(Attachment("image/png", b"\x00\x01"),),
        idempotency_key="k",
    )
    assert Draft.from_dict(said) == made


def test_validation_changes_nothing():
    """A draft and what is in it are the same after it was validated."""
    meta = {"a": [1]}
    draft = Draft(type="message", agent="a", body="x", meta=meta, to=["b"])
    drafts.validate(draft)
    assert draft == Draft(type="message", agent="a", body="x", meta={"a": [1]}, to=["b"])


def test_no_repr_shows_content():
    """What stands in a traceback or a log line names a draft and shows nothing of it."""
    canary = "canary-7f3a"
    attachment = Attachment("image/png", canary.encode())
    draft = Draft(
        type="message",
        agent="a",
        body=canary,
        meta={canary: 1},
        subjects=[canary],
        attachments=[attachment],
        idempotency_key=canary,
    )
    foreign = ForeignDraft(draft=draft, key=canary, parent_key=canary, call_key=canary)
    assert canary not in repr([draft, attachment, foreign]) + f"{draft} {attachment} {foreign}"
