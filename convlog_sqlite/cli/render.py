"""Events and tables for people: used on a terminal, never when a program reads.

Text of an event is shown so that it cannot steer the terminal: control characters and marks that reverse
the direction of text are escaped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer

from convlog_sqlite import Event, LeftOut
from convlog_sqlite.cli.options import settings

_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_AGENT_COLOURS: Final = (32, 33, 34, 35, 36, 92, 93, 94, 95, 96)
DIM, _BOLD, _RED, _GREEN, _YELLOW, _CYAN = 2, 1, 31, 32, 33, 36
_BRIEF_LINES: Final = 12
_BRIEF_CHARACTERS: Final = 2000
_COMPACT_CHARACTERS: Final = 20  # of content, however narrow the screen is
_INDENT: Final = " " * 7

# Shown by the heading or the text of an event, so not again among its other keys.
_IN_HEADING: Final = frozenset({"v", "seq", "ts", "session", "agent", "type"})
_CONTENT: Final = ("body", "args", "result", "value")


@dataclass(frozen=True, slots=True)
class Screen:
    """What output for people has: columns, and colour or not."""

    width: int
    colour: bool

    def paint(self, text: str, *codes: int) -> str:
        """`text` in these SGR codes."""
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"

    def strong(self, text: str) -> str:
        """`text` as a title."""
        return self.paint(text, _BOLD)

    def severity(self, text: str) -> str:
        """`fault` or `note`, in the colour of alarm or without."""
        return self.paint(text, _RED, _BOLD) if text == "fault" else self.paint(text, _YELLOW)


def screen(context: typer.Context, *, as_json: bool) -> Screen | None:
    """How to show things to a person, or None when a program reads and gets JSON."""
    wanted = settings(context).colour
    if as_json or not (sys.stdout.isatty() or wanted):
        return None
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Screen(shutil.get_terminal_size().columns, not plain if wanted is None else wanted)


def printable(text: str) -> str:
    """`text` with what would steer a terminal escaped; line ends and tabs stay."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def brief(event: Event, on: Screen, *, day_before: str) -> Iterator[str]:
    """The lines that `tail` shows: a heading, then the beginning of the content."""
    if day_of(event) != day_before:
        yield on.paint(f"{_INDENT}{day_of(event)} UTC", DIM)
    yield _heading(event, on)
    lines = _content_text(event, on, pretty=False)[:_BRIEF_CHARACTERS].splitlines()
    for line in lines[:_BRIEF_LINES]:
        yield _INDENT + line
    if len(lines) > _BRIEF_LINES or event.truncated:
        yield on.paint(f"{_INDENT}… convlog show --full {event.id}", DIM)


def compact(event: Event, on: Screen) -> str:
    """One line: who did what, and as much of the content as stands beside it."""
    plain = Screen(on.width, colour=False)
    text = " ".join(_content_text(event, plain, pretty=False)[:_BRIEF_CHARACTERS].split())
    left = max(on.width - len(_heading(event, plain, brief=True)) - 1, _COMPACT_CHARACTERS)
    text = text if len(text) <= left else text[: left - 1] + "…"
    return " ".join(
        (_heading(event, on, brief=True), text if event.answer == "live" else on.paint(text, _RED))
    )


def left_out(said: LeftOut, on: Screen) -> str:
    """The line in front of what a budget left."""
    parts = []
    if said.events:
        parts.append(f"{said.events} of the events {said.first} to {said.last} left out")
    if said.cut:
        parts.append(f"{said.cut} cut")
    return on.paint(f"{_INDENT}… {', '.join(parts)}", DIM)


def day_of(event: Event) -> str:
    """The day under whose heading an event stands."""
    return _instant(event)[:10]


def _instant(event: Event) -> str:
    """When it happened: an imported event was recorded later."""
    return (event.source or {}).get("at", event.ts)


