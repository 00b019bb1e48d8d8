"""The options of `append`: one for each key that a draft may have."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _about(what: str) -> Any:
    """An option in the panel `what` of the help."""

    def option(name: str, metavar: str, text: str, *others: str, **more: Any) -> Any:
        names = (name, *others)
        return typer.Option(
            *names, metavar=metavar, help=text, rich_help_panel=what, show_default=False, **more
        )

    return option


_content, _envelope, _other = _about("Content"), _about("Envelope"), _about("Input and output")

Body = Annotated[
    str | None, _content("--body", "TEXT|-", "Text of a message; - reads it from standard input, as it is.")
]
Args = Annotated[str | None, _content("--args", "JSON|-", "Arguments of a tool call.")]
Result = Annotated[str | None, _content("--result", "JSON|-", "What the tool gave.")]
ResultText = Annotated[str | None, _content("--result-text", "TEXT|-", "What the tool gave, as text.")]
Value = Annotated[str | None, _content("--value", "JSON|-", "Value of a mutation.")]
Attach = Annotated[
    list[str] | None, _content("--attach", "FILE[:MEDIA/TYPE]", "Seal a file with the event. Repeatable.")
]
Meta = Annotated[str | None, _content("--meta", "JSON", "An object of your own.")]
Usage = Annotated[str | None, _content("--usage", "JSON", "Tokens and cost, an object.")]

Agent = Annotated[
    str | None, _envelope("--agent", "NAME", "Author of the event.", "-a", "--as", envvar="CONVLOG_AGENT")
]
Type = Annotated[
    str | None,
    _envelope(
        "--type",
        "TYPE",
        "message, tool_call, tool_result or mutation, where it does not follow from the rest.",
        "-t",
    ),
]
Tool = Annotated[str | None, _envelope("--tool", "NAME", "Tool that is called.")]
CallId = Annotated[str | None, _envelope("--call-id", "ID", "The tool call that this is the result of.")]
Status = Annotated[
    str | None, _envelope("--status", "STATUS", "Of a result: ok, error, denied or interrupted.")
]
Kind = Annotated[
    str | None, _envelope("--kind", "KIND", "Kind of a mutation: task-claimed, decision-made, or your own.")
]
StateKey = Annotated[str | None, _envelope("--state-key", "KEY", "Piece of state that a mutation sets.")]
Expect = Annotated[
    list[str] | None,
    _envelope(
        "--expect",
        "ID|none",
        "Record a mutation only if this stands for its state key, and replace it. Repeatable.",
    ),
]
Effect = Annotated[
    str | None,
    _envelope(
        "--effect",
        "STEP",
        "A step of an effect: proposed, attempted=ID, committed=ID, withdrawn=ID, undone=ID or not_happened=ID.",
    ),
]
Lease = Annotated[int | None, _envelope("--lease", "SECONDS", "How long a claim is held.")]
To = Annotated[list[str] | None, _envelope("--to", "NAME", "Recipient. Repeatable.")]
Performative = Annotated[
    str | None,
    _envelope(
        "--performative", "ACT", "Communicative act: request, propose, inform, agree, refuse and so on."
    ),
]
Role = Annotated[str | None, _envelope("--role", "NAME", "The author's role.")]
Task = Annotated[str | None, _envelope("--task", "ID", "Task that this belongs to.")]
Thread = Annotated[str | None, _envelope("--thread", "ID", "Thread that this belongs to.")]
Parent = Annotated[str | None, _envelope("--parent", "ID", "Event that caused this one.")]
Link = Annotated[
    list[str] | None,
    _envelope(
        "--link", "TYPE=ID", "authorized_by, evidence, supersedes or derived_from another event. Repeatable."
    ),
]
Correlation = Annotated[str | None, _envelope("--correlation", "ID", "Groups what belongs together.")]
Traceparent = Annotated[str | None, _envelope("--traceparent", "TEXT", "W3C trace context.")]
ContentType = Annotated[str | None, _envelope("--content-type", "TYPE", "Media type of the body or result.")]
Model = Annotated[str | None, _envelope("--model", "NAME", "Model that wrote this.")]
Sensitivity = Annotated[
    str | None, _envelope("--sensitivity", "LEVEL", "public, internal, confidential or restricted.")
]
Purpose = Annotated[
    list[str] | None, _envelope("--purpose", "NAME", "Purpose that this may be used for. Repeatable.")
]
Subject = Annotated[
    list[str] | None,
    _envelope(
        "--subject",
        "NAME",
        "Person that this is about; only a keyed digest of the name is stored. Repeatable.",
    ),
]
IdempotencyKey = Annotated[
    str | None, _envelope("--idempotency-key", "KEY", "The same key again gives the first event.")
]

Jsonl = Annotated[
    str | None,
    _other("--jsonl", "FILE|-", "One draft a line, a JSON object with the keys of an event; all or none."),
]
Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Read one draft a line from standard input and answer each with a line as it lands.",
        rich_help_panel="Input and output",
        show_default=False,
    ),
]
Scrub = Annotated[
    bool,
    typer.Option(
        "--scrub/--no-scrub",
        help="Put placeholders in place of secrets before anything is written, and count them on stderr. Default: not.",
        rich_help_panel="Input and output",
        show_default=False,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print ids only.", rich_help_panel="Input and output", show_default=False
    ),
]
