"""The options of `policy` and `hold`: which events, how long, and who answers for it."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _text(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


By = Annotated[
    str,
    typer.Option("--by", metavar="NAME", envvar="CONVLOG_AGENT", help="The agent that answers for it."),
]
PolicyId = Annotated[str, typer.Argument(metavar="ID", show_default=False, help="The policy's id.")]
MaxAge = Annotated[
    str | None, _text("--max-age", "AGE", "Erase from this age on: 45m, 12h, 30d, 2w; see --min-age.")
]
MinAge = Annotated[str | None, _text("--min-age", "AGE", "Keep to this age, whatever other policies say.")]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="WHAT",
        help="payload: erase content. envelope: remove whole sessions this long after they were closed; "
        "goes with --session, --tenant, --max-age and --min-age. reading: forget who read what; goes with --agent too.",
    ),
]
KeepLast = Annotated[
    int | None,
    typer.Option(
        "--keep-last", metavar="N", help="Keep the newest N events of each session.", show_default=False
    ),
]

Type = Annotated[
    str | None, _text("--type", "TYPE", "Only these: message, tool_call, tool_result or mutation.")
]
Kind = Annotated[str | None, _text("--kind", "KIND", "Only mutations of this kind.")]
Tool = Annotated[str | None, _text("--tool", "NAME", "Only calls and results of this tool.")]
Sensitivity = Annotated[
    str | None,
    _text("--sensitivity", "LEVEL", "Only what is public, internal, confidential or restricted."),
]
Agent = Annotated[str | None, _text("--agent", "NAME", "Only what this agent wrote.")]
Session = Annotated[str | None, _text("--session", "ID", "Only events of this session.")]
Task = Annotated[str | None, _text("--task", "ID", "Only events of this task.")]
Subject = Annotated[str | None, _text("--subject", "NAME", "Only what is about this person.")]
Tenant = Annotated[str | None, _text("--tenant", "NAME", "Only sessions of this tenant.")]

HoldId = Annotated[str, typer.Argument(metavar="ID", show_default=False, help="The hold's id.")]
Reason = Annotated[
    str,
    typer.Option(
        "--reason",
        metavar="CODE",
        help="subject_request, secret_leak, retention, legal_order, user_delete, operator or test.",
    ),
]
HoldSession = Annotated[str | None, _text("--session", "ID", "Hold all of a session.")]
HoldTask = Annotated[str | None, _text("--task", "ID", "Hold all of a task.")]
HoldAgent = Annotated[str | None, _text("--agent", "NAME", "Hold all that an agent wrote.")]
HoldSubject = Annotated[str | None, _text("--subject", "NAME", "Hold all that is about a person.")]
HoldEvent = Annotated[str | None, _text("--event", "ID", "Hold one event.")]
