"""Verbs about people: label, which says afterwards whom an event is about, and fence."""

from __future__ import annotations

from typing import Annotated

import typer

from convlog_sqlite.cli import render
from convlog_sqlite.cli import retention_options as key
from convlog_sqlite.cli.command import Verb
from convlog_sqlite.cli.options import (
    JsonOption,
    StoreOption,
    put,
    put_json,
    reading,
    say,
    usage_error,
    writing,
)

fence = typer.Typer(
    add_completion=False,
    help="See and end the fences that `convlog redact --subject NAME --fence` places: nothing more is recorded about these people.",
    epilog="Example: convlog fence lift 'Ann Lee' --by ops",
)


def label(
    context: typer.Context,
    event: Annotated[
        str,
        typer.Argument(
            metavar="EVENT", show_default=False, help="An event's id, or the first 8 or more digits of it."
        ),
    ],
    by: key.By,
    subject: Annotated[
        list[str] | None,
        typer.Option(
            "--subject",
            metavar="NAME",
            help="Person that it is about; only a keyed digest of the name is stored. Repeatable.",
        ),
    ] = None,
    sensitivity: Annotated[
        str | None,
        typer.Option(
            "--sensitivity",
            metavar="LEVEL",
            help="public, internal, confidential or restricted: it can only be raised.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
) -> None:
    """Say afterwards whom an event is about, or how sensitive it is; print the line of the label.

    The label counts for redactions, policies and holds as what the event said of itself, and outlives its content.
    """
    if not subject and sensitivity is None:
        raise usage_error("give --subject or --sensitivity", "label")
    with writing(context, store, create=False) as log:
        put(log.label(event.lower(), subjects=subject or (), sensitivity=sensitivity, by=by).line)


@fence.command("list", cls=Verb, epilog="Example: convlog fence list")
def list_fences(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the fences that stand. A person is shown as a keyed digest of the name."""
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = log.fences()
    if on is None:
        for one in found:
            put_json(one.to_dict())
    elif not found:
        say("No fences.")
    else:
        rows = [(one.id, one.subject, one.by, one.at[:19]) for one in found]
        for line in render.table(("FENCE", "SUBJECT", "BY", "SINCE"), rows, on, right=frozenset()):
            say(line)


@fence.command("lift", cls=Verb, epilog="Example: convlog fence lift 'Ann Lee' --by ops")
def lift(
    context: typer.Context,
    subject: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The person's name.")],
    by: key.By,
    store: StoreOption = None,
) -> None:
    """End the fence on a person: events may be about them again."""
    with writing(context, store, create=False) as log:
        log.lift_fence(subject, by=by)
