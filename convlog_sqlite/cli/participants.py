"""Verbs of agents that take part in a session: join, and seen, what one had in front of it when it acted."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from convlog_sqlite import Reading, Seen
from convlog_sqlite.cli import render
from convlog_sqlite.cli.failing import FAULTS
from convlog_sqlite.cli.options import (
    AtOption,
    JsonOption,
    SessionArgument,
    StoreOption,
    point,
    put_json,
    reading,
    say,
    usage_error,
    writing,
)


def _text(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


def join(
    context: typer.Context,
    session: SessionArgument,
    agent: Annotated[
        str,
        typer.Option(
            "--as", metavar="AGENT", envvar="CONVLOG_AGENT", show_default=False, help="Who takes part."
        ),
    ],
    role: Annotated[
        str | None, _text("--role", "NAME", "The role it takes part in. Default: the one that it has.")
    ] = None,
    view: Annotated[
        str | None, _text("--view", "NAME", "What it is shown of the session. Default: the view of its role.")
    ] = None,
    purpose: Annotated[str | None, _text("--purpose", "NAME", "What it reads for.")] = None,
    leave: Annotated[bool, typer.Option("--leave", help="Take part no longer.", show_default=False)] = False,
    listening: Annotated[
        str | None,
        _text(
            "--listening",
            "MODE",
            "Do not join, but say as that agent what the session asks of all who do: require, warn or off.",
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take part in a session: from then on, what the agent appends says what it had heard.

    That it joined is recorded once, and again with another role or view. It hears with `tail --as`. Where a session requires it (--listening require), an append of one that has not listened since another wrote what it was to see is refused: status 3.
    """
    given = [role, view, purpose]
    if (leave or listening is not None) and (any(given) or (leave and listening is not None)):
        raise usage_error("stands alone beside --as", "--leave" if leave else "--listening")
    with writing(context, store, create=False) as log:
        conversation = log.session(session)
        if listening is not None:
            conversation.listening(listening, by=agent)
            return
        if leave:
            found = conversation.participant(agent)
            if found is None:
                raise usage_error(f"{agent} does not take part in {session}", "--leave")
            found.leave()
            return
        joined = conversation.join(agent, role=role, view=view, purpose=purpose)
        said = {"agent": joined.agent, "role": joined.role, "view": joined.view, "heard": joined.heard_upto}
    if render.screen(context, as_json=as_json) is None:
        put_json({key: item for key, item in said.items() if item is not None})
    else:
        part = f" as {joined.role}" if joined.role else ""
        say(f"{agent} takes part{part}, through the view {joined.view}; heard up to seq {joined.heard_upto}")


def seen(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(metavar="AGENT", show_default=False, help="The agent.")],
    session: SessionArgument,
    at: AtOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what an agent had in front of it when it acted: the slice it had read, as it is now, and whether it is the same.

    With --at an event of the agent's, what it wrote that on; at another point, what it had read by then; without, what it read last. As JSON, {"agent", "at", "event", "reading", "matches", "erased", "missing", "events"}: `erased` are ids of events whose content was erased since, `missing` says why there is nothing to show: unread, or lapsed by a retention policy. Status 1 when what it had read is not what the view shows now.
    """
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = log.session(session).seen(agent, None if at is None else point(at))
    if on is None:
        put_json(found.to_dict() | {"events": [event.to_dict() for event in found.events]})
    else:
        _show(found, on)
    if found.matches is False:
        raise typer.Exit(FAULTS)


def _show(found: Seen, on: render.Screen) -> None:
    day = ""
    for event in found.events:
        for line in render.brief(event, on, day_before=day):
            say(line)
        day = render.day_of(event)
    say(on.paint(summary(found.reading, found.missing), render.DIM))
    if found.erased:
        say(f"{len(found.erased)} of them were erased after they were read.")
    if found.matches is False:
        say("This is not what was read: a label, a role or the view itself changed what is shown.")


def summary(read: Reading | None, missing: str | None = None) -> str:
    """In one line: what an agent had in front of it."""
    if read is None:
        why = (
            "a retention policy removed what it had read" if missing == "lapsed" else "nothing that was noted"
        )
        return f"had in front of it: {why}"
    extent = f"{read.count} events, {read.first} to {read.last}" if read.count else "no events"
    return f"had in front of it: {extent}, of {read.upto}, through {read.label}, at {read.at[:19]}"
