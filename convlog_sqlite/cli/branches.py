"""Verbs of branches and of time: fork, diff, replay."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from convlog_sqlite import Difference, Event, Replayed, Session
from convlog_sqlite.cli import render, window
from convlog_sqlite.cli.options import (
    AtOption,
    JsonOption,
    SessionArgument,
    StoreOption,
    complete_session,
    existing,
    point,
    put,
    put_json,
    reading,
    say,
    usage_error,
    writing,
)

_SPEED = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)x?", re.ASCII)
_MARKED = " " * 7

_New = Annotated[str, typer.Argument(metavar="NEW", show_default=False, help="Id of the new session.")]
_Agent = Annotated[
    str,
    typer.Option(
        "--agent",
        "-a",
        "--as",
        metavar="NAME",
        envvar="CONVLOG_AGENT",
        show_default=False,
        help="Who forks it.",
    ),
]
_Side = Annotated[
    str,
    typer.Argument(
        metavar="SESSION", show_default=False, autocompletion=complete_session, help="Session id."
    ),
]


def fork(
    context: typer.Context,
    session: SessionArgument,
    new: _New,
    agent: _Agent,
    at: AtOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a session that shares the events of another up to --at (default: all), and goes on by itself.

    Nothing is copied. What is shared belongs to the session that it was appended to: it is redacted and expires there, unless a hold covers the new one.
    """
    with writing(context, store, create=False) as log:
        forked = existing(log, session).fork(new, None if at is None else point(at), agent=agent)
        opening = forked.event(forked.head)
        on = render.screen(context, as_json=as_json)
        if on is None and opening is not None:
            put(opening.line)
        else:
            say(f"Forked {session} behind event {forked.head - 1}: {new}")


def diff(
    context: typer.Context,
    a: _Side,
    b: _Side,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Where two sessions part, what each has since, which calls wait in one only, which state stands apart.

    As JSON: a line {"a", "b", "seq", "event", "heads"}, then {"in", "line"} for each event since, {"in", "open_call"} for each call that waits in one only, {"state_key", "a", "b"} for each piece of state.
    """
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        sessions = existing(log, a), existing(log, b)
        found = log.diff(a, b)
        if on is None:
            _put_difference(found, sessions)
        else:
            for line in _difference_lines(found, sessions, on):
                say(line)


def _since(found: Difference, sessions: tuple[Session, Session]) -> Iterator[tuple[Session, Event]]:
    for session, head in zip(sessions, found.heads, strict=True):
        for event in window.everything(session, after=found.seq, before=head + 1, filters={}):
            yield session, event


def _put_difference(found: Difference, sessions: tuple[Session, Session]) -> None:
    said = found.to_dict()
    put_json({key: said[key] for key in ("a", "b", "seq", "event", "heads")})
    for session, event in _since(found, sessions):
        put(b'{"in":"%s","line":%s}\n' % (session.id.encode(), event.line.rstrip(b"\n")))
    for session, waiting in zip(sessions, found.open_calls, strict=True):
        for call in waiting:
            put_json({"in": session.id, "open_call": call})
    for state in said["states"]:
        put_json(state)


def _difference_lines(
    found: Difference, sessions: tuple[Session, Session], on: render.Screen
) -> Iterator[str]:
    if not found.seq:
        yield on.strong("They share nothing.")
    elif found.heads == (found.seq, found.seq):
        yield on.strong(f"They are the same up to event {found.seq}, and nothing came since.")
    else:
        yield on.strong(f"They part behind event {found.seq} {found.event}")
    shown, day = None, ""
    for session, event in _since(found, sessions):
        if session is not shown:
            shown, day = session, ""
            yield on.strong(f"Only in {session.id}:")
        yield from render.brief(event, on, day_before=day)
        day = render.day_of(event)
    for session, waiting in zip(sessions, found.open_calls, strict=True):
        for call in waiting:
            yield f"Waits for its result only in {session.id}: {call}"
    for state in found.states:
        yield on.strong(f"{render.printable(state.state_key)} stands at")
        for session, heads in zip(sessions, (state.a, state.b), strict=True):
            yield f"  {session.id}: {', '.join(heads) or 'nothing'}"


def replay(
    context: typer.Context,
    session: SessionArgument,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="EVENT|SEQ|TIME", show_default=False, help="Begin here, this event included."
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="EVENT|SEQ|TIME", show_default=False, help="End here, this event included."
        ),
    ] = None,
    speed: Annotated[
        str,
        typer.Option(
            "--speed", metavar="SPEED", help="max; real, as far apart as they happened; or 10x as fast."
        ),
    ] = "max",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the events of a session again, in order, each marked as intent or as fact.

    Requests, proposals, calls without a result, and effects that were proposed or attempted are intents: the log does not know that they took place. Results, what was told, changes of state and committed effects are facts. The mark stands in front of each line, as "mark".
    """
    times = _times(speed)
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = existing(log, session).replay(
            start=None if start is None else point(start, "--from"),
            end=None if end is None else point(end, "--to"),
            speed=times,
        )
        day = ""
        for replayed in found:
            if on is None:
                put(replayed.line)
            else:
                for line in _marked(replayed, on, day):
                    say(line)
                day = render.day_of(replayed.event)
            if times is not None:
                sys.stdout.flush()


def _times(speed: str) -> float | None:
    if speed in ("max", "real"):
        return None if speed == "max" else 1.0
    found = _SPEED.fullmatch(speed)
    if found is None or not (math.isfinite(float(found[1])) and float(found[1]) > 0):
        raise usage_error(f"{speed!r} is not max, real, or a number such as 10x", "--speed")
    return float(found[1])


def _marked(replayed: Replayed, on: render.Screen, day: str) -> Iterator[str]:
    lines = list(render.brief(replayed.event, on, day_before=day))
    heading = int(render.day_of(replayed.event) != day)
    for number, line in enumerate(lines):
        yield (f"{replayed.mark:<7}" if number == heading else _MARKED) + line
