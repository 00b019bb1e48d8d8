"""Verbs about what is kept: policy, hold, and `redact` without a scope, which applies the policies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from convlog_sqlite import ConversationLog, Redaction, RetentionPolicy
from convlog_sqlite.cli import render
from convlog_sqlite.cli import retention_options as key
from convlog_sqlite.cli.command import Verb
from convlog_sqlite.cli.failing import DONE, INCOMPLETE, REFUSED, complain, fail
from convlog_sqlite.cli.options import (
    JsonOption,
    StoreOption,
    put_json,
    reading,
    say,
    usage_error,
    writing,
)

# What keeps a session that is due, as `Redaction.kept` has it.
_KEPT_BY: Final = {
    "open-call": "a call has no result",
    "open-effect": "an effect is not done",
    "fork": "a session was forked from it",
    "hold": "a hold",
    "min-age": "the min_age of a policy",
    "erasure-pending": "an erasure in it is not done",
}

_MATCHES_ALL: Final = {"payload": "every event", "envelope": "every session", "reading": "every reading"}

policy = typer.Typer(
    add_completion=False,
    help="Say how long content is kept. Nothing is erased until `convlog redact` applies the policies.",
    epilog="Example: convlog policy set tool-results --type tool_result --max-age 30d --by ops",
)
hold = typer.Typer(
    add_completion=False,
    help="Forbid to erase content, until every hold on it is released.",
    epilog="Example: convlog hold place --session build --reason legal_order --by ops",
)


@policy.command(
    "set", cls=Verb, epilog="Example: convlog policy set chat --max-age 90d --keep-last 50 --by ops"
)
def set_(
    context: typer.Context,
    policy_id: key.PolicyId,
    by: key.By,
    target: key.Target = "payload",
    max_age: key.MaxAge = None,
    min_age: key.MinAge = None,
    keep_last: key.KeepLast = None,
    type_: key.Type = None,
    kind: key.Kind = None,
    tool: key.Tool = None,
    sensitivity: key.Sensitivity = None,
    agent: key.Agent = None,
    session: key.Session = None,
    task: key.Task = None,
    subject: key.Subject = None,
    tenant: key.Tenant = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a policy, or a new version of it. An event must be all that is given; nothing given, it is any event.

    With --target envelope it is about sessions: a closed one that is old enough is removed whole, unless it has an open call or effect, a fork, or anything that a hold or a --min-age covers. A session is closed by a mutation session-closed that nothing but redactions follows.

    With --target reading it is about what is known to have been read: by --agent, in --session, or of --tenant. Of each reader the last reading stays, from which it goes on.
    """
    given = {"type": type_, "kind": kind, "tool": tool, "sensitivity": sensitivity, "agent": agent}
    given |= {"session": session, "task": task, "subject": subject, "tenant": tenant}
    wanted = RetentionPolicy(
        id=policy_id,
        target=target,
        match={name: item for name, item in given.items() if item is not None},
        max_age=max_age,
        min_age=min_age,
        keep_last=keep_last or 0,
    )
    with writing(context, store, create=False) as log:
        found = log.set_policy(wanted, by=by)
    _show_policies(context, [found], as_json=as_json)


