"""The options of `redact`: what is erased, why, and who answers for it."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _text(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


By = Annotated[
    str, typer.Option("--by", metavar="NAME", envvar="CONVLOG_AGENT", help="The agent that answers for it.")
]
Event = Annotated[
    list[str] | None,
    typer.Option("--event", metavar="ID|-", help="This event; - reads ids from standard input. Repeatable."),
]
Session = Annotated[str | None, _text("--session", "ID", "Everything in this session.")]
Task = Annotated[str | None, _text("--task", "ID", "Everything of this task.")]
Agent = Annotated[str | None, _text("--agent", "NAME", "Everything this agent wrote.")]
Subject = Annotated[str | None, _text("--subject", "NAME", "Everything about this person.")]
Reason = Annotated[
    str | None,
    _text(
        "--reason",
        "CODE",
        "subject_request, secret_leak, retention, legal_order, user_delete, operator or test.",
    ),
]
Override = Annotated[
    list[str] | None,
    typer.Option("--override-hold", metavar="ID", help="Erase although this hold forbids it. Repeatable."),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Search every file afterwards for the content and keys of the first 1,000 events.",
        show_default=False,
    ),
]
Fence = Annotated[
    bool,
    typer.Option(
        "--fence",
        help="With --subject: refuse events about this person from now on; `convlog fence lift` ends it.",
        show_default=False,
    ),
]
KeepDerived = Annotated[
    bool,
    typer.Option(
        "--keep-derived",
        help="Keep the claims of memory that were made of it; they show that their evidence is gone.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be erased, erase nothing.", show_default=False)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", show_default=False)]
