"""Verbs of every day: init, append, tail, show, sessions."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from convlog_sqlite import (
    ConversationLog,
    Event,
    Filters,
    RemovedSession,
    Session,
    Slice,
    UnknownReference,
    check_session_id,
)
from convlog_sqlite.cli import append_options as key
from convlog_sqlite.cli import drafting, render, window
from convlog_sqlite.cli import tail_options as only
from convlog_sqlite.cli import view_options as through
from convlog_sqlite.cli.failing import REFUSED, fail
from convlog_sqlite.cli.looking import Look, Printer
from convlog_sqlite.cli.options import (
    AtOption,
    JsonOption,
    SessionArgument,
    StoreOption,
    existing,
    point,
    put,
    put_json,
    reading,
    resolve,
    say,
    settings,
    usage_error,
    writing,
)

_STORE_SESSION = "_store"
_TAIL = 20


def init(
    context: typer.Context,
    no_mirror: Annotated[
        bool, typer.Option("--no-mirror", help="Keep no plaintext JSONL files.", show_default=False)
    ] = False,
    keys: Annotated[
        str | None,
        typer.Option("--keys", metavar="PATH", help="Put the keystore here, apart from the store."),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a store, here or at --store. One that exists is left as it is."""
    given = settings(context)
    with ConversationLog.init(store or given.store, mirror=not no_mirror, keys=keys or given.keys) as log:
        enabled = log.mirror.enabled
        if render.screen(context, as_json=as_json) is None:
            put_json({"store": str(log.path), "created": log.created, "mirror": enabled})
            return
        say(f"{'Made the store' if log.created else 'There is a store already, nothing changed:'} {log.path}")
        if enabled:
            say(f"Its mirror, {log.mirror.root}/SESSION/conversation.jsonl, is plaintext.")
        else:
            say("It keeps no mirror: no plaintext is written.")


def append(
    context: typer.Context,
    session: SessionArgument,
    agent: key.Agent = None,
    body: key.Body = None,
    tool: key.Tool = None,
    args: key.Args = None,
    call_id: key.CallId = None,
    result: key.Result = None,
    result_text: key.ResultText = None,
    status: key.Status = None,
    kind: key.Kind = None,
    value: key.Value = None,
    state_key: key.StateKey = None,
    expect: key.Expect = None,
    effect: key.Effect = None,
    lease: key.Lease = None,
    attach: key.Attach = None,
    meta: key.Meta = None,
    usage: key.Usage = None,
    type_: key.Type = None,
    to: key.To = None,
    performative: key.Performative = None,
    role: key.Role = None,
    task: key.Task = None,
    thread: key.Thread = None,
    parent: key.Parent = None,
    link: key.Link = None,
    correlation: key.Correlation = None,
    traceparent: key.Traceparent = None,
    content_type: key.ContentType = None,
    model: key.Model = None,
    sensitivity: key.Sensitivity = None,
    purpose: key.Purpose = None,
    subject: key.Subject = None,
    idempotency_key: key.IdempotencyKey = None,
    jsonl: key.Jsonl = None,
    stream: key.Stream = False,
    scrub: key.Scrub = False,
    quiet: key.Quiet = False,
    store: StoreOption = None,
) -> None:
    """Append an event and print its line as it was recorded. The session is opened by its first event.

    --body makes a message, --tool a tool call, --call-id its result, --kind a mutation.

    --stream is for programs in other languages: a draft a line in, and for each, in order, {"line", "id", "seq"} once it is durable, or {"line", "error"} with what the error tells and "retry": true where trying again may help. A line that is refused harms no other. At the end of input the status is 0, or 3 if a line was refused, 4 if the store could not be used; 130 after SIGINT or SIGTERM.
    """
    arguments = dict(locals())  # first, while nothing else is local
    if stream:
        _append_stream(context, arguments)
        return
    given = drafting.read(arguments)
    check_session_id(session)
    with writing(context, store, create=True, scrub=scrub) as log:
        for event in given.append_to(log.session(session)):
            put(f"{event.id}\n".encode() if quiet else event.line)


