"""The verb view: what there is to read through, and why an event is in or out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from convlog_sqlite import InvalidEvent, View, describe_view, parse_json
from convlog_sqlite.cli import render
from convlog_sqlite.cli import view_options as key
from convlog_sqlite.cli.command import Verb
from convlog_sqlite.cli.options import (
    JsonOption,
    StoreOption,
    put_json,
    reading,
    say,
    usage_error,
    writing,
)

view = typer.Typer(
    add_completion=False,
    help="Say what agents are shown. In one process a view is discipline, not a wall: a server enforces it.",
    epilog="Example: convlog view explain 0197a3c4 --as backend",
)

_Name = Annotated[
    str, typer.Argument(metavar="VIEW", show_default=False, help="Its name, or a version: worker@2.")
]
_By = Annotated[
    str, typer.Option("--by", metavar="NAME", envvar="CONVLOG_AGENT", help="The agent that answers for it.")
]


@view.command("define", cls=Verb, epilog="Example: convlog view define reviewer.json --by ops")
def define(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="FILE|-", show_default=False, help="The definition, a JSON object.")
    ],
    by: _By,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check it, and write nothing.", show_default=False)
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Define a view, or a new version of it; `convlog view show NAME --json` prints one to begin with.

    Keys: name; selects, a list of objects, any of which may select an event: tasks, threads, agents, roles, types, kinds, performatives (lists), own, dependencies, addressed, authored, effects (true); sessions, tenant, max_sensitivity, purpose, people, unlabelled, links, payload, roles.
    """
    wanted = View.from_stored(_read(source))
    if not dry_run:
        with writing(context, store, create=False) as log:
            wanted = log.define_view(wanted, by=by)
    _show(context, [wanted], as_json=as_json)


@view.command("list", cls=Verb, epilog="Example: convlog view list")
def list_views(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the views that stand: those that every store has, and those that were defined here."""
    with reading(context, store) as log:
        found = log.views()
    _show(context, found, as_json=as_json)


@view.command("show", cls=Verb, epilog="Example: convlog view show worker")
def show(context: typer.Context, name: _Name, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show the definition of a view."""
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = log.view(name)
    if on is None:
        put_json(found.to_stored())
        return
    about = describe_view(found)
    if about:
        say(on.strong(found.label) + "  " + about)
    for line in render.tree({"version": found.version} | found.to_stored(), on):
        say(line)


@view.command("explain", cls=Verb, epilog="Example: convlog view explain 0197a3c4 --as backend")
def explain(
    context: typer.Context,
    event: Annotated[
        str,
        typer.Argument(
            metavar="EVENT", show_default=False, help="An event's id, or the first 8 or more digits of it."
        ),
    ],
    view_: key.View = None,
    reader: key.As = None,
    purpose: key.Purpose = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why an event is in what an agent is shown, or why it is not, rule by rule."""
    through = key.Through(view_, reader, purpose)
    if not through.is_given:
        raise usage_error("say who reads, or through which view", "--as")
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = log.event(event.lower())
        answer = through.slice_of(log.session(found.session)).explain(found)
    if on is None:
        put_json({"event": found.id, **answer.to_dict()})
        return
    say(on.strong(f"{answer.view} {'shows' if answer.shown else 'does not show'} {found.id}"))
    for rule in answer.because:
        say("  " + render.printable(rule))
    if answer.withheld:
        say("  without its " + ", ".join(answer.withheld))


def _read(source: str) -> Any:
    try:
        text = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return parse_json(text)
    except OSError as error:
        raise usage_error(f"{source}: {error.strerror}", "FILE") from None
    except InvalidEvent as error:
        raise usage_error(f"{source}: {error}", "FILE") from None


def _show(context: typer.Context, found: Iterable[View], *, as_json: bool) -> None:
    on = render.screen(context, as_json=as_json)
    if on is None:
        for one in found:
            put_json({"view": one.label, **one.to_stored()})
        return
    rows = [(one.label, ", ".join(one.roles), describe_view(one)) for one in found]
    for line in render.table(("VIEW", "ROLES", "WHAT IT SHOWS"), rows, on, right=frozenset()):
        say(line)
