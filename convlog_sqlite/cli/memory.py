"""memory: claims that agents make of what is in the log, approved by another agent, until they are retracted."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any, Final

import typer

from convlog_sqlite import Claim, Event
from convlog_sqlite.cli import drafting, render
from convlog_sqlite.cli import memory_options as key
from convlog_sqlite.cli.command import Verb
from convlog_sqlite.cli.failing import UNREADABLE, complain
from convlog_sqlite.cli.options import (
    JsonOption,
    StoreOption,
    point,
    put,
    put_json,
    reading,
    say,
    usage_error,
    writing,
)

memory = typer.Typer(
    add_completion=False,
    help="Make memory of history: propose a claim from events, have another agent approve it, promote it.",
    epilog="Example: convlog memory promote 0197a3c4 --by backend",
)

_STANDS, _CONFLICTING = "stands", "conflicting"
_SHOWN: Final = 60  # characters of a claim in a list


@memory.command(
    "propose",
    cls=Verb,
    epilog="Example: convlog memory propose 0197a3c4 --claim 'Tokens live 15 minutes.' --scope store --key jwt --by backend",
)
def propose(
    context: typer.Context,
    events: key.Events,
    by: key.By,
    claim: key.Claim = None,
    value: key.Value = None,
    scope: key.Scope = "session",
    name: key.Key = None,
    approver: key.Approver = None,
    purpose: key.Purpose = None,
    sensitivity: key.Sensitivity = None,
    expires: key.Expires = None,
    supersedes: key.Supersedes = None,
    contested: key.Contested = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Propose that a claim becomes memory, with the events that are evidence of it; print the line of the proposal.

    Another agent accepts it with `convlog approve`; `convlog memory promote` then makes it memory. A claim that a rule refuses ends with status 3, and every rule is named.
    """
    if (claim is None) == (value is None):
        raise usage_error("give one of --claim and --value", "--claim")
    said = drafting.text_of(claim) if claim is not None else drafting.json_of(value or "", "value")
    with writing(context, store, create=False) as log:
        found = [log.event(event.lower()) for event in events]
        session = log.session(found[0].session)
        proposal = session.propose_memory(
            found,
            said,
            scope=scope,
            key=name,
            by=by,
            approver=approver,
            purposes=purpose or (),
            sensitivity=sensitivity,
            expires=None if expires is None else _time(expires),
            supersedes=[log.event(event.lower()) for event in supersedes or ()],
            contested=contested,
        )
        _put(context, proposal, as_json=as_json)


