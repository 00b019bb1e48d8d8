"""Tool results: whom they answer, how they ended, and what the harness noted beside them."""

from __future__ import annotations

import re
from typing import Any, Final

from convlog_sqlite.adapters.claude_code import values
from convlog_sqlite.adapters.claude_code.origins import INTERRUPTED
from convlog_sqlite.adapters.claude_code.pieces import Piece, Scene, attach, decoded, placeholder
from convlog_sqlite.drafts import Attachment

_DENIED: Final = (
    "The user doesn't want to proceed with this tool use",
    "The user doesn't want to take this action right now",
    "Permission to use ",
    "Claude requested permissions ",
    "User rejected tool use",
)
_ACTS: Final = {"ok": "inform", "error": "failure", "denied": "refuse", "interrupted": "failure"}
_AGENT_TAIL: Final = re.compile(r"\bagentId: ([A-Za-z0-9_-]{1,100})")
_TAIL: Final = 4096  # characters at the end of a result in which a spawned agent's id may stand
_WHOLE_FILES: Final = frozenset({"originalFile", "originalFileContents"})
_RESULT_KEYS: Final = frozenset({"type", "tool_use_id", "content", "is_error"})
_WORTH: Final = 40  # characters; a shorter text is kept though the result may say it too
_IMAGE_TEXT: Final = 1000  # characters of base64 from which on a text is looked at as a file


def tool_result(scene: Scene, block: dict[str, Any]) -> Piece:
    """The result that `block` is: of its call, or an orphan."""
    record = scene.record
    given = block.get("tool_use_id")
    call, waiting = scene.memory.calls.answer(given)
    attachments: list[Attachment] = []
    result = _without_files(block.get("content"), attachments)
    text = _text(result)
    status = _status(record, block, text)
    noted = None if scene.noted else record.get("toolUseResult")  # a record notes one result
    notes = _notes(noted, block, text, attachments)
    scene.noted = True
    if call and call.spawns:
        _learn_agent(scene, call, record.get("toolUseResult"), text)
    more = {key: value for key, value in block.items() if key not in _RESULT_KEYS and value != text}
    keys = {
        "type": "tool_result",
        "agent": call.agent if call else scene.thread.agent,
        "performative": _ACTS[status],
        "correlation_id": call.correlation if call else None,
        "tool": call.tool if call else None,
        "status": status,
        "result": result,
        "attachments": tuple(attachments),
        "meta": scene.meta(
            {
                "toolUseId": given,
                "toolUseResult": notes,
                "block": more,
                "repeated": bool(call and not waiting),
            }
        ),
    }
    return Piece(keys, parent=call.key if call else None, call=call.key if call and waiting else None)


def _status(record: dict[str, Any], block: dict[str, Any], text: str) -> str:
    noted = record.get("toolUseResult")
    if record.get("toolDenialKind"):
        return "denied"
    if record.get("interruptedByShutdown") is True or (
        isinstance(noted, dict) and noted.get("interrupted") is True
    ):
        return "interrupted"
    if block.get("is_error") is not True:
        return "ok"
    said = text.lstrip()
    if said.startswith(_DENIED) or (isinstance(noted, str) and noted.startswith(_DENIED)):
        return "denied"
    return "interrupted" if said.startswith(INTERRUPTED) else "error"


def _learn_agent(scene: Scene, call: Any, noted: Any, text: str) -> None:
    agent = noted.get("agentId") if isinstance(noted, dict) else None
    if not isinstance(agent, str) and (tail := _AGENT_TAIL.search(text[-_TAIL:])):
        agent = tail[1]
    scene.memory.spawns.bind(agent, call)


def _without_files(content: Any, attachments: list[Attachment]) -> Any:
    if not isinstance(content, list):
        return content
    result = []
    for block in content:
        file = attach(block) if isinstance(block, dict) else None
        if file is None:
            result.append(block)
            continue
        note = placeholder(file, len(attachments))
        attachments.append(file)
        result.append({**block, "source": {**block["source"], "data": note}})
    return result


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (block.get("text") for block in content if isinstance(block, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _notes(noted: Any, block: dict[str, Any], text: str, attachments: list[Attachment]) -> Any:
    """What the harness noted, without what the result says; None when nothing is left."""
    if noted == block.get("content"):
        return None
    if isinstance(noted, str):
        return None if not noted or noted.removeprefix("Error: ") in text or text in noted else noted
    if isinstance(noted, list):
        return [_lean(item, text, attachments) for item in noted]
    return _lean(noted, text, attachments)


def _lean(value: Any, text: str, attachments: list[Attachment]) -> Any:
    if not isinstance(value, dict):
        return value
    result = {}
    for key, item in value.items():
        if key in _WHOLE_FILES or (key == "content" and _repeats(item, text)):
            continue
        if isinstance(item, str):
            if len(item) >= _WORTH and item in text:
                continue
            if key in ("base64", "data") and len(item) >= _IMAGE_TEXT:
                item = _as_file(item, value, attachments)  # noqa: PLW2901
        elif isinstance(item, dict):
            item = _lean(item, text, attachments)  # noqa: PLW2901
        result[key] = item
    return result


def _repeats(item: Any, text: str) -> bool:
    """Whether a noted content is in the result, where a file's text has line numbers in it."""
    said = _text(item)
    return bool(said) and len(said) >= _WORTH and (said in text or _numbered(said, text))


def _numbered(said: str, text: str) -> bool:
    return len(text) > len(said) and all(line in text for line in said.split("\n", 3)[:3])


def _as_file(item: str, beside: dict[str, Any], attachments: list[Attachment]) -> str:
    content = decoded(item)
    if content is None:
        return item
    for number, file in enumerate(attachments):
        if file.content == content:
            return placeholder(file, number)
    file = Attachment(values.media_type(beside.get("type", beside.get("media_type"))), content)
    attachments.append(file)
    return placeholder(file, len(attachments) - 1)
