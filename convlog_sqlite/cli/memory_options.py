"""The options of `memory`: which evidence, which claim, and for whom."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from convlog_sqlite.cli.options import complete_session


def _text(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


By = Annotated[
    str,
    typer.Option("--by", metavar="NAME", envvar="CONVLOG_AGENT", help="The claimant.", show_default=False),
]
AnswersFor = Annotated[
    str,
    typer.Option("--by", metavar="NAME", envvar="CONVLOG_AGENT", help="The agent that answers for it."),
]
Events = Annotated[
    list[str],
    typer.Argument(
        metavar="EVENT...",
        show_default=False,
        help="The evidence: ids of events of one session, or the first 8 or more digits of them.",
    ),
]
Claim = Annotated[
    str | None, _text("--claim", "TEXT|-", "What is claimed; - reads it from standard input, as it is.")
]
Value = Annotated[str | None, _text("--value", "JSON|-", "What is claimed, as JSON.")]
Scope = Annotated[
    str,
    typer.Option("--scope", metavar="SCOPE", help="store, session, task:ID or agent:NAME: for whom it is."),
]
Key = Annotated[
    str | None,
    _text(
        "--key",
        "KEY",
        "What it is about: in one scope, one claim stands for a key. Default: the key or id of the first event.",
    ),
]
Approver = Annotated[str | None, _text("--approver", "ROLE", "A holder of this role is to accept it.")]
Purpose = Annotated[
    list[str] | None,
    _text("--purpose", "NAME", "What it may be used for. Repeatable. Default: as the evidence."),
]
Sensitivity = Annotated[
    str | None,
    _text(
        "--sensitivity", "LEVEL", "public, internal, confidential or restricted; never below the evidence."
    ),
]
Expires = Annotated[str | None, _text("--expires", "TIME", "When it expires, such as 2026-01-31T12:00.")]
Supersedes = Annotated[
    list[str] | None,
    _text(
        "--supersedes",
        "EVENT",
        "A claim whose place it takes; one that is also evidence is consolidated. Repeatable.",
    ),
]
Contested = Annotated[
    bool,
    typer.Option(
        "--contested",
        help="Let it stand beside the claim that stands, as a conflict that everybody sees.",
        show_default=False,
    ),
]
Approval = Annotated[
    str,
    typer.Argument(
        metavar="APPROVAL",
        show_default=False,
        help="The event that accepts the proposed claim, or 8 digits of its id.",
    ),
]
Fewer = Annotated[
    list[str] | None, _text("--purpose", "NAME", "Fewer purposes than were proposed. Repeatable.")
]
OneClaim = Annotated[
    str, typer.Argument(metavar="CLAIM", show_default=False, help="A claim's event, or 8 digits of its id.")
]
Session = Annotated[
    str | None,
    typer.Argument(
        metavar="[SESSION]",
        show_default=False,
        autocompletion=complete_session,
        help="As this session sees it. Default: all of the store.",
    ),
]
InScope = Annotated[
    str | None, _text("--scope", "SCOPE", "Only this: store, session, task:ID or agent:NAME.")
]
As = Annotated[str | None, _text("--as", "AGENT", "What this agent may be shown, by the view of its role.")]
ForPurpose = Annotated[str | None, _text("--purpose", "NAME", "What may be used for this.")]
All = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Also what was superseded, consolidated, retracted or erased, or has expired.",
        show_default=False,
    ),
]
Level = Annotated[
    str | None,
    typer.Argument(
        metavar="[LEVEL]", show_default=False, help="public, internal, confidential or restricted."
    ),
]
SetBy = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="NAME",
        envvar="CONVLOG_AGENT",
        help="The agent that answers for it.",
        show_default=False,
    ),
]
