"""Drafts to bytes, before any transaction: validation, payload, blobs, keyed digests.

What is slow or can be refused without the database happens here, outside the write lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, NamedTuple

from convlog_sqlite import canonical, drafts, sealing, strictjson
from convlog_sqlite.drafts import ABSENT, Absent, Draft
from convlog_sqlite.errors import EventTooLarge
from convlog_sqlite.instants import id_text, to_microseconds
from convlog_sqlite.scrubbing import Scrubber
from convlog_sqlite.store import blobs
from convlog_sqlite.store.reading import correlation_digest
from convlog_sqlite.vocabulary import (
    ABOUT_A_PERSON,
    ACCEPTANCES,
    DEFAULT_SENSITIVITY,
    FOR_SOME_PURPOSES,
    FORMAT_VERSION,
    INLINE_LIMIT,
    LINKS,
    MAX_EVENT,
    MEMORY_KINDS,
    OF_AN_EFFECT,
    PROPOSALS,
    SENSITIVITIES,
    TASK_STATE_KEY,
    TYPES,
    UNLABELLED,
)

_MAIN_KEYS: Final = ("body", "args", "result", "value")
_NOT_IN_ENVELOPE: Final = frozenset(canonical.PAYLOAD_KEYS) | {"idempotency_key", "expect", "lease"}


NAMED: Final = ("agent", "role", "task_id", "thread_id", "tool", "kind", "performative", "state_key")


class Described(NamedTuple):
    """What the rows of an event say of its envelope. `names` are those of NAMED, None where absent.

    `rest` are the envelope's bytes from `agent` on. `decides` is True where it is posted by its performative,
    `refers` when the envelope names other events.
    """

    rest: bytes
    names: tuple[str | None, ...]
    recipients: Sequence[str]
    subjects: Sequence[str]
    correlation: int | None
    sensitivity: int
    at: int | None
    flags: int
    purposes: Sequence[str]
    decides: bool
    refers: bool


def describe(keys: dict[str, Any]) -> Described:
    """Work out the bytes and the index of an envelope whose place is not known yet."""
    get = keys.get
    correlation, source = get("correlation_id"), get("source")
    at = None if source is None else source.get("at")
    return Described(
        canonical.envelope_rest(keys),
        tuple(map(get, NAMED)),
        get("to", ()),
        get("subjects", ()),
        None if correlation is None else correlation_digest(correlation),
        SENSITIVITIES[get("sensitivity", DEFAULT_SENSITIVITY)],
        None if at is None else to_microseconds(at),
        flags(keys),
        get("purposes", ()),
        get("performative") in PROPOSALS,
        "call_id" in keys or "parent_id" in keys or "links" in keys,
    )


def flags(keys: Mapping[str, Any]) -> int:
    """What an envelope says that a view may keep back, as bits."""
    unlabelled = "source" in keys and "sensitivity" not in keys
    return (
        ABOUT_A_PERSON * ("subjects" in keys)
        + UNLABELLED * unlabelled
        + FOR_SOME_PURPOSES * ("purposes" in keys)
        + OF_AN_EFFECT * ("effect" in keys)
    )


@dataclass(slots=True, repr=False)  # never content: reprs end up in logs
class Prepared:
    """A draft that was validated and made into bytes. `event_id` is given for what was imported.

    `scrubbed` counts the secrets that gave way to placeholders, by kind.
    """

    type: int
    envelope: dict[str, Any]
    described: Described
    payload: bytes
    blobs: tuple[blobs.Blob, ...]
    idempotency_key: str | None
    event_id: bytes | None = None
    expect: tuple[str, ...] | None = None
    lease: float | None = None
    scrubbed: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_ruled(self) -> bool:
        """Whether what stands in the log decides if the draft is taken: see `store.rules`."""
        keys = self.envelope
        if "state_key" in keys or "effect" in keys or keys.get("performative") in ACCEPTANCES:
            return True
        return keys.get("kind") in MEMORY_KINDS

    @property
    def proposes(self) -> bool:
        """Whether it proposes an effect, whose key belongs to it in the whole store; an import's does not."""
        effect = self.envelope.get("effect")
        return effect is not None and effect["state"] == "proposed" and self.event_id is None

    @property
    def is_plain(self) -> bool:
        """Whether nothing that stands in the log can refuse it: it names no other event, and no rule looks at it."""
        is_own = self.idempotency_key is None and self.event_id is None and not self.blobs
        return is_own and not self.described.refers and not self.is_ruled and not self.described.subjects


