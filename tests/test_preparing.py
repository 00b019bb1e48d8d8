"""A draft like one that came before is prepared from memory, and nobody can tell."""

import dataclasses
import itertools

import pytest

from convlog_sqlite import Attachment, Draft, Refused
from convlog_sqlite.drafts import ABSENT
from convlog_sqlite.store import preparing
from convlog_sqlite.vocabulary import INLINE_LIMIT

PEPPER = b"p" * 32
EVENT = "01890a5d-ac96-774b-bcce-b302099a8057"
FIRST = {
    "a message": Draft(type="message", agent="a", to=["b", "c"], thread_id="t", task_id="j", body="first"),
    "to one": Draft(type="message", agent="a", to=("b",), sensitivity="internal", model="m", body="first"),
    "a request": Draft(type="message", agent="a", performative="request", parent_id=EVENT, body="first"),
    "a call": Draft(type="tool_call", agent="a", role="worker", tool="run", args={"first": 1}),
    "a result": Draft(type="tool_result", agent="a", call_id=EVENT, result=1),
    "a mutation": Draft(type="mutation", agent="a", kind="state-set", state_key="k", value="first"),
    "of a task": Draft(type="mutation", agent="a", kind="task-done", task_id="j", value=[]),
    "with more": Draft(type="message", agent="a", body="first", usage={"n": 1}, links={"evidence": [EVENT]}),
}
CHANGES = {
    "another body": {"body": "second"},
    "no body": {"body": ABSENT},
    "null for a body": {"body": None},
    "a number for a body": {"body": 1},
    "half a character": {"body": "\ud800"},
    "a long body": {"body": "x" * INLINE_LIMIT},
    "other arguments": {"args": {"second": [None, "é"]}},
    "arguments that are null": {"args": None},
    "arguments that are no JSON": {"args": {"x": {1, 2}}},
    "another value": {"value": 2.5},
    "no value": {"value": ABSENT},
    "a parent": {"parent_id": EVENT.replace("0", "1")},
    "no parent": {"parent_id": None},
    "a parent that is none": {"parent_id": "x"},
    "a key": {"idempotency_key": "k"},
    "a key that is none": {"idempotency_key": ""},
    "a parent and content that are none": {"parent_id": "x", "body": 1, "idempotency_key": 2},
    "another role": {"role": "verifier"},
    "a name that is none": {"task_id": "\n"},
    "nobody": {"to": []},
    "the same as a tuple": {"to": ("b", "c")},
    "a text for names": {"to": "bc"},
    "names that are none": {"to": [["b"]]},
    "a name twice": {"to": ["b", "b"]},
    "links": {"links": {"evidence": [EVENT]}},
    "empty links": {"links": {}},
    "subjects": {"subjects": ["Ada"]},
    "an attachment": {"attachments": (Attachment("text/plain", b"x"),)},
    "what it expects": {"expect": EVENT},
    "a lease": {"lease": 5},
    "another type": {"type": "mutation"},
    "a type that is none": {"type": ["message"]},
}


def outcome(draft):
    """All that is known of a draft once it is prepared, or what refused it; blobs have random ids."""
    try:
        prepared = preparing.prepare(draft, PEPPER, b"e" * 16)
    except Refused as refused:
        return type(refused), refused.__dict__
    said = {key.name: getattr(prepared, key.name) for key in dataclasses.fields(prepared)}
    blobs = [(blob.part, blob.content) for blob in said.pop("blobs")]
    if draft.attachments:
        del said["payload"]
    return said, blobs


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_made_does_not_depend_on_what_came_before(first, change):
    """A draft is prepared, or refused, the same whether or not one like it was prepared before."""
    draft = dataclasses.replace(FIRST[first], **CHANGES[change])
    preparing._shapes.clear()
    alone = outcome(draft)
    preparing._shapes.clear()
    for before in (FIRST[first], *FIRST.values()):
        outcome(before)
    assert outcome(draft) == alone
    assert outcome(draft) == alone, "and a second time"


def test_one_like_it_is_not_looked_at_again(monkeypatch):
    """The rules of names are asked once for drafts that differ only in content, parent and key."""
    asked = []
    validate = preparing.drafts.validate
    monkeypatch.setattr(preparing.drafts, "validate", lambda draft: asked.append(draft) or validate(draft))
    preparing._shapes.clear()
    for number in range(3):
        draft = Draft(type="message", agent="a", to=["b"], body=f"{number}", idempotency_key=f"{number}")
        assert outcome(draft)[0]["payload"] == b'{"body":"%d"}' % number
    assert len(asked) == 1


def test_what_is_remembered_is_bounded():
    """However many different names there are, a bounded number is kept."""
    preparing._shapes.clear()
    for number in itertools.count():
        before = len(preparing._shapes)
        outcome(Draft(type="message", agent=f"agent-{number}", body="x"))
        if len(preparing._shapes) < before:
            break
        assert number <= preparing._MOST_SHAPES
    assert len(preparing._shapes) == 1
