"""Verbs of people and agents that work together: role, ask, approve, reject, why."""

from __future__ import annotations

from typing import Annotated

import typer

from convlog_sqlite import Event, Trace
from convlog_sqlite.cli import render
from convlog_sqlite.cli import view_options as key
from convlog_sqlite.cli.command import Verb
from convlog_sqlite.cli.failing import complain
from convlog_sqlite.cli.options import (
    JsonOption,
    SessionArgument,
    StoreOption,
    put,
    put_json,
    reading,
    say,
    writing,
)
from convlog_sqlite.cli.participants import summary

role = typer.Typer(
    add_completion=False,
    help="Say which roles agents hold: who may accept what is proposed to a role.",
    epilog="Example: convlog role grant alice security --by ops",
)

_Holder = Annotated[str, typer.Argument(metavar="AGENT", show_default=False, help="The agent.")]
_Role = Annotated[str, typer.Argument(metavar="ROLE", show_default=False, help="The role.")]
_By = Annotated[
    str, typer.Option("--by", metavar="NAME", envvar="CONVLOG_AGENT", help="The agent that answers for it.")
]
_As = Annotated[
    str,
    typer.Option("--as", metavar="AGENT", envvar="CONVLOG_AGENT", show_default=False, help="Who decides."),
]
_InSession = Annotated[
    str | None,
    typer.Option("--session", metavar="ID", show_default=False, help="In this session only, not everywhere."),
]
_Event = Annotated[
    str,
    typer.Argument(
        metavar="EVENT", show_default=False, help="An event's id, or the first 8 or more digits of it."
    ),
]
_Words = Annotated[str, typer.Option("--body", metavar="TEXT", help="What to say with it.")]


@role.command("grant", cls=Verb, epilog="Example: convlog role grant alice security --by ops")
def grant(
    context: typer.Context,
    agent: _Holder,
    name: _Role,
    by: _By,
    session: _InSession = None,
    store: StoreOption = None,
) -> None:
    """Let an agent hold a role, in every session or in one. Nobody grants a role to itself."""
    with writing(context, store, create=False) as log:
        if session is None:
            log.grant_role(agent, name, by=by)
        else:
            log.session(session).grant_role(agent, name, agent=by)


@role.command("revoke", cls=Verb, epilog="Example: convlog role revoke alice security --by ops")
def revoke(
    context: typer.Context,
    agent: _Holder,
    name: _Role,
    by: _By,
    session: _InSession = None,
    store: StoreOption = None,
) -> None:
    """Let an agent no longer hold a role. What a session says of it goes before what the store says."""
    with writing(context, store, create=False) as log:
        if session is None:
            log.revoke_role(agent, name, by=by)
        else:
            log.session(session).revoke_role(agent, name, agent=by)


def ask(
    context: typer.Context,
    session: SessionArgument,
    to: Annotated[str, typer.Option("--to", metavar="AGENT", show_default=False, help="Who is asked.")],
    body: Annotated[
        str, typer.Option("--body", metavar="TEXT", show_default=False, help="What is asked for.")
    ],
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            "-a",
            "--as",
            metavar="NAME",
            envvar="CONVLOG_AGENT",
            show_default=False,
            help="Who asks.",
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="ID", show_default=False, help="Task that this belongs to."),
    ] = None,
    timeout: Annotated[
        int | None,
        typer.Option(
            "--timeout", metavar="SECONDS", show_default=False, help="Wait no longer. Default: for ever."
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask another agent, and wait for its reply: the first event of another with the request as its parent.

    The id of the request goes to standard error at once, the reply's line to standard output. Status 1 when
    nobody answered in time; the request stands, and may be answered yet.
    """
    with writing(context, store, create=False) as log:
        conversation = log.session(session)
        request = conversation.request(body, agent=agent, to=to, task_id=task)
        complain(f"asked {request.id}")
        _show(context, conversation.reply_to(request, timeout=timeout), as_json=as_json)


def approve(
    context: typer.Context,
    event: _Event,
    agent: _As,
    body: _Words = "approved",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accept a proposal, as an agent that is not its maker and holds the role it asks for, if it asks for one."""
    with writing(context, store, create=False) as log:
        proposal = log.event(event.lower())
        _show(context, log.session(proposal.session).approve(proposal, body, agent=agent), as_json=as_json)


def reject(
    context: typer.Context,
    event: _Event,
    agent: _As,
    body: _Words = "rejected",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reject a proposal."""
    with writing(context, store, create=False) as log:
        proposal = log.event(event.lower())
        _show(context, log.session(proposal.session).reject(proposal, body, agent=agent), as_json=as_json)


def _show(context: typer.Context, event: Event, *, as_json: bool) -> None:
    on = render.screen(context, as_json=as_json)
    if on is None:
        put(event.line)
        return
    for line in render.brief(event, on, day_before=""):
        say(line)


def why(
    context: typer.Context,
    event: _Event,
    forward: Annotated[
        bool,
        typer.Option("--forward", help="What came of it, not what led to it.", show_default=False),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", help="Show at most N events, the nearest.")
    ] = 1000,
    view: key.View = None,
    reader: key.As = None,
    purpose: key.Purpose = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why an event is there: what caused, authorised and evidenced it, back to the roots.

    As JSON, one object for each event, nearest first: {"depth", "edges": [{"relation", "id"}], "event"}, where
    the edges are those that lead to it; "reading" says what its author had in front of it, where that is known (`convlog seen` shows it). "unknown" lists what it names that is out of reach: another tenant's, or not shown by --view.
    """
    if limit < 1:
        raise typer.BadParameter("takes 1 or more", param_hint="'--limit'")
    through = key.Through(view, reader, purpose)
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        trace = log.why(
            event.lower(), forward=forward, limit=limit, view=through.name, reader=reader, purpose=purpose
        )
    if not trace.is_whole:
        complain(f"there is more than the {limit} events shown; see --limit")
    leading = _leading(trace, forward=forward)
    for found, depth, read in zip(trace.events, trace.depths, trace.readings, strict=True):
        edges = leading.get(found.id, [])
        if on is None:
            unknown = [
                {"relation": edge.relation, "id": edge.target}
                for edge in trace.unknown
                if edge.source == found.id
            ]
            said = {"depth": depth, "edges": edges} | ({"unknown": unknown} if unknown else {})
            said |= {} if read is None else {"reading": read.to_dict()}
            put_json(said | {"event": found.to_dict()})
            continue
        relations = ", ".join(dict.fromkeys(edge["relation"] for edge in edges))
        say(on.paint(f"{'  ' * depth}{relations}".rstrip(), render.DIM) if relations else "")
        for line in render.brief(found, on, day_before=render.day_of(found)):
            say("  " * depth + line)
        if read is not None:
            say(on.paint(f"{'  ' * depth}       {summary(read)}", render.DIM))
        for edge in trace.unknown:
            if edge.source == found.id:
                say(on.paint(f"{'  ' * (depth + 1)}{edge.relation} {edge.target}: unknown here", render.DIM))


def _leading(trace: Trace, *, forward: bool) -> dict[str, list[dict[str, str]]]:
    """For each event, the edges over which the walk reached it, and the event at their other end."""
    leading: dict[str, list[dict[str, str]]] = {}
    for edge in trace.edges:
        here, there = (edge.source, edge.target) if forward else (edge.target, edge.source)
        leading.setdefault(here, []).append({"relation": edge.relation, "id": there})
    return leading
