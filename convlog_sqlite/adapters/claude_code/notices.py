"""What the harness itself writes: system records, injected attachments, side records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from convlog_sqlite.adapters.claude_code import values
from convlog_sqlite.adapters.claude_code.origins import user_text
from convlog_sqlite.adapters.claude_code.pieces import Piece, Scene, attach, content_blocks, placeholder

# System records that speak; the others are mutations.
_SPOKEN: Final = frozenset({None, "", "informational", "local_command", "away_summary", "error"})
_TEXT_KEYS: Final = ("content", "text", "stdout", "stderr", "blockingError", "snippet", "message")


def system_pieces(scene: Scene) -> Iterator[Piece]:
    """The event of a system record."""
    record = scene.record
    subtype = record.get("subtype")
    content = record.get("content")
    if subtype == "compact_boundary":
        piece = scene.mutation("context-compacted", scene.rest("logicalParentUuid"))
        piece.keys["correlation_id"] = scene.name(record.get("uuid"))
        yield piece
    elif subtype == "stop_hook_summary":
        yield _stop_hooks(scene)
    elif (subtype is None or isinstance(subtype, str)) and subtype in _SPOKEN and isinstance(content, str):
        yield _about_call(scene, scene.from_harness(content, scene.rest("content")), record)
    else:
        yield scene.mutation(values.kind(subtype or "system"), scene.rest())


def attachment_pieces(scene: Scene) -> Iterator[Piece]:
    """The events of an attachment record: context that was put before the model."""
    attachment = scene.record.get("attachment")
    if not isinstance(attachment, dict):
        yield scene.mutation("claude-attachment", scene.rest())
    elif attachment.get("type") == "queued_command":
        yield from _queued(scene, attachment)
    else:
        yield _context(scene, attachment)


def side_pieces(scene: Scene, kind: str) -> Iterator[Piece]:
    """The event of a record of any other kind: a mutation with the record as value."""
    yield scene.mutation(values.kind(kind), scene.rest())


def _stop_hooks(scene: Scene) -> Piece:
    record = scene.record
    said = [*_list(record.get("hookErrors")), *_list(record.get("hookAdditionalContext"))]
    if isinstance(reason := record.get("stopReason"), str) and reason:
        said.append(reason)
    body = "\n".join(item if isinstance(item, str) else _json(item) for item in said)
    piece = scene.from_harness(body, scene.rest("hookErrors", "hookAdditionalContext", "stopReason"))
    if record.get("preventedContinuation") is True:
        piece.keys["performative"] = "refuse"
    return _about_call(scene, piece, record)


def _context(scene: Scene, attachment: dict[str, Any]) -> Piece:
    sort = attachment.get("type")
    hook = isinstance(sort, str) and sort.startswith("hook_")
    key = next((key for key in _TEXT_KEYS if isinstance(attachment.get(key), str) and attachment[key]), None)
    rest = {name: value for name, value in attachment.items() if name not in (key, "type")}
    if key is not None or hook:
        piece = scene.from_harness(attachment[key] if key else "", {"block": sort, "attachment": rest})
    else:
        piece = scene.from_harness(_json(rest), {"block": sort})
        piece.keys["content_type"] = "application/json"
    if sort == "hook_blocking_error":
        piece.keys["performative"] = "refuse"
    return _about_call(scene, piece, attachment) if hook else piece


def _queued(scene: Scene, attachment: dict[str, Any]) -> Iterator[Piece]:
    """A prompt that was queued while the model was busy: said by whoever queued it."""
    if isinstance(attachment.get("origin"), dict) or attachment.get("isMeta") is True:
        scene.record = scene.record | {key: attachment.get(key) for key in ("origin", "isMeta")}
    said = False
    for block in content_blocks(attachment.get("prompt")):
        text = block if isinstance(block, str) else block.get("text") if isinstance(block, dict) else None
        file = attach(block) if isinstance(block, dict) else None
        if isinstance(text, str):
            pieces = list(user_text(scene, text))
        elif file is not None:
            pieces = [scene.from_harness(placeholder(file, 0))]
            pieces[0].keys["attachments"] = (file,)
        else:
            pieces = [scene.from_harness(_json(block))]
        for piece in pieces:
            noted = {"block": "queued_command", "commandMode": attachment.get("commandMode")}
            piece.keys["meta"] = (piece.keys["meta"] or {}) | noted
            said = True
            yield piece
    if not said:
        yield _context(scene, attachment)


def _about_call(scene: Scene, piece: Piece, naming: dict[str, Any]) -> Piece:
    """`piece`, with the call that `naming` names as its parent, if it is known."""
    use = naming.get("toolUseID")
    if (call := scene.memory.calls.find(use)) is not None:
        piece.parent = call.key
    piece.keys["correlation_id"] = scene.name(use)
    return piece


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
