"""What the caller typed or piped in, to drafts. The log itself holds them to its rules.

`-` reads standard input, as it is: nothing is trimmed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from convlog_sqlite import Attachment, Draft, Event, EventTooLarge, InvalidEvent, Refused, Session, parse_json
from convlog_sqlite.cli.failing import REFUSED, UsageError, fail
from convlog_sqlite.cli.options import usage_error

STDIN: Final = "-"
_MAX_STDIN: Final = (
    64 << 20
)  # bytes of one value; the log takes 16 MiB, this leaves room for white space in JSON

# option -> (key of the draft, whether its text is JSON)
_VALUES: Final = {
    "body": ("body", False),
    "args": ("args", True),
    "result": ("result", True),
    "result_text": ("result", False),
    "value": ("value", True),
    "meta": ("meta", True),
    "usage": ("usage", True),
}
_RENAMED: Final = {
    "thread": "thread_id",
    "task": "task_id",
    "parent": "parent_id",
    "correlation": "correlation_id",
    "purpose": "purposes",
    "subject": "subjects",
}
# The first option that was given decides what is appended.
_TYPE_OF: Final = {
    "call_id": "tool_result",
    "result": "tool_result",
    "result_text": "tool_result",
    "status": "tool_result",
    "kind": "mutation",
    "value": "mutation",
    "state_key": "mutation",
    "expect": "mutation",
    "tool": "tool_call",
    "args": "tool_call",
    "body": "message",
    "attach": "message",
    "effect": "mutation",
}


_NO_KEYS: Final = frozenset({"context", "session", "jsonl", "stream", "scrub", "quiet", "store"})


@dataclass(frozen=True, slots=True)
class Input:
    """Drafts that were read. `lines` says where each stood, and is empty when options described the only one."""

    drafts: list[Draft]
    lines: list[int]

    def append_to(self, session: Session) -> list[Event]:
        """Append all or none, saying what their authors had read. A line that is refused is named: status 3."""
        session = session.informed()
        if not self.lines:
            return [session.append(draft) for draft in self.drafts]
        try:
            return session.append_many(self.drafts)
        except Refused as refused:
            # One draft alone has no index. What is wrong with all of them has none either, and no line.
            if refused.index is None and len(self.lines) > 1:
                raise
            _refuse_line(self.lines[refused.index or 0], refused)


def read(arguments: dict[str, Any]) -> Input:
    """What the arguments of `append` say. Raises UsageError and InvalidEvent."""
    source = arguments["jsonl"]
    if source is not None:
        return _of_lines(source, only_agent(arguments, "--jsonl"))
    draft = _of_options(_given(arguments))
    draft.check()  # before a store is made for it
    return Input([draft], [])


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """The keys of a draft that the arguments name."""
    return {
        name: item
        for name, item in arguments.items()
        if name not in _NO_KEYS and item is not None and item != []
    }


def _of_options(given: dict[str, Any]) -> Draft:
    said_type = given.pop("type_", None)
    inferred = next((draft_type for name, draft_type in _TYPE_OF.items() if name in given), None)
    if said_type is None and inferred is None:
        raise UsageError("say what to append: --body, --tool, --call-id, --kind, --jsonl or --stream")
    if "agent" not in given:
        raise UsageError("missing option '--agent' (or set CONVLOG_AGENT)")
    if "result" in given and "result_text" in given:
        raise usage_error("give --result or --result-text, not both", "--result-text")
    if sum(given.get(name) == STDIN for name in _VALUES) > 1:
        raise UsageError("standard input can be read once: only one option may be -")
    keys: dict[str, Any] = {"type": said_type or inferred}
    for name, said in given.items():
        if name in _VALUES:
            key, is_json = _VALUES[name]
            keys[key] = json_of(said, key) if is_json else text_of(said)
        elif name == "link":
            keys["links"] = _links(said)
        elif name == "expect":
            keys["expect"] = None if said == ["none"] else said
        elif name == "effect":
            keys["effect"] = _effect(said)
            if keys["type"] == "mutation" and "kind" not in given:
                keys["kind"] = f"effect-{keys['effect']['state']}"
        elif name == "attach":
            keys["attachments"] = [_attachment(item) for item in said]
        else:
            keys[_RENAMED.get(name, name)] = said
    return Draft(**keys)


def text_of(given: str) -> str:
    """What an option says, as it is; `-` stands for standard input."""
    # What is no UTF-8 becomes lone surrogates, as in arguments, and the log refuses those.
    return _standard_input().decode("utf-8", "surrogateescape") if given == STDIN else given


def json_of(given: str, key: str) -> Any:
    """The JSON that an option says, for a key of a draft; `-` stands for standard input. Raises InvalidEvent."""
    try:
        return parse_json(_standard_input() if given == STDIN else given)
    except InvalidEvent as refused:
        raise InvalidEvent(f"/{key}{refused.pointer}", refused.rule) from None


def _standard_input() -> bytes:
    data = sys.stdin.buffer.read(_MAX_STDIN + 1)
    if len(data) > _MAX_STDIN:
        raise EventTooLarge(len(data), _MAX_STDIN)
    return data


def _links(given: Sequence[str]) -> dict[str, list[str]]:
    links: dict[str, list[str]] = {}
    for item in given:
        link_type, equals, event_id = item.partition("=")
        if not equals:
            raise usage_error(f"{item!r} is not TYPE=ID", "--link")
        links.setdefault(link_type, []).append(event_id)
    return links


def _effect(given: str) -> dict[str, str]:
    """`proposed`, or what became of the effect ID."""
    step, _, effect_id = given.partition("=")
    if step in ("proposed", "attempted", "committed"):
        effect = {"state": step}
    else:
        effect = {"state": "compensated", "outcome": step}
    return effect | ({"id": effect_id} if effect_id else {})


def _attachment(given: str) -> Attachment:
    """FILE, or FILE:media/type. A file whose own name ends like that is taken whole."""
    path, colon, media_type = given.rpartition(":")
    if not colon or "/" not in media_type or Path(given).exists():
        from mimetypes import guess_type

        path, media_type = given, guess_type(given)[0] or "application/octet-stream"
    return Attachment(media_type, _content(path, "--attach"))


def _content(path: str, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise usage_error(f"{path}: {error.strerror}", option) from None


def _of_lines(source: str, agent: str | None) -> Input:
    """One draft a line. Blank lines are passed over; `agent` stands in where a line has none."""
    found = Input([], [])
    for number, line in _lines(sys.stdin.buffer.read() if source == STDIN else _content(source, "--jsonl")):
        try:
            found.drafts.append(draft_of(line, agent))
            found.drafts[-1].check()
        except Refused as refused:
            _refuse_line(number, refused)
        found.lines.append(number)
    return found


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield number, line


def draft_of(line: bytes, agent: str | None) -> Draft:
    """The draft that a line holds, not checked yet; `agent` is its author where it names none. Raises InvalidEvent."""
    said = parse_json(line)
    if agent is not None and isinstance(said, dict):
        said.setdefault("agent", agent)
    return Draft.from_dict(said)


def only_agent(arguments: dict[str, Any], option: str) -> str | None:
    """The author, where `option` takes whole drafts. Raises UsageError when other keys stand beside it."""
    given = _given(arguments)
    agent: str | None = given.pop("agent", None)
    if given:
        beside = "--" + next(iter(given)).strip("_").replace("_", "-")
        raise usage_error(
            f"takes whole drafts; of the other keys only --agent may stand beside it, not {beside}", option
        )
    return agent


def _refuse_line(number: int, refused: Refused) -> NoReturn:
    refused.index = None  # counts drafts, and the caller counts lines
    fail(REFUSED, f"line {number}: {refused}")
