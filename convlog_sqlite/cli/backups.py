"""Verbs for the worst day and the days before it: backup, restore."""

from __future__ import annotations

import sys
from typing import Annotated, Self

import typer

from convlog_sqlite import restore as put_back
from convlog_sqlite.cli import render
from convlog_sqlite.cli.failing import complain
from convlog_sqlite.cli.options import (
    JsonOption,
    StoreOption,
    key_source,
    put_json,
    reading,
    say,
    settings,
    usage_error,
    writing,
)
from convlog_sqlite.cli.retention_options import By


def backup(
    context: typer.Context,
    destination: Annotated[
        str,
        typer.Argument(metavar="DEST", show_default=False, help="A new file, in a directory that is there."),
    ],
    with_keys: Annotated[
        bool,
        typer.Option("--with-keys", help="Copy the keystore too, to DEST.keys.", show_default=False),
    ] = False,
    bare_keys: Annotated[
        bool,
        typer.Option(
            "--bare-keys",
            help="With --with-keys: also where no key-encryption key protects it.",
            show_default=False,
        ),
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the database to one new file, and verify it, while others write.

    Its payloads open with the store's keystore only, and those that are erased later no longer. A copy of the keystore is another matter: no erasure reaches it, so keep it apart from the database, and make a new one after an erasure.
    """
    if bare_keys and not with_keys:
        raise usage_error("says something of --with-keys only", "--bare-keys")
    on = render.screen(context, as_json=as_json)
    opened = writing(context, store, create=False) if with_keys else reading(context, store)
    with opened as log, _Progress() as progress:
        found = log.backup(destination, with_keys=with_keys, bare_keys=bare_keys, progress=progress.show)
    _print(found.to_dict(), on)


def restore(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="BACKUP", show_default=False, help="What `backup` wrote, or `log.db.before-...`."
        ),
    ],
    by: By,
    discard: Annotated[
        bool,
        typer.Option("--discard", help="Do not keep the database that is replaced.", show_default=False),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, do nothing.", show_default=False)
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the database of a backup in place of the store's, or make a store of it where there is none.

    Nobody may have the store open. The keystore stays: what was erased since stays erased. The database that is replaced is kept beside it, and restoring that one undoes this. Where there is no store, the keystore is BACKUP.keys, or what --keys in front of the verb names.
    """
    on = render.screen(context, as_json=as_json)
    given = settings(context)
    with _Progress() as progress:
        found = put_back(
            source,
            store or given.store,
            keys=given.keys,
            by=by,
            discard=discard,
            dry_run=dry_run,
            kek=key_source(),
            progress=progress.show,
        )
    _print(found.to_dict(), on)
    sys.stdout.flush()
    if found.lost:
        complain(f"{found.lost} events of the backup have no key here; `convlog verify` names them")


def _print(said: dict[str, object], on: render.Screen | None) -> None:
    if on is None:
        put_json(said)
        return
    for line in render.tree(said, on):
        say(line)


class _Progress:
    """One line on stderr that is written over, where that is a terminal."""

    def __init__(self) -> None:
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def show(self, what: str, done: int, of: int) -> None:
        """Show how far it is."""
        line = f"{what} {100 * done // of if of else 100} %"
        if sys.stderr.isatty() and line != self._shown:
            self._shown = line
            sys.stderr.write(f"\r{line:<16}")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * 16 + "\r")
            sys.stderr.flush()
