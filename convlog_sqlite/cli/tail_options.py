"""The options of `tail`: which part of a session, and the filters."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _filter(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="Filters", show_default=False)


def _text(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="Reader", show_default=False)


def _flag(*names: str, text: str) -> Any:
    return typer.Option(*names, help=text, show_default=False)


def _count(*names: str, metavar: str, text: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


Number = Annotated[
    int | None, _count("-n", "--number", metavar="N", text="How many events. Default: 20; with --after, all.")
]
Follow = Annotated[bool, _flag("-f", "--follow", text="Go on with what is appended.")]
After = Annotated[int | None, _count("--after", metavar="SEQ", text="Only events behind this seq.")]
Before = Annotated[int | None, _count("--before", metavar="SEQ", text="Only events in front of this seq.")]
Pairs = Annotated[bool, _flag("--pairs", text="No result without its call.")]

MaxChars = Annotated[
    int | None,
    _count(
        "--max-chars",
        metavar="N",
        text="Of these events the newest that fit in N characters of JSON, no result without its call, long content cut; what is left out is said in front.",
    ),
]
Brief = Annotated[bool, _flag("--brief", text="One short line an event: the few keys that an agent needs.")]

SinceLast = Annotated[
    bool,
    _flag(
        "--since-last",
        text="What is new to the agent of --as, oldest first; with -n, at most N, and the rest the next time.",
    ),
]

Agent = Annotated[str | None, _filter("--agent", "NAME", "Written by this agent.")]
Type = Annotated[str | None, _filter("--type", "TYPE", "message, tool_call, tool_result or mutation.")]
Task = Annotated[str | None, _filter("--task", "ID", "Of this task.")]
Thread = Annotated[str | None, _filter("--thread", "ID", "Of this thread.")]
Tool = Annotated[str | None, _filter("--tool", "NAME", "Calls and results of this tool.")]
Kind = Annotated[str | None, _filter("--kind", "KIND", "Mutations of this kind.")]
To = Annotated[str | None, _filter("--to", "NAME", "With this recipient.")]
Performative = Annotated[str | None, _filter("--performative", "ACT", "With this communicative act.")]
Correlation = Annotated[str | None, _filter("--correlation", "ID", "With this correlation id.")]