@policy.command("list", cls=Verb, epilog="Example: convlog policy list")
def list_policies(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the policies that stand."""
    with reading(context, store) as log:
        found = log.policies()
    _show_policies(context, found, as_json=as_json)


@policy.command("remove", cls=Verb, epilog="Example: convlog policy remove chat --by ops")
def remove(context: typer.Context, policy_id: key.PolicyId, by: key.By, store: StoreOption = None) -> None:
    """End a policy."""
    with writing(context, store, create=False) as log:
        log.remove_policy(policy_id, by=by)


@policy.command("explain", cls=Verb, epilog="Example: convlog policy explain 019c1c4e-b32e")
def explain(
    context: typer.Context,
    event: Annotated[
        str,
        typer.Argument(
            metavar="EVENT", show_default=False, help="An event's id, or the first 8 or more digits of it."
        ),
    ],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say in one line what will happen to the content of an event, when, and why."""
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = log.event(event.lower())
        text = log.explain(found.id)
    if on is None:
        put_json({"event": found.id, "explanation": text})
    else:
        say(text)


def _show_policies(context: typer.Context, found: list[RetentionPolicy], *, as_json: bool) -> None:
    on = render.screen(context, as_json=as_json)
    if on is None:
        for one in found:
            put_json(one.to_dict())
        return
    if not found:
        say("No policies: everything is kept.")
        return
    rows = [
        (
            str(one),
            ", ".join(f"{name} {item}" for name, item in one.match.items()) or _MATCHES_ALL[one.target],
            one.target,
            one.max_age or "",
            one.min_age or "",
            str(one.keep_last or ""),
        )
        for one in found
    ]
    headings = ("POLICY", "MATCHES", "TARGET", "MAX AGE", "MIN AGE", "KEEP LAST")
    for line in render.table(headings, rows, on, right=frozenset({3, 4, 5})):
        say(line)


@hold.command(
    "place", cls=Verb, epilog="Example: convlog hold place --task jwt --reason legal_order --by ops"
)
def place(
    context: typer.Context,
    reason: key.Reason,
    by: key.By,
    session: key.HoldSession = None,
    task: key.HoldTask = None,
    agent: key.HoldAgent = None,
    subject: key.HoldSubject = None,
    event: key.HoldEvent = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Place a hold on one session, task, agent, subject or event, and print its id."""
    scope = {"session": session, "task": task, "agent": agent, "subject": subject, "event": event}
    if sum(item is not None for item in scope.values()) != 1:
        raise usage_error("give one of --session, --task, --agent, --subject and --event", "hold place")
    on = render.screen(context, as_json=as_json)
    with writing(context, store, create=False) as log:
        placed = log.place_hold(reason=reason, by=by, **scope)
    if on is None:
        put_json(placed.to_dict())
    else:
        say(placed.id)


@hold.command(
    "release",
    cls=Verb,
    epilog="Example: convlog hold release 019c1c4e-b32e-7e5e-bc95-9b9ad2100727 --by ops",
)
def release(context: typer.Context, hold_id: key.HoldId, by: key.By, store: StoreOption = None) -> None:
    """End a hold. What another hold covers stays held."""
    with writing(context, store, create=False) as log:
        log.release_hold(hold_id, by=by)


@hold.command("list", cls=Verb, epilog="Example: convlog hold list")
def list_holds(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the holds that stand. A person is shown as a keyed digest of the name."""
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = log.holds()
    if on is None:
        for one in found:
            put_json(one.to_dict())
    elif not found:
        say("No holds.")
    else:
        rows = [(one.id, f"{one.scope} {one.name}", one.reason, one.by, one.at[:19]) for one in found]
        for line in render.table(("HOLD", "HOLDS", "REASON", "BY", "SINCE"), rows, on, right=frozenset()):
            say(line)


def apply(
    context: typer.Context,
    *,
    by: str,
    yes: bool,
    dry_run: bool,
    keep_derived: bool = False,
    store: str | None = None,
    as_json: bool = False,
) -> None:
    """Apply the retention policies: what `convlog redact` does without a scope.

    Shows the plan and asks, unless `yes`. Ends with status 6 when a file could not be reached.
    """
    on = render.screen(context, as_json=as_json)
    if dry_run:
        with reading(context, store) as log:
            _report(log.apply_retention(by=by, dry_run=True, keep_derived=keep_derived), on)
        return
    with writing(context, store, create=False) as log:
        if not yes:
            _ask(log, by, keep_derived=keep_derived)
        found = log.apply_retention(by=by, keep_derived=keep_derived)
    _report(found, on)
    if not found.complete:
        sys.stdout.flush()
        complain_of_unreachable(found)
        raise typer.Exit(INCOMPLETE)


def complain_of_unreachable(found: Redaction) -> None:
    """Name the files that may still hold what was erased, and what to do about a directory that is gone."""
    gone: dict[Path, None] = {}
    for path in found.unreachable:
        complain(f"may still hold what was erased: {path}")
        root = Path(path).parent.parent
        if not root.exists():
            gone[root] = None
    for root in gone:
        complain(f"{root} is not there: mount it, or, if it was deleted: convlog export --forget {root}")


def _ask(log: ConversationLog, by: str, *, keep_derived: bool) -> None:
    if not sys.stdin.isatty():
        raise usage_error("nobody can be asked here; --dry-run shows the plan, --yes applies it", "--yes")
    planned = log.apply_retention(by=by, dry_run=True, keep_derived=keep_derived)
    for line in _plan(planned):
        typer.echo(line, err=True)
    if not (planned.erased or planned.removed or planned.readings):
        raise typer.Exit(DONE)
    if not typer.confirm("Erase for good?", err=True):
        fail(REFUSED, "nothing was erased")


def _plan(planned: Redaction) -> list[str]:
    will = "would be erased" if planned.dry_run else "erased"
    lines = [f"{count} {will} by policy {version}" for version, count in planned.policies.items()]
    if planned.held:
        lines.append(f"{planned.held} due, but kept by a hold")
    if planned.derived:
        lines.append(f"{planned.derived} of them are claims of memory, or proposed ones, made of the others")
    if planned.derived_kept:
        lines.append(f"{planned.derived_kept} claims of memory made of them are kept")
    removed = "would be removed" if planned.dry_run else "removed"
    for version, count in planned.readings.items():
        lines.append(f"{count} readings {removed} by policy {version}")
    for session, version in planned.removed.items():
        lines.append(f"session {session} {removed} whole by policy {version}")
    for session, why in planned.kept.items():
        lines.append(f"session {session} due, but kept: {_KEPT_BY[why]}")
    return lines or ["Nothing is due."]


def _report(found: Redaction, on: render.Screen | None) -> None:
    if on is None:
        put_json(found.to_dict())
    else:
        for line in _plan(found):
            say(line)
