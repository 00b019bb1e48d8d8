"""Event: what the log recorded, and the five answers that its payload can give.

An event is the bytes that were stored, and nothing else: a line is the envelope's bytes and the
payload's bytes spliced, and every attribute is read from them when it is asked for. A payload that
cannot be read is a value (`Erased`, `Locked`, `Lost`, `Corrupt`), never an exception; only
`require_payload` raises.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, Self, TypeVar, overload

from convlog_sqlite import strictjson
from convlog_sqlite.errors import (
    PayloadCorrupt,
    PayloadErased,
    PayloadLocked,
    PayloadLost,
    PayloadUnreadable,
    StoreCorrupt,
)
from convlog_sqlite.vocabulary import DEFAULT_SENSITIVITY


@dataclass(frozen=True, slots=True, repr=False)
class Live:
    """The payload can be read: `data` is its canonical JSON object."""

    data: bytes

    def __repr__(self) -> str:
        return "<payload>"  # never content: reprs end up in logs


@dataclass(frozen=True, slots=True)
class Erased:
    """Erased by the redaction event `by`, at the instant `at`, for `reason`."""

    by: str
    at: str
    reason: str


@dataclass(frozen=True, slots=True)
class Locked:
    """The keystore is locked: its key-encryption key is not here."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The data key is gone, and no redaction says why."""


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The sealed bytes do not open with their key."""


Payload = Live | Erased | Locked | Lost | Corrupt
ANSWERS: Final[dict[type, str]] = {
    Live: "live",
    Erased: "erased",
    Locked: "locked",
    Lost: "lost",
    Corrupt: "corrupt",
}
_ERRORS: Final[dict[type, type[PayloadUnreadable]]] = {
    Locked: PayloadLocked,
    Lost: PayloadLost,
    Corrupt: PayloadCorrupt,
}


Value = TypeVar("Value")


class EnvelopeKey(Generic[Value]):
    """One envelope key as a read-only attribute; `default` when the line does not have it."""

    def __init__(self, default: Value) -> None:
        self._default = default

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, event: None, owner: type) -> Self: ...
    @overload
    def __get__(self, event: Event, owner: type) -> Value: ...
    def __get__(self, event: Event | None, owner: type) -> Value | Self:
        if event is None:
            return self
        parsed = event._envelope  # noqa: SLF001 parsed already, but the first time
        found: Value = (event.envelope if parsed is None else parsed).get(self._name, self._default)
        return found


class PayloadKey(EnvelopeKey[Value]):
    """One payload key as a read-only attribute; `default` when absent or when the payload is unreadable."""

    @overload
    def __get__(self, event: None, owner: type) -> Self: ...
    @overload
    def __get__(self, event: Event, owner: type) -> Value: ...
    def __get__(self, event: Event | None, owner: type) -> Value | Self:
        if event is None:
            return self
        parsed = event._content  # noqa: SLF001 parsed already, but the first time
        found: Value = (event.content if parsed is None else parsed).get(self._name, self._default)
        return found


BRIEF_CONTENT: Final[tuple[str, ...]] = ("body", "args", "result", "value")
_BRIEF_ENVELOPE: Final[tuple[str, ...]] = (
    "seq", "agent", "type", "to", "task_id", "performative", "kind", "tool", "status",
)  # fmt: skip
_BRIEF_PAYLOAD: Final = (*BRIEF_CONTENT, "withheld")

_NO_LIST: Final[Sequence[Any]] = ()
_NO_OBJECT: Final[Mapping[str, Any]] = MappingProxyType({})


class Event:
    """What the log recorded: read-only, compared by its bytes.

    Attributes are the envelope and payload keys. What the line does not have is None, or an empty
    sequence or mapping for `to`, `purposes`, `subjects`, `attachments`, `links`. `answer` says what the
    payload is: `live`, `erased`, `locked`, `lost` or `corrupt`; unless it is live, the payload keys are
    absent. `withheld` is True where a view kept payload keys back. `cut` is `{"characters", "kept"}` of the main
    content where a budget cut it, with `without`, the payload keys that it left out.
    """

    __slots__ = ("_content", "_envelope", "envelope_bytes", "payload")

    envelope_bytes: bytes
    payload: Payload
    _envelope: dict[str, Any] | None
    _content: dict[str, Any] | None

    def __init__(self, envelope_bytes: bytes, payload: Payload) -> None:
        _SET_BYTES(self, envelope_bytes)
        _SET_PAYLOAD(self, payload)
        _SET_ENVELOPE(self, None)
        _SET_CONTENT(self, None)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an event is never changed: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an event is never changed: {name}")

    v = EnvelopeKey[int](1)
    id = EnvelopeKey[str]("")
    seq = EnvelopeKey[int](0)
    ts = EnvelopeKey[str]("")
    session = EnvelopeKey[str]("")
    tenant = EnvelopeKey["str | None"](None)
    agent = EnvelopeKey[str]("")
    role = EnvelopeKey["str | None"](None)
    type = EnvelopeKey[str]("")
    to = EnvelopeKey["Sequence[str]"](_NO_LIST)
    performative = EnvelopeKey["str | None"](None)
    thread_id = EnvelopeKey["str | None"](None)
    task_id = EnvelopeKey["str | None"](None)
    parent_id = EnvelopeKey["str | None"](None)
    links = EnvelopeKey["Mapping[str, Sequence[str]]"](_NO_OBJECT)
    correlation_id = EnvelopeKey["str | None"](None)
    traceparent = EnvelopeKey["str | None"](None)
    content_type = EnvelopeKey["str | None"](None)
    tool = EnvelopeKey["str | None"](None)
    call_id = EnvelopeKey["str | None"](None)
    status = EnvelopeKey["str | None"](None)
    kind = EnvelopeKey["str | None"](None)
    state_key = EnvelopeKey["str | None"](None)
    effect = EnvelopeKey["Mapping[str, str] | None"](None)
    seen = EnvelopeKey["Mapping[str, Any] | None"](None)
    model = EnvelopeKey["str | None"](None)
    sensitivity = EnvelopeKey[str](DEFAULT_SENSITIVITY)
    purposes = EnvelopeKey["Sequence[str]"](_NO_LIST)
    subjects = EnvelopeKey["Sequence[str]"](_NO_LIST)
    source = EnvelopeKey["Mapping[str, str] | None"](None)

    body = PayloadKey["str | None"](None)
    args = PayloadKey[Any](None)
    result = PayloadKey[Any](None)
    value = PayloadKey[Any](None)
    truncated = PayloadKey["Mapping[str, int] | None"](None)
    attachments = PayloadKey["Sequence[Mapping[str, Any]]"](_NO_LIST)
    usage = PayloadKey["Mapping[str, Any] | None"](None)
    meta = PayloadKey["Mapping[str, Any] | None"](None)
    withheld = PayloadKey(False)
    cut = PayloadKey["Mapping[str, Any] | None"](None)

    @property
    def envelope(self) -> dict[str, Any]:
        """The envelope as a dict, parsed once when first asked for."""
        parsed = self._envelope
        if parsed is None:
            try:
                parsed = strictjson.load(self.envelope_bytes)
            except ValueError:
                parsed = None
            if not isinstance(parsed, dict):
                raise StoreCorrupt("envelope", "the envelope is not what was recorded; run `convlog verify`")
            _SET_ENVELOPE(self, parsed)
        return parsed

    @property
    def content(self) -> dict[str, Any]:
        """The payload as a dict, parsed once when first asked for; empty when it is unreadable."""
        parsed = self._content
        if parsed is None:
            parsed = strictjson.load(self.payload.data) if isinstance(self.payload, Live) else {}
            _SET_CONTENT(self, parsed)
        return parsed

    @property
    def answer(self) -> str:
        """What the payload is: `live`, `erased`, `locked`, `lost` or `corrupt`."""
        return ANSWERS[self.payload.__class__]

    @property
    def redacted(self) -> dict[str, str] | None:
        """`{"by", "at", "reason"}` of the redaction that erased the payload, else None."""
        gone = self.payload
        return {"by": gone.by, "at": gone.at, "reason": gone.reason} if isinstance(gone, Erased) else None

    @property
    def unreadable(self) -> str | None:
        """`locked`, `lost` or `corrupt`, else None."""
        return None if isinstance(self.payload, Live | Erased) else self.answer

    @property
    def line(self) -> bytes:
        """The canonical JSONL line, with its newline."""
        return canonical_line(self.envelope_bytes, self.payload)

    def brief(self) -> dict[str, Any]:
        """The few keys that an agent needs, those that the line has: who said or did what, to whom, for which task.

        `seq`, `agent`, `type`, `to`, `task_id`, `performative`, `kind`, `tool`, `status`, the main content (`body`,
        `args`, `result` or `value`), and `withheld`, `redacted` or `unreadable` as the line has them.
        """
        said = {key: self.envelope[key] for key in _BRIEF_ENVELOPE if key in self.envelope}
        said |= {key: self.content[key] for key in _BRIEF_PAYLOAD if key in self.content}
        answers = {"redacted": self.redacted, "unreadable": self.unreadable}
        return said | {key: answer for key, answer in answers.items() if answer is not None}

    @property
    def brief_line(self) -> bytes:
        """What `brief` gives as one line of JSON, with its newline."""
        return strictjson.dump(self.brief()) + b"\n"

    def to_dict(self) -> dict[str, Any]:
        """The line as a dict of the caller's own."""
        parsed: dict[str, Any] = strictjson.load(self.line)
        return parsed

    def showing(self, keys: Container[str]) -> Event:
        """The event with these payload keys alone; where that leaves some out, `withheld` says so."""
        if not isinstance(self.payload, Live):
            return self
        shown = {key: item for key, item in self.content.items() if key in keys}
        if len(shown) == len(self.content):
            return self
        return Event(self.envelope_bytes, Live(strictjson.dump({**shown, "withheld": True})))

    def require_payload(self) -> dict[str, Any]:
        """The payload as a dict. Raises the PayloadUnreadable that says why it cannot be read."""
        payload = self.payload
        if isinstance(payload, Live):
            return self.content
        if isinstance(payload, Erased):
            raise PayloadErased(self.id, payload.by, payload.at, payload.reason)
        raise _ERRORS[payload.__class__](self.id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return self.envelope_bytes == other.envelope_bytes and self.payload == other.payload

    def __hash__(self) -> int:
        return hash(self.envelope_bytes)

    def __reduce__(self) -> tuple[Any, tuple[bytes, Payload]]:
        return Event, (self.envelope_bytes, self.payload)  # copied and pickled by what it is, its bytes

    def __repr__(self) -> str:
        return f"<event {self.session} {self.seq} {self.type} by {self.agent}, {self.answer}>"


# What an event is made with: by its slots, since it refuses to be changed by name.
_SET_BYTES, _SET_PAYLOAD, _SET_ENVELOPE, _SET_CONTENT = (
    Event.__dict__[slot].__set__ for slot in ("envelope_bytes", "payload", "_envelope", "_content")
)


def canonical_line(envelope: bytes, payload: Payload) -> bytes:
    """Splice stored bytes into one line. Nothing is serialised again, so every export is byte-identical."""
    if isinstance(payload, Live):
        if payload.data == b"{}":
            return envelope + b"\n"
        return envelope[:-1] + b"," + payload.data[1:] + b"\n"
    if isinstance(payload, Erased):
        gone = strictjson.dump({"by": payload.by, "at": payload.at, "reason": payload.reason})
        return envelope[:-1] + b',"redacted":' + gone + b"}\n"
    word = ANSWERS[payload.__class__].encode()
    return envelope[:-1] + b',"unreadable":"' + word + b'"}\n'
