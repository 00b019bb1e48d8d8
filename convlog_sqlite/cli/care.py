"""Verbs that look after a store: status, verify, anchor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from convlog_sqlite import Anchor, Finding, InvalidEvent, StoreReadOnly, parse_json
from convlog_sqlite.cli import render
from convlog_sqlite.cli.exchange import Sessions
from convlog_sqlite.cli.failing import FAULTS, complain
from convlog_sqlite.cli.options import (
    JsonOption,
    StoreOption,
    existing,
    put_json,
    reading,
    say,
    usage_error,
    writing,
)

_FAULT = "fault"


def status(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Say where the store is, how large it is, how it is protected and who has it open."""
    on = render.screen(context, as_json=as_json)
    try:
        # Which frames of the WAL a reader holds shows only to a handle that may move them.
        with writing(context, store, create=False) as log:
            found = log.status()
    except StoreReadOnly:
        with reading(context, store) as log:
            found = log.status()
    if on is None:
        put_json(found)
    else:
        for line in render.tree(found, on):
            say(line)


def verify(
    context: typer.Context,
    sessions: Sessions = None,
    anchor: Annotated[
        str | None,
        typer.Option("--anchor", metavar="FILE|-", help="A head that `convlog anchor` printed earlier."),
    ] = None,
    projections: Annotated[
        bool,
        typer.Option(
            "--projections",
            help="Fold every projection anew, and compare it with what is kept of it.",
            show_default=False,
        ),
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check everything that can be checked: numbers, chains, seals, pairs, indexes, mirror.

    Every finding is printed, a summary goes to stderr. Ends with status 1 when one of them is a fault.
    """
    head = None if anchor is None else _read_anchor(anchor)
    on = render.screen(context, as_json=as_json)
    faults = notes = 0
    with reading(context, store) as log:
        named = [existing(log, session).id for session in dict.fromkeys(sessions or ())]
        for finding in log.verify(*named, anchor=head, projections=projections):
            faults += finding.severity == _FAULT
            notes += finding.severity != _FAULT
            _print(finding, on)
    sys.stdout.flush()
    complain(f"{_count(faults, 'fault')}, {_count(notes, 'note')}")
    if faults:
        raise typer.Exit(FAULTS)


def anchor(context: typer.Context, store: StoreOption = None) -> None:
    """Print the head of the store's chain, to keep elsewhere: `verify --anchor` proves nothing before it was changed."""
    with reading(context, store) as log:
        put_json(log.anchor().to_dict())


def _print(finding: Finding, on: render.Screen | None) -> None:
    if on is None:
        put_json(finding.to_dict())
        return
    where = " ".join(str(item) for item in (finding.session, finding.seq) if item is not None)
    say(
        ": ".join(
            part
            for part in (on.severity(finding.severity), finding.rule, where, render.printable(finding.detail))
            if part
        )
    )


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _read_anchor(source: str) -> Anchor:
    try:
        text = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return Anchor(**parse_json(text))
    except OSError as error:
        raise usage_error(f"{source}: {error.strerror}", "--anchor") from None
    except (InvalidEvent, TypeError):
        raise usage_error(f"{source} does not hold what `convlog anchor` prints", "--anchor") from None
