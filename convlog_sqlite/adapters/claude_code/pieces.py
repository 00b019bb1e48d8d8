"""One event of a record before its identity is known, and the record it is made from."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite.adapters.claude_code import values
from convlog_sqlite.adapters.claude_code.memory import Memory, Thread
from convlog_sqlite.drafts import Attachment

HARNESS: Final = "harness"
USER: Final = "user"
ASSISTANT: Final = "assistant"

_ENVELOPE: Final = frozenset(
    {"type", "uuid", "parentUuid", "timestamp", "sessionId", "session_id", "isSidechain", "userType"}
)
# Kept in `meta` under their own names, where they say something: where the session was, and what a
# message says about itself. A mutation has the latter in its value.
_CONTEXT: Final = ("cwd", "version", "gitBranch", "requestId", "entrypoint", "slug", "sessionKind")
_ABOUT: Final = (
    "agentId", "teamName", "permissionMode", "promptSource", "origin", "isMeta", "isCompactSummary",
    "isVisibleInTranscriptOnly", "isApiErrorMessage", "isAbortedMidStream", "error", "errorDetails", "effort",
    "supersedesUuids", "interruptedMessageId", "interruptedByShutdown", "toolDenialKind", "toolEndsTurn",
    "mcpMeta", "planContent", "todos", "thinkingMetadata", "imagePasteIds", "sourceToolUseID",
    "sourceToolAssistantUUID", "attributionAgent", "attributionSkill", "attributionPlugin",
    "attributionMcpServer", "attributionMcpTool", "apiErrorStatus", "costUSD",
)  # fmt: skip


@dataclass(slots=True)
class Piece:
    """The keys of a draft. `parent` replaces the chain's; `opens` is the id of a call that begins here."""

    keys: dict[str, Any]
    parent: str | None = None
    call: str | None = None
    opens: str | None = None
    spawns: str | None = None
    prompt: Any = None


@dataclass(slots=True)
class Scene:
    """A record, the thread it belongs to, and what is remembered."""

    record: dict[str, Any]
    thread: Thread
    memory: Memory
    session: str
    altered: int = 0
    noted: bool = False

    @property
    def message(self) -> dict[str, Any]:
        """The record's `message`, empty if it has none."""
        found = self.record.get("message")
        return found if isinstance(found, dict) else {}

    def meta(self, more: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """What the record says about itself, and `more`; what says nothing is left out."""
        told = self._told(_CONTEXT) | self._told(_ABOUT)
        return told | {key: value for key, value in (more or {}).items() if _tells(value)} or None

    def _told(self, keys: tuple[str, ...]) -> dict[str, Any]:
        record = self.record
        told = {key: record[key] for key in keys if key in record and _tells(record[key])}
        named = record.get("sessionId")
        if keys is _CONTEXT and isinstance(named, str) and named not in ("", self.session):
            told["sessionId"] = named
        return told

    def name(self, value: Any) -> str | None:
        """`value` as a name, counted when it had to be changed."""
        found = values.name(value)
        if found is not None and found != value:
            self.altered += 1
        return found

    def from_harness(self, body: str, more: Mapping[str, Any] | None = None) -> Piece:
        """A message that the program put in."""
        keys = {
            "type": "message",
            "agent": HARNESS,
            "to": (self.thread.agent,),
            "performative": "inform",
            "body": body,
            "meta": self.meta(more),
        }
        return Piece(keys)

    def mutation(self, kind: str, value: Any) -> Piece:
        """Something that happened to the session, with `value` as content."""
        meta = self._told(_CONTEXT) or None
        return Piece({"type": "mutation", "agent": HARNESS, "kind": kind, "value": value, "meta": meta})

    def rest(self, *without: str) -> dict[str, Any]:
        """What the record holds beyond its envelope and its context, `without` left out."""
        gone = {*_ENVELOPE, *_CONTEXT, *without}
        return {key: value for key, value in self.record.items() if key not in gone}


def _tells(value: Any) -> bool:
    return (
        value is not None and value is not False and not (isinstance(value, str | list | dict) and not value)
    )


def attach(block: Mapping[str, Any]) -> Attachment | None:
    """The image or document that a content block holds, None unless it holds valid base64."""
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        return None
    content = decoded(source.get("data"))
    return None if content is None else Attachment(values.media_type(source.get("media_type")), content)


def decoded(data: Any) -> bytes | None:
    """The bytes of base64 text, None unless it is valid and not empty."""
    if not isinstance(data, str) or not data:
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def placeholder(attachment: Attachment, number: int) -> str:
    """What stands in a text for attachment `number`, counted from 0."""
    return f"[attachment {number}: {attachment.media_type}, {len(attachment.content)} bytes]"


def content_blocks(content: Any) -> Iterator[Any]:
    """The blocks of a message's content, which may also be plain text or missing."""
    if isinstance(content, list):
        yield from content
    elif content is not None:
        yield content
