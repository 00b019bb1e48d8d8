"""Events that would be larger than the log accepts: what is too large becomes an attachment."""

from __future__ import annotations

from typing import Any, Final

import orjson

from convlog_sqlite.drafts import Attachment
from convlog_sqlite.vocabulary import MAX_EVENT

ROOM: Final = MAX_EVENT - 64 * 1024  # for what the log itself adds
_LOOK: Final = ROOM // 6  # a shorter line cannot become a larger event: one byte gives at most six
_KEPT: Final = 2048  # characters of a text that stay in the event
_CONTENT: Final = ("body", "args", "result", "value", "meta", "usage")


def fit(keys: dict[str, Any], line_bytes: int) -> int:
    """Move the largest content of an oversized event to attachments, in place. Returns how many were moved."""
    if line_bytes < _LOOK:
        return 0
    sizes = {key: len(orjson.dumps(keys[key])) for key in _CONTENT if keys.get(key) is not None}
    total = sum(sizes.values())
    moved = 0
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        if total <= ROOM:
            break
        files = tuple(keys.get("attachments") or ())
        content = keys[key]
        text = isinstance(content, str)
        data = content.encode() if text else orjson.dumps(content)
        kind = "text/plain" if text else "application/json"
        note = f"[attachment {len(files)}: {kind}, {len(data)} bytes]"
        keys["attachments"] = (*files, Attachment(kind, data))
        keys[key] = {"note": note} if key in ("meta", "usage") else _shortened(content, note)
        total -= sizes[key]
        moved += 1
    return moved


def _shortened(content: Any, note: str) -> str:
    return f"{content[:_KEPT]}\n{note}" if isinstance(content, str) else note
