"""convlog: the command. It does nothing that a caller of the library could not do.

`failing` says which exit status means what, `command` turns errors into them. The verbs stand in `daily`,
`exchange` and `care`, and are imported when they are named; `VERBS` lists them in the order of the help.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from convlog_sqlite import NotAuthorized
from convlog_sqlite.cli.command import Entry, Verbs
from convlog_sqlite.cli.failing import INTERRUPTED, USAGE, UsageError, complain
from convlog_sqlite.cli.options import Settings, put

__all__ = ["app", "main"]

VERBS: Final = {
    "init": Entry("daily", "init", "daily", "convlog init"),
    "append": Entry(
        "daily",
        "append",
        "daily",
        "convlog append build --agent user --to orchestrator --body 'Add JWT auth.'",
    ),
    "tail": Entry("daily", "tail", "daily", "convlog tail build -n 20 -f"),
    "show": Entry("daily", "show", "daily", "convlog show build 12"),
    "sessions": Entry("daily", "sessions", "daily", "convlog sessions"),
    "state": Entry("states", "state", "daily", "convlog state build --open"),
    "export": Entry("exchange", "export", "daily", "convlog export build > build.jsonl"),
    "import": Entry("exchange", "import_", "daily", "convlog import claude-code --since 7d"),
    "join": Entry("participants", "join", "people", "convlog join build --as backend-dev --role worker"),
    "role": Entry("people", "role", "people", "convlog role grant alice security --by ops"),
    "ask": Entry(
        "people", "ask", "people", "convlog ask build --agent orchestrator --to backend --body 'Which port?'"
    ),
    "approve": Entry("people", "approve", "people", "convlog approve 0197a3c4 --as alice"),
    "reject": Entry(
        "people", "reject", "people", "convlog reject 0197a3c4 --as alice --body 'Not on a Friday.'"
    ),
    "why": Entry("people", "why", "people", "convlog why 0197a3c4"),
    "view": Entry("views", "view", "people", "convlog view explain 0197a3c4 --as backend"),
    "seen": Entry("participants", "seen", "people", "convlog seen backend-dev build --at 0197a3c4"),
    "memory": Entry("memory", "memory", "people", "convlog memory promote 0197a3c4 --by backend"),
    "status": Entry("care", "status", "care", "convlog status"),
    "verify": Entry("care", "verify", "care", "convlog verify --anchor head.json"),
    "redact": Entry(
        "erasure", "redact", "care", "convlog redact --event 0197a3c4 --reason secret_leak --by ops"
    ),
    "label": Entry("labelling", "label", "care", "convlog label 0197a3c4 --subject 'Ann Lee' --by ops"),
    "policy": Entry(
        "retention",
        "policy",
        "care",
        "convlog policy set tool-results --type tool_result --max-age 30d --by ops",
    ),
    "hold": Entry(
        "retention", "hold", "care", "convlog hold place --session build --reason legal_order --by ops"
    ),
    "fence": Entry("labelling", "fence", "care", "convlog fence lift 'Ann Lee' --by ops"),
    "anchor": Entry("care", "anchor", "care", "convlog anchor > head.json"),
    "backup": Entry("backups", "backup", "care", "convlog backup /backups/2026-12-01"),
    "restore": Entry("backups", "restore", "care", "convlog restore /backups/2026-12-01 --by ops"),
    "keys": Entry("keys", "keys", "care", "convlog keys rotate --key-file ~/.config/convlog.kek --by ops"),
    "effects": Entry("acting", "effects", "plumbing", "convlog effects build --in-doubt"),
    "recover": Entry(
        "acting", "recover", "plumbing", "convlog recover build --as worker-1 --settle 0197a3c4=not-happened"
    ),
    "fork": Entry("branches", "fork", "plumbing", "convlog fork build build-b --at 12 --agent ops"),
    "diff": Entry("branches", "diff", "plumbing", "convlog diff build build-b"),
    "replay": Entry("branches", "replay", "plumbing", "convlog replay build --from 12 --speed 10x"),
}

# What a tenant may ask for. The others are about the whole store; so is a new one, until it stands here.
OF_TENANTS: Final = frozenset(
    {
        "append",
        "tail",
        "show",
        "sessions",
        "state",
        "export",
        "import",
        "join",
        "role",
        "ask",
        "approve",
        "reject",
        "view",
        "why",
        "seen",
        "memory",
        "verify",
        "redact",
        "label",
        "effects",
        "recover",
        "fork",
        "diff",
        "replay",
    }
)


class _Convlog(Verbs):
    entries = VERBS


app = typer.Typer(name="convlog", cls=_Convlog, invoke_without_command=True)


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
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant",
            metavar="NAME",
            envvar="CONVLOG_TENANT",
            show_default=False,
            help="As this tenant: other sessions than its own do not exist, and new ones are its own.",
        ),
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

    Output is JSON lines when it goes to a program, and readable on a terminal.

    Exit status: 0 done; 1 a check found faults; 2 usage; 3 refused, nothing written; 4 the store cannot be used; 5 content that was asked for cannot be read; 6 erasure incomplete; 130 interrupted.
    """
    context.obj = Settings(store, keys, colour, tenant)
    if tenant is not None and context.invoked_subcommand in VERBS.keys() - OF_TENANTS:
        raise NotAuthorized(
            f"tenant {tenant}",
            f"{context.invoked_subcommand} is about the whole store; give no tenant for that",
        )
    if context.invoked_subcommand is None:
        help_text = context.get_help()
        if help_text:  # where typer has rich, the help has been printed already
            typer.echo(help_text)
        raise typer.Exit(USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command (default: with the arguments of this process) and give its exit status."""
    _open_closed_streams()
    # A last collection over everything that was imported takes 20 ms of a short command. Frozen, it is passed over.
    atexit.register(gc.freeze)
    command: Any = typer.main.get_command(app)
    try:
        status = command.main(arguments, prog_name="convlog", standalone_mode=False)
    except UsageError as error:
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
