"""redact: erase content for good. Without a scope it is `retention.apply`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import typer

from convlog_sqlite import ConversationLog, Redaction
from convlog_sqlite.cli import erasure_options as key
from convlog_sqlite.cli import render, retention
from convlog_sqlite.cli.failing import INCOMPLETE, REFUSED, complain, fail
from convlog_sqlite.cli.options import JsonOption, StoreOption, put_json, say, usage_error, writing

_WIDE: Final = ("session", "task", "agent", "subject")


def redact(
    context: typer.Context,
    by: key.By,
    event: key.Event = None,
    session: key.Session = None,
    task: key.Task = None,
    agent: key.Agent = None,
    subject: key.Subject = None,
    reason: key.Reason = None,
    override: key.Override = None,
    verify: key.Verify = False,
    fence: key.Fence = False,
    keep_derived: key.KeepDerived = False,
    dry_run: key.DryRun = False,
    yes: key.Yes = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Erase content for good: events, or all of a session, task, agent or person; without a scope, what the retention policies say is due. Claims of memory that were made of it go too.

    The record that each event existed stays, says by which redaction it was erased, and verifies. On a terminal the plan is shown and you are asked. Elsewhere --event goes ahead, and anything wider needs --yes.

    Ends with status 6, and names them, when there are files that could not be reached; the next redact or open for writing tries them again.
    """
    wide = dict(zip(_WIDE, (session, task, agent, subject), strict=True))
    scope: dict[str, Any] = {name: wanted for name, wanted in wide.items() if wanted is not None}
    if event:
        scope["events"] = event
    if fence and subject is None:
        raise usage_error("goes with --subject", "--fence")
    if not scope:
        if reason is not None or override or verify:
            raise usage_error(
                "goes with a scope: --event, --session, --task, --agent or --subject", "--reason"
            )
        retention.apply(
            context,
            by=by,
            yes=yes,
            dry_run=dry_run,
            keep_derived=keep_derived,
            store=store,
            as_json=as_json,
        )
        return
    if len(scope) > 1:
        raise usage_error("one scope at a time", " / ".join(f"--{name}" for name in ("event", *_WIDE)))
    if reason is None:
        raise usage_error("is needed to erase something named", "--reason")
    wanted = scope | {"reason": reason, "by": by, "override_hold": override or ()}
    wanted |= {"verify": verify, "fence": fence, "keep_derived": keep_derived}
    _erase(context, wanted, dry_run=dry_run, yes=yes, store=store, as_json=as_json)


def _erase(
    context: typer.Context,
    wanted: dict[str, Any],
    *,
    dry_run: bool,
    yes: bool,
    store: str | None,
    as_json: bool,
) -> None:
    on = render.screen(context, as_json=as_json)
    is_asked = not yes and not dry_run and sys.stdin.isatty()
    if not (yes or dry_run or is_asked or "events" in wanted):
        fail(REFUSED, "nothing was erased: nobody can be asked here; --dry-run shows the plan, --yes does it")
    with writing(context, store, create=False) as log:
        if "events" in wanted:
            wanted["events"] = _ids(log, wanted["events"])
        if dry_run:
            found = log.redact(**wanted, dry_run=True)
        elif is_asked and not _agreed(log.redact(**wanted, dry_run=True), fence=wanted["fence"]):
            fail(REFUSED, "nothing was erased")
        else:
            found = log.redact(**wanted)
    _report(found, on)


def _ids(log: ConversationLog, given: Sequence[str]) -> list[str]:
    """Whole event ids; 8 or more digits of one will do. Raises UnknownReference."""
    named = [word for one in given for word in (sys.stdin.read().split() if one == "-" else [one])]
    if not named:
        fail(REFUSED, "nothing was erased: standard input names no event")
    return [log.event(word.lower()).id for word in named]


def _agreed(plan: Redaction, *, fence: bool) -> bool:
    for line in _sentences(plan):
        complain(line)
    if fence:
        complain("events about this person will be refused from then on")
    return bool(plan.erased or fence) and typer.confirm("Erase for good?", err=True)


def _sentences(found: Redaction) -> list[str]:
    will = "would be erased" if found.dry_run else "erased"
    lines = [f"{found.erased} of {found.matched} events {will}"]
    if found.already:
        lines.append(f"{found.already} erased already")
    if found.derived:
        lines.append(f"{found.derived} of them are claims of memory, or proposed ones, made of the others")
    if found.derived_kept:
        lines.append(f"{found.derived_kept} claims of memory made of them are kept")
    if found.protected:
        lines.append(f"{found.protected} protected: redactions, and what the store says of itself")
    return lines


def _report(found: Redaction, on: render.Screen | None) -> None:
    if on is None:
        put_json(found.to_dict())
    else:
        for line in _sentences(found):
            say(line)
    sys.stdout.flush()
    retention.complain_of_unreachable(found)
    for one in found.residue or ():
        complain(f"still holds {one.what} of {one.event}: {one.path}")
    if not found.complete:
        raise typer.Exit(INCOMPLETE)
