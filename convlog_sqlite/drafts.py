"""Draft: what a caller says, before the log has recorded it; and the rules it is held to.

A draft is refused whole, before anything is written, with `InvalidEvent(pointer, rule)` naming the
place. `validate` is the only gate: the library, the command and the importers all pass through it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Self

from convlog_sqlite import strictjson
from convlog_sqlite.errors import InvalidEvent
from convlog_sqlite.instants import to_microseconds
from convlog_sqlite.vocabulary import (
    EFFECT_KINDS,
    EFFECT_OUTCOMES,
    EFFECT_STATES,
    LINKS,
    MAX_LEASE,
    MAX_NAME,
    PERFORMATIVES,
    SENSITIVITIES,
    STATUSES,
    STORE_SESSION,
    TYPES,
)


class Absent:
    """The type of `ABSENT`, which stands for a payload key that was not given (None is JSON null)."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = Absent()


@dataclass(frozen=True, slots=True)
class Attachment:
    """An image or file that belongs to an event: sealed apart from it, erasable with it."""

    media_type: str
    content: bytes

    def __repr__(self) -> str:
        return f"<attachment {self.media_type}>"  # never content: reprs end up in logs


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Draft:
    """What a caller says. `type` and `agent` are needed; everything else depends on the type.

    `subjects` are names of people: the log stores keyed digests of them. `to`, `purposes` and
    `subjects` are sequences of names; `links` maps a link type to event ids.

    Three keys are asked of the log and not recorded as they stand: with `expect`, a mutation is refused
    unless exactly the given mutations (an event id, several, or None for nothing) stand for its state key,
    and it replaces them; `lease` is for how many seconds a claim is held; `effect` says which step of an
    effect this is: `{"state"}` to propose one, `{"state", "id", "outcome"?}` for what follows.
    """

    type: str
    agent: str
    role: str | None = None
    to: Sequence[str] = ()
    performative: str | None = None
    thread_id: str | None = None
    task_id: str | None = None
    parent_id: str | None = None
    links: Mapping[str, Sequence[str]] | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    content_type: str | None = None
    tool: str | None = None
    call_id: str | None = None
    status: str | None = None
    kind: str | None = None
    state_key: str | None = None
    effect: Mapping[str, str] | None = None
    model: str | None = None
    sensitivity: str | None = None
    purposes: Sequence[str] = ()
    subjects: Sequence[str] = ()
    source: Mapping[str, str] | None = None
    body: str | Absent = ABSENT
    args: Any = ABSENT
    result: Any = ABSENT
    value: Any = ABSENT
    attachments: Sequence[Attachment] = ()
    usage: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    expect: str | Sequence[str] | Absent | None = ABSENT
    lease: float | None = None

    def __repr__(self) -> str:
        return f"<draft {self.type} by {self.agent}>"  # never content: reprs end up in logs

    def check(self) -> None:
        """Hold the draft to every rule that needs no store. Raises InvalidEvent."""
        validate(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The draft that a JSON object describes. Attachments are `{"media_type", "base64"}` objects.

        Raises InvalidEvent for a key that is unknown or that only the store may set.
        """
        if not isinstance(data, dict):
            raise InvalidEvent("", "a draft is a JSON object")
        for key in data:
            if key not in _DRAFT_KEYS:
                rule = "only the store sets this key" if key in STORE_KEYS else "unknown key"
                raise InvalidEvent(f"/{strictjson.escape(str(key))}", rule)
        for key in ("type", "agent"):
            if key not in data:
                raise InvalidEvent(f"/{key}", "needed")
        given = {key: value for key, value in data.items() if value is not None or key in _NULLABLE_KEYS}
        if "attachments" in given:
            given["attachments"] = _attachments(given["attachments"])
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignDraft:
    """One event found in a foreign transcript.

    `key` is its native identity: the event id is a keyed digest of the harness and this key, so that a
    second import is a no-op. It may depend on content; it is not stored. `parent_key` and `call_key`
    are keys of other events of the same harness.
    """

    draft: Draft
    key: str = field(repr=False)
    parent_key: str | None = field(default=None, repr=False)
    call_key: str | None = field(default=None, repr=False)


_DRAFT_KEYS: Final = frozenset(key.name for key in fields(Draft))
_CONTENT_KEYS: Final = frozenset({"args", "result", "value"})  # where null is content
_NULLABLE_KEYS: Final = _CONTENT_KEYS | {"expect"}  # where null says something
_LIST_KEYS: Final = frozenset({"to", "links", "purposes", "subjects", "attachments"})  # where empty is absent
_EMPTY: Final[tuple[Any, ...]] = ((), [], {})
STORE_KEYS: Final = frozenset(
    {"v", "id", "seq", "ts", "session", "tenant", "seen", "truncated", "redacted", "unreadable"}
)

# type -> (keys it needs, keys that belong to it alone)
_TYPE_KEYS: Final[dict[str, tuple[tuple[str, ...], frozenset[str]]]] = {
    "message": ((), frozenset({"body"})),
    "tool_call": (("tool",), frozenset({"tool", "args"})),
    "tool_result": ((), frozenset({"tool", "call_id", "status", "result"})),
    "mutation": (("kind",), frozenset({"kind", "state_key", "value", "expect"})),
}
_TYPED_KEYS: Final = frozenset().union(*(own for _, own in _TYPE_KEYS.values()))
_STRANGE_KEYS: Final = {kind: _TYPED_KEYS - own for kind, (_, own) in _TYPE_KEYS.items()}

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SESSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_KIND: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_EVENT_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_MEDIA_TYPE: Final = re.compile(
    r"[!#$&^_.+A-Za-z0-9-]+/[!#$&^_.+A-Za-z0-9-]+([ \t]*;[\x20-\x7e]*)?", re.ASCII
)
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)

_NAME_RULE: Final = f"a name is 1 to {MAX_NAME} characters without control characters"
SESSION_RULE: Final = (
    "a session id is 1 to 128 of A-Z a-z 0-9 . _ -, begins with a letter or digit and does not end with a dot"
)


@lru_cache(maxsize=8192)
def _is_name(value: str) -> bool:
    return 0 < len(value) <= MAX_NAME and not _CONTROL.search(value)


def _name(value: Any, pointer: str) -> None:
    if type(value) is not str or not _is_name(value):
        raise InvalidEvent(pointer, _NAME_RULE)


def _names(value: Any, pointer: str) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidEvent(pointer, "must be a list of names")
    for number, item in enumerate(value):
        _name(item, f"{pointer}/{number}")
    if len(set(value)) != len(value):
        raise InvalidEvent(pointer, "the same name stands twice")


def _one_of(words: frozenset[str]) -> Callable[[Any, str], None]:
    rule = "must be one of " + ", ".join(sorted(words))

    def check(value: Any, pointer: str) -> None:
        if type(value) is not str or value not in words:
            raise InvalidEvent(pointer, rule)

    return check


def _matching(pattern: re.Pattern[str], rule: str) -> Callable[[Any, str], None]:
    def check(value: Any, pointer: str) -> None:
        if type(value) is not str or len(value) > MAX_NAME or not pattern.fullmatch(value):
            raise InvalidEvent(pointer, rule)

    return check


_event_id: Final = _matching(_EVENT_ID, "must be an event id (a UUID in lower case)")


def _links(value: Any, pointer: str) -> None:
    if not isinstance(value, Mapping):
        raise InvalidEvent(pointer, "must be an object of id lists")
    for key, ids in value.items():
        if key not in LINKS:
            raise InvalidEvent(
                f"{pointer}/{strictjson.escape(str(key))}", "must be one of " + ", ".join(LINKS)
            )
        if isinstance(ids, str) or not isinstance(ids, Sequence) or not ids:
            raise InvalidEvent(f"{pointer}/{key}", "must be a list of event ids")
        for number, item in enumerate(ids):
            _event_id(item, f"{pointer}/{key}/{number}")


def _source(value: Any, pointer: str) -> None:
    if not isinstance(value, Mapping) or "harness" not in value:
        raise InvalidEvent(pointer, "must be an object with harness, and native_id and at where known")
    for key, item in value.items():
        if key not in ("harness", "native_id", "at"):
            raise InvalidEvent(f"{pointer}/{strictjson.escape(str(key))}", "unknown key")
        if key == "at":
            _instant(item, f"{pointer}/at")
        else:
            _name(item, f"{pointer}/{key}")


def _instant(value: Any, pointer: str) -> None:
    _instant_form(value, pointer)
    try:
        to_microseconds(value)
    except ValueError:
        raise InvalidEvent(pointer, "a day and time that exist") from None


_instant_form: Final = _matching(
    _INSTANT, "must be RFC 3339 in UTC with microseconds: 2026-01-31T09:30:00.000000Z"
)


def _text(value: Any, pointer: str) -> None:
    if type(value) is not str:
        raise InvalidEvent(pointer, "must be text")
    strictjson.check(value, pointer)


def _object(value: Any, pointer: str) -> None:
    if type(value) is not dict:
        raise InvalidEvent(pointer, "must be a JSON object")
    strictjson.check(value, pointer)


def _sealed_files(value: Any, pointer: str) -> None:
    if not isinstance(value, Sequence):
        raise InvalidEvent(pointer, "must be a list of Attachments")
    for number, item in enumerate(value):
        if not isinstance(item, Attachment):
            raise InvalidEvent(f"{pointer}/{number}", "must be an Attachment")
        _media_type(item.media_type, f"{pointer}/{number}/media_type")
        if type(item.content) is not bytes:
            raise InvalidEvent(f"{pointer}/{number}/content", "must be bytes")


def _attachments(value: Any) -> tuple[Attachment, ...]:
    if not isinstance(value, list):
        raise InvalidEvent("/attachments", "must be a list")
    found = []
    for number, item in enumerate(value):
        pointer = f"/attachments/{number}"
        if not isinstance(item, dict) or set(item) != {"media_type", "base64"}:
            raise InvalidEvent(pointer, "must be an object with media_type and base64")
        try:
            content = base64.b64decode(item["base64"], validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise InvalidEvent(f"{pointer}/base64", "not base64") from None
        found.append(Attachment(item["media_type"], content))
    return tuple(found)


def _idempotency_key(value: Any, pointer: str) -> None:
    if type(value) is not str or not 0 < len(value) <= 1024 or _CONTROL.search(value):
        raise InvalidEvent(pointer, "must be 1 to 1024 characters without control characters")


def _effect(value: Any, pointer: str) -> None:
    state = value.get("state") if isinstance(value, Mapping) else None
    if type(state) is not str or state not in EFFECT_STATES:
        raise InvalidEvent(f"{pointer}/state", "must be one of " + ", ".join(EFFECT_STATES))
    for key in value:
        if key not in ("id", "state", "outcome"):
            raise InvalidEvent(f"{pointer}/{strictjson.escape(str(key))}", "unknown key")
    if state == "proposed" and "id" in value:
        raise InvalidEvent(f"{pointer}/id", "an effect gets its id when it is proposed")
    if state != "proposed":
        _event_id(value.get("id"), f"{pointer}/id")
    if (state == "compensated") != ("outcome" in value):
        raise InvalidEvent(f"{pointer}/outcome", "belongs to a compensated effect, which needs it")
    if value.get("outcome", EFFECT_OUTCOMES[0]) not in EFFECT_OUTCOMES:
        raise InvalidEvent(f"{pointer}/outcome", "must be one of " + ", ".join(EFFECT_OUTCOMES))


def _expect(value: Any, pointer: str) -> None:
    if value is None:
        return
    if not isinstance(ids := [value] if isinstance(value, str) else value, Sequence):
        raise InvalidEvent(pointer, "must be an event id, a list of them, or null")
    for number, item in enumerate(ids):
        _event_id(item, pointer if isinstance(value, str) else f"{pointer}/{number}")


def _lease(value: Any, pointer: str) -> None:
    if type(value) not in (int, float) or not 0 < value <= MAX_LEASE:
        raise InvalidEvent(pointer, f"must be seconds, more than 0 and at most {MAX_LEASE}")


_media_type: Final = _matching(_MEDIA_TYPE, "must be a media type such as text/markdown")

_CHECKS: Final[dict[str, Callable[[Any, str], None]]] = {
    "agent": _name,
    "role": _name,
    "to": _names,
    "performative": _one_of(PERFORMATIVES),
    "thread_id": _name,
    "task_id": _name,
    "parent_id": _event_id,
    "links": _links,
    "correlation_id": _name,
    "traceparent": _matching(_TRACEPARENT, "must be a W3C traceparent"),
    "content_type": _media_type,
    "tool": _name,
    "call_id": _event_id,
    "status": _one_of(STATUSES),
    "kind": _matching(_KIND, "must be kebab-case: small letters and digits joined by single hyphens"),
    "state_key": _name,
    "effect": _effect,
    "model": _name,
    "sensitivity": _one_of(frozenset(SENSITIVITIES)),
    "purposes": _names,
    "subjects": _names,
    "source": _source,
    "body": _text,
    "args": strictjson.check,
    "result": strictjson.check,
    "value": strictjson.check,
    "attachments": _sealed_files,
    "usage": _object,
    "meta": _object,
    "idempotency_key": _idempotency_key,
    "expect": _expect,
    "lease": _lease,
}


_VALUES: Final = attrgetter(*_CHECKS)  # all in one call: an append looks at every key
_FIELDS: Final = {key.name: key.default for key in fields(Draft)}
_DEFAULTS: Final = tuple(ABSENT if _FIELDS[key] is MISSING else _FIELDS[key] for key in _CHECKS)


def given(draft: Draft) -> dict[str, Any]:
    """The keys of `draft` that were given, without `type`, in the order of the envelope and payload."""
    return {
        key: value
        for key, value, default in zip(_CHECKS, _VALUES(draft), _DEFAULTS, strict=True)
        if value is not default
        and value is not ABSENT
        and (value is not None or key in _NULLABLE_KEYS)
        and not (key in _LIST_KEYS and value in _EMPTY)
    }


def validate(draft: Draft) -> dict[str, Any]:
    """Hold `draft` to every rule that needs no database, and return the keys that were given.

    Raises InvalidEvent with a pointer to the first place that breaks a rule.
    """
    if not isinstance(draft, Draft):
        raise InvalidEvent("", "a Draft; Draft.from_dict makes one of a dict")
    strange = _STRANGE_KEYS.get(draft.type) if type(draft.type) is str else None
    if strange is None:
        raise InvalidEvent("/type", "must be one of " + ", ".join(TYPES))
    keys = given(draft)
    if "agent" not in keys:
        raise InvalidEvent("/agent", "needed")
    for key, value in keys.items():
        if key in strange:
            raise InvalidEvent(f"/{key}", f"does not belong to a {draft.type}")
        _CHECKS[key](value, f"/{key}")
    for key in _TYPE_KEYS[draft.type][0]:
        if key not in keys:
            raise InvalidEvent(f"/{key}", f"a {draft.type} needs it")
    if draft.type == "message" and "body" not in keys and "attachments" not in keys:
        raise InvalidEvent("/body", "a message needs a body or attachments")
    if keys.get("kind") in EFFECT_KINDS and "effect" not in keys:
        raise InvalidEvent("/effect", f"{draft.kind} moves an effect, which is needed")
    if "expect" in keys and "state_key" not in keys and "task_id" not in keys:
        raise InvalidEvent("/expect", "says what stands for a state_key, which is needed")
    if draft.type == "tool_result" and "call_id" not in keys and "source" not in keys:
        raise InvalidEvent("/call_id", "a tool_result needs it")
    return keys


def check_session_id(value: Any) -> None:
    """Refuse what is not a session id (it is also a file name). `_store` is reserved and passes."""
    if value == STORE_SESSION:
        return
    if type(value) is not str or not _SESSION.fullmatch(value) or value.endswith("."):
        shown = value if isinstance(value, str) else repr(value)
        raise InvalidEvent("/session", f"{SESSION_RULE}; not {_shortened(shown)!r}")


def is_event_id(text: str) -> bool:
    """Whether `text` is the text form of an event id."""
    return _EVENT_ID.fullmatch(text) is not None


def check_key(key: str, value: Any) -> None:
    """Hold the value of one key to its rule."""
    _CHECKS[key](value, f"/{key}")


def check_name(value: Any, pointer: str) -> None:
    """Refuse what is not a name (agent, task, tenant and the like)."""
    _name(value, pointer)


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