class _Shape(NamedTuple):
    """What was made of a draft but for its content and parent, and the key that the content stands under."""

    type: int
    envelope: dict[str, Any]
    described: Described
    content: str


_Key = tuple[Any, ...]
# Agents say many things to the same ones, in the same role, task and thread. What was held to the rules and made
# into bytes for one draft is so for every one like it. Names only, no content; and what is here is never changed.
_shapes: dict[_Key, _Shape] = {}
_MOST_SHAPES: Final = 1024
_LEFT_OPEN: Final = frozenset({*_MAIN_KEYS, "parent_id", "idempotency_key"})
_NAMES_IN_SHAPE: Final = frozenset(NAMED) | {"to", "content_type", "model", "sensitivity"}
_SHAPE: Final = attrgetter(*(key.name for key in fields(Draft) if key.name not in _LEFT_OPEN | {"to"}))
_CONTENT: Final = attrgetter(*_MAIN_KEYS)


def _shape_key(draft: Draft) -> _Key:
    """All of a draft that its shape follows from. It cannot be hashed where it holds an object or a list."""
    to = draft.to
    return (*_SHAPE(draft), tuple(to) if type(to) is list else to)


def _remember_shape(draft: Draft, keys: Mapping[str, Any], prepared: Prepared) -> None:
    """Keep the shape of a draft that `prepare` looked at closely, if it is one that may come again."""
    content = [key for key in _MAIN_KEYS if key in keys]
    if len(content) != 1 or not keys.keys() - _LEFT_OPEN <= _NAMES_IN_SHAPE:
        return
    envelope, described = prepared.envelope, prepared.described
    if "parent_id" in envelope:
        envelope = {key: item for key, item in envelope.items() if key != "parent_id"}
        described = describe(envelope)
    if len(_shapes) >= _MOST_SHAPES:
        _shapes.clear()
    with contextlib.suppress(TypeError):  # an empty list stands for nothing, and is no part of a key
        _shapes[_shape_key(draft)] = _Shape(prepared.type, envelope, described, content[0])


def _in_shape(draft: Draft, event_id: bytes | None) -> Prepared | None:
    """What `prepare` gives for a draft like one that came before; None where it has to look closer."""
    try:
        shape = _shapes.get(_shape_key(draft))
    except (TypeError, AttributeError):  # an object in it; no Draft
        return None
    if shape is None:
        return None
    content = {}
    for key, value in zip(_MAIN_KEYS, _CONTENT(draft), strict=True):
        if value is not ABSENT:
            if key != shape.content or value is None:
                return None
            content[key] = value
    envelope, described, parent = shape.envelope, shape.described, draft.parent_id
    if parent is not None:
        drafts.check_key("parent_id", parent)
        envelope = envelope | {"parent_id": parent}
        described = Described(canonical.envelope_rest(envelope), *described[1:-1], refers=True)
    for key, value in content.items():
        drafts.check_key(key, value)
    if draft.idempotency_key is not None:
        drafts.check_key("idempotency_key", draft.idempotency_key)
    payload = strictjson.dump(content)
    if not content or len(payload) > INLINE_LIMIT or len(payload) + len(described.rest) > MAX_EVENT:
        return None
    return Prepared(shape.type, envelope, described, payload, (), draft.idempotency_key, event_id)


def prepare(
    draft: Draft, pepper: bytes, event_id: bytes | None = None, scrubber: Scrubber | None = None
) -> Prepared:
    """Scrub and validate a draft and make its payload bytes. Raises InvalidEvent, EventTooLarge, ScrubFailed.

    Scrubbed first, so that no rule that refuses the draft quotes a secret in the pointer to the place.
    """
    if scrubber is None or not isinstance(draft, Draft):
        return _in_shape(draft, event_id) or _prepare(draft, pepper, event_id)
    draft, scrubbed = scrubber.draft(draft)
    prepared = _in_shape(draft, event_id) or _prepare(draft, pepper, event_id)
    prepared.scrubbed = scrubbed
    return prepared


