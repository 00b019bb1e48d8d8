"""The content of user and assistant records: one event for each block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from convlog_sqlite.adapters.claude_code import values
from convlog_sqlite.adapters.claude_code.origins import act, user_text
from convlog_sqlite.adapters.claude_code.pieces import (
    HARNESS,
    USER,
    Piece,
    Scene,
    attach,
    content_blocks,
    placeholder,
)
from convlog_sqlite.adapters.claude_code.results import tool_result

SPAWNING_TOOLS: Final = frozenset({"Task", "Agent"})
_SYNTHETIC: Final = "<synthetic>"  # the "model" of what the harness writes in the assistant's place


def user_pieces(scene: Scene) -> Iterator[Piece]:
    """The events of a user record."""
    content = scene.message.get("content") if scene.message else scene.record.get("message")
    empty = True
    for block in content_blocks(content):
        empty = False
        if isinstance(block, str):
            yield from user_text(scene, block)
        elif isinstance(block, dict) and isinstance(block.get("text"), str) and block.get("type") == "text":
            yield from user_text(scene, block["text"])
        else:
            yield _other(scene, block, USER if scene.thread.id is None else scene.thread.spawner)
    if empty:
        yield scene.mutation("claude-user", scene.rest())


def assistant_pieces(scene: Scene) -> Iterator[Piece]:
    """The events of an assistant record. The first carries what the record adds to its response's usage."""
    message = scene.message
    if not message:
        yield scene.mutation("claude-assistant", scene.rest())
        return
    usage = scene.memory.usage.news(
        (_text_or_none(message.get("id")), _text_or_none(scene.record.get("requestId"))), message.get("usage")
    )
    empty = True
    for block in content_blocks(message.get("content")):
        piece = _assistant_piece(scene, block)
        piece.keys.update(_response_keys(scene))
        if empty and usage:
            piece.keys["usage"] = usage
        empty = False
        yield piece
    if empty:
        piece = _spoken(scene, "")
        piece.keys.update(_response_keys(scene))
        piece.keys["usage"] = usage
        yield piece


def _assistant_piece(scene: Scene, block: Any) -> Piece:
    if isinstance(block, str):
        return _spoken(scene, block)
    if not isinstance(block, dict):
        return _other(scene, block, scene.thread.agent)
    sort = str(block.get("type"))
    if sort == "text" and isinstance(block.get("text"), str):
        return _spoken(scene, block["text"], {"citations": block.get("citations")})
    if sort in ("thinking", "redacted_thinking"):
        return _thought(scene, block, sort)
    if sort.endswith("tool_use"):
        return _tool_call(scene, block, sort)
    return _other(scene, block, scene.thread.agent)


def _response_keys(scene: Scene) -> dict[str, Any]:
    message = scene.message
    model = message.get("model")
    return {
        "correlation_id": scene.name(message.get("id")),
        "model": None if model == _SYNTHETIC else scene.name(model),
    }


def _spoken(scene: Scene, text: str, more: dict[str, Any] | None = None) -> Piece:
    message = scene.message
    failed = scene.record.get("isApiErrorMessage") is True
    keys = {
        "type": "message",
        "agent": HARNESS if failed else scene.thread.agent,
        "to": (scene.thread.spawner,),
        "performative": "failure" if failed else "inform",
        "body": text,
        "meta": scene.meta(
            {word: message.get(word) for word in ("stop_reason", "stop_details")} | (more or {})
        ),
    }
    return Piece(keys)


def _thought(scene: Scene, block: dict[str, Any], sort: str) -> Piece:
    text = block.get("thinking")
    keys = {
        "type": "message",
        "agent": scene.thread.agent,
        "performative": "inform",
        "sensitivity": "restricted",
        "body": text if isinstance(text, str) else "",
        "meta": scene.meta({"block": sort} | {word: block.get(word) for word in ("signature", "data")}),
    }
    return Piece(keys)


def _tool_call(scene: Scene, block: dict[str, Any], sort: str) -> Piece:
    tool = scene.name(block.get("name")) or "unknown"
    given = block.get("input", {})
    asked = given if isinstance(given, dict) else {}
    spawns = None
    to: str | None = None
    performative = "request"
    if tool in SPAWNING_TOOLS:
        spawns = to = scene.name(asked.get("subagent_type")) or scene.name(asked.get("name")) or "sub-agent"
    elif tool == "SendMessage":
        to = scene.name(asked.get("recipient", asked.get("to")))
        performative = act(asked)
    use = block.get("id")
    keys = {
        "type": "tool_call",
        "agent": scene.thread.agent,
        "to": (to,) if to else (),
        "performative": performative,
        "tool": tool,
        "args": given,
        "meta": scene.meta(
            {
                "toolUseId": use,
                "caller": block.get("caller"),
                "block": None if sort == "tool_use" else sort,
                "stop_reason": scene.message.get("stop_reason"),
            }
        ),
    }
    opens = use if isinstance(use, str) and use else None
    return Piece(keys, opens=opens, spawns=spawns, prompt=asked.get("prompt") if spawns else None)


def _other(scene: Scene, block: Any, agent: str) -> Piece:
    """A result, an image, or a block of a kind that has no event of its own."""
    if isinstance(block, dict) and str(block.get("type")).endswith("tool_result"):
        return tool_result(scene, block)
    if isinstance(block, dict) and (file := attach(block)) is not None:
        keys = {
            "type": "message",
            "agent": agent,
            "to": (scene.thread.agent,) if agent != scene.thread.agent else (scene.thread.spawner,),
            "performative": "inform",
            "body": placeholder(file, 0),
            "attachments": (file,),
            "meta": scene.meta(
                {"block": block.get("type")} | {word: block.get(word) for word in ("title", "context")}
            ),
        }
        return Piece(keys)
    return scene.mutation(values.kind(block.get("type") if isinstance(block, dict) else "block"), block)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