@memory.command("promote", cls=Verb, epilog="Example: convlog memory promote 0197a3c4 --by backend")
def promote(
    context: typer.Context,
    approval: key.Approval,
    by: key.By,
    purpose: key.Fewer = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make memory of a claim that another agent accepted; print the line of the claim.

    Everything is held to the rules again as it is now. Ends with status 3 where one refuses it, and names them all.
    """
    with writing(context, store, create=False) as log:
        accepted = log.event(approval.lower())
        session = log.session(accepted.session)
        _put(
            context,
            session.promote(by=by, approved_by=accepted, purposes=purpose or ()),
            as_json=as_json,
        )


@memory.command("list", cls=Verb, epilog="Example: convlog memory list build --as backend")
def list_claims(
    context: typer.Context,
    session: key.Session = None,
    scope: key.InScope = None,
    agent: key.As = None,
    purpose: key.ForPurpose = None,
    everything: key.All = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the claims that stand, of the store or as a session sees them; those in conflict are marked."""
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = log.memory(scope, session=session, reader=agent, purpose=purpose, whole=everything)
    if on is None:
        for claim in found:
            put_json(claim.to_dict())
        return
    if not found:
        say("No claims." if everything else "No claims stand.")
        return
    rows = [(one.scope, one.key, one.status, _said(one), one.by, one.id) for one in found]
    for line in render.table(("SCOPE", "KEY", "STATUS", "CLAIM", "BY", "EVENT"), rows, on, right=frozenset()):
        say(line)
    conflicting = sum(one.status == _CONFLICTING for one in found)
    if conflicting:
        sys.stdout.flush()
        complain(f"{conflicting} of them contradict each other; retract, or supersede all of them by one")


@memory.command("show", cls=Verb, epilog="Example: convlog memory show 0197a3c4")
def show(
    context: typer.Context, claim: key.OneClaim, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show one claim: what it says, on which evidence, by whose approval, and what became of it.

    Ends with status 5, after what can be shown, when its content cannot be read.
    """
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = log.claim(claim.lower())
    if on is None:
        put_json(found.to_dict())
    else:
        for line in render.tree(_facts(found), on):
            say(line)
    if found.redacted is not None or found.unreadable is not None:
        raise typer.Exit(UNREADABLE)


@memory.command("retract", cls=Verb, epilog="Example: convlog memory retract 0197a3c4 --by alice")
def retract(
    context: typer.Context,
    claim: key.OneClaim,
    by: key.AnswersFor,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a claim be memory no more; print the line of the retraction. `convlog redact` erases what it says."""
    with writing(context, store, create=False) as log:
        _put(context, log.retract(log.event(claim.lower()).id, by=by), as_json=as_json)


@memory.command("export", cls=Verb, epilog="Example: convlog memory export --scope store > memory.jsonl")
def export(
    context: typer.Context,
    session: key.Session = None,
    scope: key.InScope = None,
    agent: key.As = None,
    purpose: key.ForPurpose = None,
    store: StoreOption = None,
) -> None:
    """Print the claims that stand and can be read, a JSON object a line, with the ids of evidence and approval.

    Claims in conflict are left out, and counted on standard error.
    """
    with reading(context, store) as log:
        found = log.memory(scope, session=session, reader=agent, purpose=purpose)
    conflicting = 0
    for claim in found:
        if claim.status != _STANDS:
            conflicting += 1
        elif "claim" in claim.to_dict():
            put_json(claim.to_dict())
    sys.stdout.flush()
    if conflicting:
        complain(f"left out: {conflicting} claims that contradict each other; see `convlog memory list`")
    locked = sum(claim.unreadable is not None for claim in found)
    if locked:
        complain(f"left out: {locked} claims whose content cannot be read")
        raise typer.Exit(UNREADABLE)


@memory.command("ceiling", cls=Verb, epilog="Example: convlog memory ceiling internal --by ops")
def ceiling(
    context: typer.Context,
    level: key.Level = None,
    by: key.SetBy = None,
    store: StoreOption = None,
) -> None:
    """Say how sensitive evidence may be that claims are made of, or set it. What is restricted never is."""
    if level is None:
        with reading(context, store) as log:
            say(log.memory_ceiling)
        return
    if by is None:
        raise usage_error("is needed to set it", "--by")
    with writing(context, store, create=False) as log:
        log.set_memory_ceiling(level, by=by)


def _time(text: str) -> datetime:
    found = point(text, "--expires")
    if not isinstance(found, datetime):
        raise usage_error(f"{text!r} is not a time such as 2026-01-31T12:00", "--expires")
    return found


def _put(context: typer.Context, event: Event, *, as_json: bool) -> None:
    on = render.screen(context, as_json=as_json)
    if on is None:
        put(event.line)
        return
    for line in render.brief(event, on, day_before=""):
        say(line)
    say(f"       {event.id}")


def _said(claim: Claim) -> str:
    if claim.redacted is not None:
        return "redacted"
    if claim.unreadable is not None or claim.withheld:
        return claim.unreadable or "withheld"
    text = " ".join(render.value_text(claim.claim, pretty=False).split())
    gone = sum("redacted" in one for one in claim.evidence)
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return shown + (f" (evidence erased: {gone} of {len(claim.evidence)})" if gone else "")


def _facts(claim: Claim) -> dict[str, Any]:
    said = claim.to_dict()
    return said | {"evidence": {one["event"]: _grounds(one) for one in claim.evidence}}


def _grounds(evidence: Any) -> str:
    gone = evidence.get("redacted")
    return "there" if gone is None else f"erased by {gone['by']}, {gone['at'][:19]}, {gone['reason']}"