def _append_stream(context: typer.Context, arguments: dict[str, Any]) -> None:
    from convlog_sqlite.cli.stream import run

    if arguments["jsonl"] is not None:
        raise usage_error("give --jsonl or --stream, not both", "--stream")
    if arguments["quiet"]:
        raise usage_error("its answers are short already, without --quiet", "--stream")
    agent = drafting.only_agent(arguments, "--stream")
    check_session_id(arguments["session"])
    with writing(context, arguments["store"], create=True, scrub=arguments["scrub"]) as log:
        status = run(log, arguments["session"], agent)
    raise typer.Exit(status)


def tail(
    context: typer.Context,
    session: SessionArgument,
    number: only.Number = None,
    follow: only.Follow = False,
    after: only.After = None,
    before: only.Before = None,
    at: AtOption = None,
    pairs: only.Pairs = False,
    max_chars: only.MaxChars = None,
    brief: only.Brief = False,
    view: through.View = None,
    reader: through.As = None,
    purpose: through.Purpose = None,
    since_last: only.SinceLast = False,
    agent: only.Agent = None,
    type_: only.Type = None,
    task: only.Task = None,
    thread: only.Thread = None,
    tool: only.Tool = None,
    kind: only.Kind = None,
    to: only.To = None,
    performative: only.Performative = None,
    correlation: only.Correlation = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the last events of a session, oldest first. All filters that are given must hold.

    With --max-chars, what was left out or cut is said in a line {"left_out": {"events", "from", "to", "cut"}} in front of the events; where all of it fits there is none. A budget that does not hold the newest event is refused, with the smallest that does.

    With --as, that the agent has read them is noted once they are printed, and its next `append` says so; a look with filters, --after, --before or --at is not noted. --since-last goes on where the agent was in this view, and moves on when everything was written to standard output: after a kill or a broken pipe before that, it comes again.
    """
    filters = Filters(
        agent=agent, type=type_, task_id=task, thread_id=thread, tool=tool, kind=kind, to=to,
        performative=performative, correlation_id=correlation,
    )  # fmt: skip
    if follow and (before is not None or at is not None):
        raise usage_error("what is appended stands behind every --before and --at", "--follow")
    how = window.Shown(pairs, max_chars, brief)
    how.check(number, after, follow=follow)
    out = Printer(render.screen(context, as_json=as_json), brief=brief)
    look = Look(reader, view, purpose, number, how, since_last=since_last, follow=follow)
    if look.is_of_a_reader:
        place = {"--after": after, "--before": before, "--at": at}
        look.show(context, session, store, out, filters, place)
        return
    with reading(context, store) as log:
        whole = log.session(session) if follow else existing(log, session)
        found = resolve(whole, at)
        head = found.head
        if number is None and after is not None:
            out.show(window.everything(found, after=after, before=before, filters=filters))
        else:
            count = _TAIL if number is None else number
            events = window.last(found, count, after=after or 0, before=before, filters=filters)
            out.show(window.within(log, found, events, how))
        if follow:
            sys.stdout.flush()
            out.show(whole.follow(max(head, out.seq, after or 0), **filters), flush=True)


def show(
    context: typer.Context,
    which: Annotated[
        list[str],
        typer.Argument(
            metavar="EVENT | SESSION SEQ | SESSION",
            help="An event's id, or the first 8 or more digits of it; or its session and seq; or, with --at, its session.",
            show_default=False,
        ),
    ],
    full: Annotated[
        bool, typer.Option("--full", help="Only the content, and all of it.", show_default=False)
    ] = False,
    attachment: Annotated[
        int | None,
        typer.Option("--attachment", metavar="N", help="The bytes of attachment N, counted from 0."),
    ] = None,
    at: AtOption = None,
    view: through.View = None,
    reader: through.As = None,
    purpose: through.Purpose = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one event: every key, or with --full its whole content where the line holds a preview.

    With --at and a session, the last event that it had then; one that came later is not there.

    Ends with status 5, after what can be shown, when the content cannot be read.
    """
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        event = _find(log, which) if at is None else _find_at(log, which, at)
        whole = log.session(event.session)
        shown = through.Through(view, reader, purpose)
        session = shown.slice_of(whole) if shown.is_given else whole
        event = shown.event(whole, event) if shown.is_given else event
        if attachment is not None:
            put(_attachment(session, event, attachment))
        elif full:
            _show_content(session.content(event), as_json=as_json)
        elif on is None:
            put(event.line)
        else:
            for line in render.full(event, on):
                say(line)
        event.require_payload()


def _find(log: ConversationLog, which: list[str]) -> Event:
    """The event that the arguments of `show` name."""
    named = os.environ.get("CONVLOG_SESSION")
    if len(which) == 1 and named and which[0].isdecimal():
        which = [named, *which]
    if len(which) == 1:
        return log.event(which[0].lower())
    if len(which) != 2 or not (which[1].isascii() and which[1].isdecimal()):
        raise usage_error("takes an event's id, or a session and a seq", "EVENT | SESSION SEQ")
    found = existing(log, which[0]).event(int(which[1][:18]))
    if found is None:
        raise UnknownReference("seq", which[1])
    return found


def _find_at(log: ConversationLog, which: list[str], at: str) -> Event:
    """The event that the arguments of `show` name, in a session as it was at a point."""
    if len(which) == 1 and which[0] in (summary.id for summary in log.sessions()):
        moment = log.session(which[0]).at(point(at))
        found = moment.event(moment.seq)
    else:
        named = _find(log, which)
        found = log.session(which[0] if len(which) == 2 else named.session).at(point(at)).event(named.seq)
    if found is None:
        raise UnknownReference("at", at)
    return found


def _attachment(session: Session | Slice, event: Event, number: int) -> bytes:
    if sys.stdout.isatty():
        raise usage_error("bytes are not shown on a terminal; send them to a file with >", "--attachment")
    event.require_payload()
    if number >= len(event.attachments):
        fail(REFUSED, f"{event.id}: has {len(event.attachments)} attachments, counted from 0")
    return session.attachment(event, number)


def _show_content(content: Any, *, as_json: bool) -> None:
    if as_json or not isinstance(content, str):
        put_json(content)
    elif sys.stdout.isatty():
        say(render.printable(content))
    else:
        put(content.encode())


def sessions(
    context: typer.Context,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="The store's own session _store too, and those that retention removed.",
            show_default=False,
        ),
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the sessions: how many events, from when to when, calls without a result."""
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = [summary for summary in log.sessions() if everything or summary.id != _STORE_SESSION]
        removed = log.removed_sessions() if everything else []
    if on is None:
        for summary in found:
            put_json({name: item for name, item in asdict(summary).items() if item is not None})
        for one in removed:
            put_json({"id": one.id, "events": one.events, "removed": _how(one)})
        return
    found.sort(key=lambda summary: summary.last_ts or "", reverse=True)
    rows = [
        (
            summary.id,
            summary.tenant or "",
            str(summary.events),
            (summary.first_ts or "")[:19].replace("T", " "),
            (summary.last_ts or "")[:19].replace("T", " "),
            str(summary.open_calls or ""),
        )
        for summary in found
    ]
    if not rows:
        say("No sessions yet.")
        return
    headings = ("SESSION", "TENANT", "EVENTS", "FIRST (UTC)", "LAST (UTC)", "OPEN CALLS")
    for line in render.table(headings, rows, on, right=frozenset({2, 5})):
        say(line)
    for one in removed:
        say(f"{one.id}: removed {one.at[:19].replace('T', ' ')} by policy {one.policy}, {one.events} events")


def _how(removed: RemovedSession) -> dict[str, str]:
    return {"by": removed.by, "at": removed.at, "policy": removed.policy}
