"""convlog: the command. It does nothing that a caller of the library could not do.

`failing` says which exit status means what, `command` turns errors into them. The verbs stand in `daily`,
`exchange` and `care`; `VERBS` lists them in the order of the help.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from convlog_sqlite.cli import care, daily, exchange
from convlog_sqlite.cli.command import USAGE_ERROR, Verb, Verbs
from convlog_sqlite.cli.failing import INTERRUPTED, USAGE, complain
from convlog_sqlite.cli.options import Settings, put

__all__ = ["app", "main"]

# name, function, panel of the help, example
VERBS: Final[tuple[tuple[str, Callable[..., None], str, str], ...]] = (
    ("init", daily.init, "daily", "convlog init"),
    (
        "append",
        daily.append,
        "daily",
        "convlog append build --agent user --to orchestrator --body 'Add JWT auth.'",
    ),
    ("tail", daily.tail, "daily", "convlog tail build -n 20 -f"),
    ("show", daily.show, "daily", "convlog show build 12"),
    ("sessions", daily.sessions, "daily", "convlog sessions"),
    ("export", exchange.export, "daily", "convlog export build > build.jsonl"),
    ("import", exchange.import_, "daily", "convlog import claude-code --since 7d"),
    ("status", care.status, "care", "convlog status"),
    ("verify", care.verify, "care", "convlog verify --anchor head.json"),
    ("anchor", care.anchor, "care", "convlog anchor > head.json"),
)

app = typer.Typer(name="convlog", cls=Verbs, invoke_without_command=True)
for _name, _function, _panel, _example in VERBS:
    app.command(_name, cls=Verb, rich_help_panel=_panel, epilog=f"Example: {_example}")(_function)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # only here: reading metadata takes longer than an append

        put(f"convlog {version('convlog-sqlite')}\n".encode())
        raise typer.Exit


@app.callback()
def convlog(
    context: typer.Context,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="DIR",
            help="The store's directory. Default: CONVLOG_STORE, else the nearest .convlog upward.",
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option("--keys", metavar="PATH", help="The keystore, if it is not where the store says."),
    ] = None,
    colour: Annotated[
        bool | None,
        typer.Option(
            "--color/--no-color",
            help="Readable output in colour even through a pipe, or never any colour.",
            show_default=False,
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True, show_default=False
        ),
    ] = False,
) -> None:
    """The shared, append-only conversation log of the agents on one machine.

    Output is JSON lines when it goes to a program, and readable on a terminal. Exit status: 0 done,
    1 a check found faults, 2 usage, 3 refused and nothing written, 4 the store cannot be used,
    5 content that was asked for cannot be read.
    """
    context.obj = Settings(store, keys, colour)
    if context.invoked_subcommand is None:
        help_text = context.get_help()
        if help_text:  # where typer has rich, the help has been printed already
            typer.echo(help_text)
        raise typer.Exit(USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command (default: with the arguments of this process) and give its exit status."""
    _open_closed_streams()
    command: Any = typer.main.get_command(app)
    try:
        status = command.main(arguments, prog_name="convlog", standalone_mode=False)
    except USAGE_ERROR as error:
        return _explain(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def _explain(error: Any) -> int:
    """Say what was wrong with the arguments, and where to read about them."""
    text = " ".join(error.format_message().split()).rstrip(".")
    complain(text[:1].lower() + text[1:])
    print(f"Try '{error.ctx.command_path if error.ctx else 'convlog'} --help'.", file=sys.stderr)
    return USAGE


def _open_closed_streams() -> None:
    """Without this, a store's file could get the number of a closed standard stream, and be printed to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 stays open to the end
