"""Verbs that keep a copy and put it back: backup, restore."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from convlog_sqlite import Restoration
from convlog_sqlite import restore as restore_backup
from convlog_sqlite.cli import render
from convlog_sqlite.cli.failing import REFUSED, complain, fail
from convlog_sqlite.cli.options import JsonOption, StoreOption, key_source, put_json, say, settings, writing


def backup(
    context: typer.Context,
    destination: Annotated[
        str, typer.Argument(metavar="DEST", show_default=False, help="A new directory for the backup.")
    ],
    with_keys: Annotated[
        bool,
        typer.Option("--with-keys", help="The keystore too, as it is kept.", show_default=False),
    ] = False,
    bare_keys: Annotated[
        bool,
        typer.Option(
            "--bare-keys",
            help="With --with-keys: also a keystore that no key-encryption key protects.",
            show_default=False,
        ),
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the database while others write, and check the copy as verify does. It holds no keys.

    What is erased later stays erased when the backup is restored beside the current keystore. With its own copy of
    the keys it does not: keep those apart from it, and destroy them when something is erased.
    """
    if bare_keys and not with_keys:
        raise typer.BadParameter("goes with --with-keys", param_hint="'--bare-keys'")
    with writing(context, store, create=False) as log, _shown() as progress:
        found = log.backup(destination, with_keys=with_keys, bare_keys=bare_keys, progress=progress)
    if render.screen(context, as_json=as_json) is None:
        put_json(found.to_dict())
        return
    keys = "without keys" if found.keys is None else f"with the keystore ({found.keys})"
    say(f"{found.events} events, {found.bytes:,} bytes, {keys}, verified: {found.path}")


def restore(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="BACKUP", show_default=False, help="What `convlog backup` made.")
    ],
    by: Annotated[
        str,
        typer.Option("--by", metavar="NAME", envvar="CONVLOG_AGENT", help="The agent that answers for it."),
    ],
    discard: Annotated[
        bool,
        typer.Option("--discard", help="Do not keep the database that is there.", show_default=False),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, change nothing.", show_default=False)
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", show_default=False)] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a backup in place of the store's database, or make a store of it where there is none.

    The keystore stays, and what was erased since stays erased. Events that came after the backup go, and with them holds, policies, roles and fences; the database that was there is set aside under another name. Nobody may have the store open. On a terminal the plan is shown and you are asked; elsewhere it needs --yes.
    """
    given = settings(context)
    place, kek = store or given.store, key_source()

    def run(*, dry: bool) -> Restoration:
        with _shown() as progress:
            return restore_backup(
                source,
                place,
                by=by,
                keys=given.keys,
                kek=kek,
                dry_run=dry,
                discard=discard,
                progress=progress,
            )

    if not (yes or dry_run):
        if not sys.stdin.isatty():
            fail(
                REFUSED,
                "nothing was restored: nobody can be asked here; --dry-run shows the plan, --yes does it",
            )
        complain(_sentence(run(dry=True)))
        if not typer.confirm("Restore?", err=True):
            fail(REFUSED, "nothing was restored")
    found = run(dry=dry_run)
    if found.lost_keys:
        complain(f"the keystore has no key for {found.lost_keys} events; `convlog verify` names them")
    if render.screen(context, as_json=as_json) is None:
        put_json(found.to_dict())
        return
    say(_sentence(found))
    if found.set_aside:
        say(f"What was there before: {found.set_aside}")


def _sentence(found: Restoration) -> str:
    will = "would be restored" if found.dry_run else "restored"
    made = "a new store" if found.new else "the store"
    erased = f", {found.erased} erased since" if found.erased else ""
    if found.lost is None:
        return f"{made} {found.store} {will} to {found.pos} events; what is there now is damaged{erased}"
    return f"{made} {found.store} {will} to {found.pos} events; {found.lost} later ones go{erased}"


@contextmanager
def _shown() -> Iterator[Callable[[int, int], None] | None]:
    """How far a copy is, in one line on stderr that is written over, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    last = ""

    def show(done: int, of: int) -> None:
        nonlocal last
        line = f"\rcopied {100 * done // max(of, 1)} %; then it is checked"
        if line != last:
            last = line
            sys.stderr.write(line)
            sys.stderr.flush()

    try:
        yield show
    finally:
        if last:
            sys.stderr.write("\r" + " " * len(last) + "\r")
            sys.stderr.flush()