def _prepare(draft: Draft, pepper: bytes, event_id: bytes | None) -> Prepared:
    keys = drafts.validate(draft)
    attachments = blobs.of_attachments(draft.attachments) if "attachments" in keys else []
    if attachments:
        keys["attachments"] = [
            {"blob": id_text(blob.id), "media_type": item.media_type, "bytes": len(item.content)}
            for blob, item in zip(attachments, draft.attachments, strict=True)
        ]
    payload = canonical.payload_bytes(keys)
    # No value is longer than the whole, so most payloads need no second look.
    found = _shorten(keys) if len(payload) > INLINE_LIMIT else []
    if found:
        payload = canonical.payload_bytes(keys)
    size = len(payload) + sum([len(blob.content) for blob in found])
    if size > MAX_EVENT:
        raise EventTooLarge(size, MAX_EVENT)
    envelope = {key: item for key, item in keys.items() if key not in _NOT_IN_ENVELOPE}
    _complete(envelope, draft.type, pepper)
    whole = (*found, *attachments)
    described = describe(envelope)
    if (
        size + len(described.rest) > MAX_EVENT
    ):  # lists of names, purposes and links have no bound of their own
        raise EventTooLarge(size + len(described.rest), MAX_EVENT)
    prepared = Prepared(
        TYPES[draft.type],
        envelope,
        described,
        payload,
        whole,
        draft.idempotency_key,
        event_id,
        None if isinstance(draft.expect, Absent) else _expected(draft.expect),
        draft.lease,
    )
    _remember_shape(draft, keys, prepared)
    return prepared


def _shorten(keys: dict[str, Any]) -> list[blobs.Blob]:
    """Put a preview in the place of each value that is too long for the line, which is kept whole as a blob."""
    found = []
    for key in _MAIN_KEYS:
        if key in keys:
            encoded = strictjson.dump(keys[key])
            if len(encoded) > INLINE_LIMIT:
                found.append(blobs.whole_value(encoded))
                keys[key], keys["truncated"] = blobs.preview(keys[key], encoded, INLINE_LIMIT // 2)
    return found


def _expected(expect: str | Sequence[str] | None) -> tuple[str, ...]:
    if expect is None:
        return ()
    return (expect,) if isinstance(expect, str) else tuple(expect)


def _complete(envelope: dict[str, Any], event_type: str, pepper: bytes) -> None:
    """Defaults that need no database, and keyed digests in place of names of people."""
    envelope["v"], envelope["type"] = FORMAT_VERSION, event_type
    for key in ("to", "purposes"):
        if key in envelope:
            envelope[key] = list(envelope[key])
    if "links" in envelope:
        given = envelope["links"]
        envelope["links"] = {key: list(given[key]) for key in LINKS if key in given}
    if "source" in envelope:
        given = envelope["source"]
        envelope["source"] = {key: given[key] for key in ("harness", "native_id", "at") if key in given}
    if "effect" in envelope:
        given = envelope["effect"]
        envelope["effect"] = {key: given[key] for key in ("id", "state", "outcome") if key in given}
    if "subjects" in envelope:
        envelope["subjects"] = [subject_digest(pepper, name) for name in envelope["subjects"]]
    if envelope.get("sensitivity") == DEFAULT_SENSITIVITY:
        del envelope["sensitivity"]
    if event_type == "tool_result":
        envelope.setdefault("status", "ok")
    if event_type == "mutation" and "task_id" in envelope and envelope["kind"].startswith("task-"):
        envelope.setdefault("state_key", TASK_STATE_KEY.format(task_id=envelope["task_id"]))


def subject_digest(pepper: bytes, name: str) -> str:
    """The pseudonym under which a person stands in envelopes: 32 hex digits, keyed."""
    return sealing.keyed_digest(pepper, "convlog/subject/1", name)[:16].hex()


def foreign_digest(pepper: bytes, harness: str, key: str) -> bytes:
    """The keyed digest that an imported event's id is made of: 32 bytes."""
    return sealing.keyed_digest(pepper, "convlog/foreign/1", harness, key)