def _heading(event: Event, on: Screen, *, brief: bool = False) -> str:
    agent = printable(event.agent)
    colour = _AGENT_COLOURS[zlib.crc32(agent.encode()) % len(_AGENT_COLOURS)]
    said = [
        on.paint(f"{event.seq:>6}", DIM),
        "" if brief else on.paint(_instant(event)[11:19], DIM),
        on.paint(agent, _BOLD, colour),
    ]
    if event.to:
        said.append("→ " + printable(", ".join(event.to)))
    said.append(_what(event, on))
    if event.task_id:
        said.append(on.paint(f"task {printable(event.task_id)}", _CYAN))
    if event.thread_id and not brief:
        said.append(on.paint(f"thread {printable(event.thread_id)}", DIM))
    return " ".join(part for part in said if part)


def _what(event: Event, on: Screen) -> str:
    if event.type == "tool_call":
        return on.paint(f"calls {printable(event.tool or '')}", _YELLOW)
    if event.type == "tool_result":
        good = event.status in (None, "ok")
        return on.paint(
            f"{printable(event.tool or 'result')} {event.status or ''}".rstrip(), _GREEN if good else _RED
        )
    if event.type == "mutation":
        return on.paint(event.kind or "", _YELLOW)
    return on.paint(event.performative or "", DIM)


def _content_text(event: Event, on: Screen, *, pretty: bool) -> str:
    if event.redacted:
        gone = event.redacted
        at, why = f"{gone['at'][:19].replace('T', ' ')} UTC", gone["reason"].replace("_", " ")
        return on.paint(f"redacted by {gone['by']} at {at} for {why}", _RED)
    if event.unreadable:
        return on.paint(f"content is {event.unreadable}", _RED)
    parts = [value_text(event.content[key], pretty=pretty) for key in _CONTENT if key in event.content]
    parts += [
        f"attachment {number}: {item['media_type']}, {item['bytes']} bytes"
        for number, item in enumerate(event.attachments)
    ]
    return printable("\n".join(parts))


def value_text(value: Any, *, pretty: bool) -> str:
    """Text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2 if pretty else None)


def full(event: Event, on: Screen) -> Iterator[str]:
    """Everything that the event's line says, one key a line, then its content."""
    yield f"{on.paint(event.session, _BOLD)} {event.seq}  {on.paint(event.type, _YELLOW)} by {printable(event.agent)}"
    said = {"recorded": event.ts} | {
        key: item for key, item in event.envelope.items() if key not in _IN_HEADING
    }
    said |= {key: item for key, item in event.content.items() if key not in (*_CONTENT, "attachments")}
    yield from facts({key: value_text(item, pretty=False) for key, item in said.items()}, on)
    text = _content_text(event, on, pretty=True)
    if text:
        yield ""
        yield text


def facts(said: dict[str, str], on: Screen, *, indent: str = "  ") -> Iterator[str]:
    """One `key  value` line for each."""
    width = max(map(len, said), default=0)
    for key, item in said.items():
        yield f"{indent}{on.paint(key.ljust(width), DIM)}  {printable(item)}"


def tree(said: dict[str, Any], on: Screen, *, indent: str = "") -> Iterator[str]:
    """Nested JSON as indented facts."""
    flat: dict[str, str] = {}
    for key, item in said.items():
        name = key.replace("_", " ")
        if isinstance(item, dict) and item:
            yield from facts(flat, on, indent=indent)
            flat = {}
            yield indent + on.paint(name, _BOLD)
            yield from tree(item, on, indent=indent + "  ")
        else:
            flat[name] = _fact(item)
    yield from facts(flat, on, indent=indent)


def _fact(item: Any) -> str:
    if item is None or item in ([], {}):
        return "-"
    if isinstance(item, bool):
        return "yes" if item else "no"
    return value_text(item, pretty=False)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], on: Screen, *, right: frozenset[int]
) -> Iterator[str]:
    """Columns as wide as they need to be; those numbered in `right` are set to the right."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *shown, strict=True)]

    def line(cells: Sequence[str]) -> str:
        set_out = (
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(set_out).rstrip()

    yield on.paint(line(headings), DIM)
    yield from map(line, shown)
