"""The verb state: what the log says stands, and whether a harness's own state agrees."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import typer

from convlog_sqlite import ConversationLog, InvalidEvent, Session, StoreReadOnly, parse_json
from convlog_sqlite.cli import render
from convlog_sqlite.cli import state_options as asked
from convlog_sqlite.cli import view_options as key
from convlog_sqlite.cli.failing import FAULTS, complain
from convlog_sqlite.cli.options import (
    AtOption,
    JsonOption,
    SessionArgument,
    StoreOption,
    existing,
    point,
    put_json,
    reading,
    say,
    usage_error,
    writing,
)

_STATE, _OPEN = "state", "open"


def state(
    context: typer.Context,
    session: SessionArgument,
    open_: asked.Open = False,
    projection: asked.Projection = None,
    at: AtOption = None,
    rebuild: asked.Rebuild = False,
    against: asked.Against = None,
    view: key.View = None,
    reader: key.As = None,
    purpose: key.Purpose = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what stands in a session: for each state key the value, or the values where agents decided apart.

    With --against a line for each difference, and status 1 when there is one: {"pointer", "what", "given",
    "logged"}, where what is differs, only-given, only-logged, conflict or unreadable.
    """
    if open_ and projection is not None:
        raise usage_error("is a projection itself", "--open")
    if against is not None and (open_ or projection is not None):
        raise usage_error("compares the projection state", "--against")
    through = key.Through(view, reader, purpose)
    if through.is_given and (rebuild or against is not None):
        raise usage_error(
            "a state through a view is folded anew each time, and compared with nothing", "--view"
        )
    given = None if against is None else _read_state(against)
    on = render.screen(context, as_json=as_json)
    name = _OPEN if open_ else projection or _STATE
    with _opened(context, store) as log:
        found = existing(log, session)
        seq = None if at is None else found.at(point(at)).seq
        if through.is_given:
            _show(name, through.slice_of(found if seq is None else found.at(seq)).state(name), on)
            return
        if given is not None:
            _compare(found, given, seq, on)
            return
        _show(name, found.state(name, at=seq, rebuild=rebuild), on)


def _show(name: str, shown: Any, on: render.Screen | None) -> None:
    if on is None:
        put_json(shown)
        return
    for line in _lines(name, shown, on):
        say(line)


@contextmanager
def _opened(context: typer.Context, store: str | None) -> Iterator[ConversationLog]:
    """For writing where that may be, so that a long fold is kept for the next time."""
    with ExitStack() as stack:
        try:
            log = stack.enter_context(writing(context, store, create=False))
        except StoreReadOnly:
            log = stack.enter_context(reading(context, store))
        yield log


def _read_state(source: str) -> dict[str, Any]:
    try:
        text = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise usage_error(f"{source}: {error.strerror}", "--against") from None
    try:
        said = parse_json(text)
    except InvalidEvent as error:
        raise usage_error(f"{source}: {error}", "--against") from None
    if not isinstance(said, dict):
        raise usage_error(f"{source} does not hold an object of state keys and values", "--against")
    return said


def _compare(session: Session, given: dict[str, Any], at: int | None, on: render.Screen | None) -> None:
    found = session.against(given, at=at)
    for difference in found:
        if on is None:
            put_json(difference.to_dict())
            continue
        said = difference.to_dict()
        sides = [
            f"{side} {render.value_text(said[side], pretty=False)}"
            for side in ("given", "logged")
            if side in said
        ]
        say(render.printable(f"{difference.pointer}: {difference.what}: {', '.join(sides)}"))
    sys.stdout.flush()
    complain("no difference" if not found else f"{len(found)} difference{'' if len(found) == 1 else 's'}")
    if found:
        raise typer.Exit(FAULTS)


def _lines(name: str, shown: Any, on: render.Screen) -> Iterator[str]:
    if name == _OPEN:
        rows = [
            [str(item["seq"]), item["open"], item.get("by", ""), _about(item), item.get("event", "")]
            for item in shown
        ]
        yield from render.table(("SEQ", "OPEN", "BY", "WHAT", "EVENT"), rows, on, right=frozenset({0}))
    elif name == _STATE:
        for key, item in shown.items():
            heads = item.get("conflict", [item])
            if len(heads) > 1:
                yield on.severity("conflict") + "  " + render.printable(key)
            for head in heads:
                yield _head("  " if len(heads) > 1 else render.printable(key) + "  ", head, on)
    elif isinstance(shown, list):
        for number, item in enumerate(shown, 1):
            yield from render.tree({str(number): item}, on)
    else:
        yield from render.tree(shown, on)


def _about(item: dict[str, Any]) -> str:
    named = (item.get(key) for key in ("state_key", "tool", "performative", "state", "task_id"))
    to = [*item.get("to", ()), *(f"role {role}" for role in item.get("roles", ()))]
    return " ".join([*(name for name in named if name), *(["→ " + ", ".join(to)] if to else [])])


def _head(lead: str, head: dict[str, Any], on: render.Screen) -> str:
    gone = "redacted" if "redacted" in head else head.get("unreadable")
    text = gone or (render.value_text(head["value"], pretty=False) if "value" in head else head["kind"])
    over = f", over {head['over']['by']}'s {head['over']['seq']}" if "over" in head else ""
    return (
        lead
        + render.printable(text)
        + on.paint(render.printable(f"  {head['by']}, {head['seq']}{over}"), render.DIM)
    )
