"""Verbs that look after the keystore: keys status, rotate, rekey, export, import, replace-lost."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from convlog_sqlite import KeyChange, KeySource, StoreKeys
from convlog_sqlite.cli import render
from convlog_sqlite.cli.command import Verb
from convlog_sqlite.cli.failing import REFUSED, UNUSABLE, complain, fail
from convlog_sqlite.cli.options import (
    JsonOption,
    StoreOption,
    key_source,
    put_json,
    say,
    settings,
    usage_error,
)
from convlog_sqlite.cli.retention_options import By

keys = typer.Typer(
    add_completion=False,
    help="Look after the keystore: what opens it, a copy of it elsewhere, what to do when it is lost.\n\nThe key-encryption key comes from CONVLOG_KEK_FILE, from what CONVLOG_KEK_COMMAND prints, or from a passphrase in CONVLOG_KEK_PASSPHRASE_FILE; on a terminal a passphrase is asked for. A key is 32 bytes, or 64 hex digits, or base64 of 32 bytes.",
    epilog="Example: convlog keys rotate --key-file ~/.config/convlog.kek --by ops",
)

_USABLE: Final = ("open", "locked")

KeyFile = Annotated[
    str | None, typer.Option("--key-file", metavar="PATH", help="A key, in a file.", show_default=False)
]
KeyCommand = Annotated[
    str | None,
    typer.Option(
        "--key-command", metavar="TEXT", help="A key that a shell command prints.", show_default=False
    ),
]
PassphraseFile = Annotated[
    str | None,
    typer.Option("--passphrase-file", metavar="PATH", help="A passphrase, in a file.", show_default=False),
]
Passphrase = Annotated[
    bool, typer.Option("--passphrase", help="A passphrase, asked for here.", show_default=False)
]
Bare = Annotated[bool, typer.Option("--bare", help="No key at all: whoever has the file has the keys.")]


@keys.command("status", cls=Verb, epilog="Example: convlog keys status")
def status(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Say how the keystore is kept and whether it opens. Ends with status 4 when it cannot be used."""
    on = render.screen(context, as_json=as_json)
    found = _keys(context, store).status()
    if on is None:
        put_json(found)
    else:
        for line in render.tree(found, on):
            say(line)
    if found["state"] not in _USABLE:
        sys.stdout.flush()
        complain(f"{found['path']}: {found['problem']}")
        raise typer.Exit(UNUSABLE)


@keys.command(
    "rotate", cls=Verb, epilog="Example: convlog keys rotate --key-file ~/.config/convlog.kek --by ops"
)
def rotate(
    context: typer.Context,
    by: By,
    key_file: KeyFile = None,
    key_command: KeyCommand = None,
    passphrase_file: PassphraseFile = None,
    passphrase: Passphrase = False,
    bare: Bare = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep the keys under another key or passphrase. Only the header is written; other programs go on.

    What opens the keystore now comes from the environment or is asked for; the new key is given here. Copies of the keystore made before still open with the old key, and have the same master key: see rekey.
    """
    new = _given(key_file, key_command, passphrase_file, asked=passphrase)
    if (new is None) != bare:
        raise usage_error("give one of --key-file, --key-command, --passphrase, --bare", "keys rotate")
    _report(context, _keys(context, store).rotate(new, by=by), as_json=as_json)
    _say_where(new)


@keys.command("rekey", cls=Verb, epilog="Example: convlog keys rekey --key-file new.kek --by ops")
def rekey(
    context: typer.Context,
    by: By,
    key_file: KeyFile = None,
    key_command: KeyCommand = None,
    passphrase_file: PassphraseFile = None,
    passphrase: Passphrase = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the store a new master key, under the key that it has or under another. Nobody may have the store open.

    Copies of the keystore made before die when the key that opens them is destroyed; where they are bare, or the key stays the same, they do not.
    """
    new = _given(key_file, key_command, passphrase_file, asked=passphrase)
    _report(context, _keys(context, store).rekey(by=by, new=new), as_json=as_json)
    _say_where(new)


@keys.command("export", cls=Verb, epilog="Example: convlog keys export /media/usb/log.keys --passphrase")
def export(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", show_default=False, help="A new file.")],
    key_file: KeyFile = None,
    key_command: KeyCommand = None,
    passphrase_file: PassphraseFile = None,
    passphrase: Passphrase = False,
    bare: Bare = False,
    store: StoreOption = None,
) -> None:
    """Write a copy of the keystore, to keep elsewhere, under the key given here or the one that it has.

    It holds the keys of what is erased later: make a new one then, and destroy this one.
    """
    seal = _given(key_file, key_command, passphrase_file, asked=passphrase)
    if seal is not None and bare:
        raise usage_error("a copy is bare or under a key", "--bare")
    _keys(context, store).export(file, seal=seal, bare=bare)


@keys.command("import", cls=Verb, epilog="Example: convlog keys import /media/usb/log.keys --by ops")
def import_(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", show_default=False, help="What `keys export` wrote, or an old copy."),
    ],
    by: By,
    key_file: KeyFile = None,
    key_command: KeyCommand = None,
    passphrase_file: PassphraseFile = None,
    passphrase: Passphrase = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also in place of a keystore that works.", show_default=False)
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a copy of the keystore in place of one that is missing, damaged or older. Nobody may have the store open.

    The key given here opens the file. What the log says was erased is destroyed again.
    """
    opened_by = _given(key_file, key_command, passphrase_file, asked=passphrase, twice=False)
    found = _keys(context, store).import_(file, by=by, opened_by=opened_by, replace=replace)
    _report(context, found, as_json=as_json)


@keys.command("replace-lost", cls=Verb, epilog="Example: convlog keys replace-lost --yes --by ops")
def replace_lost(
    context: typer.Context,
    by: By,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.", show_default=False)] = False,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard", help="Destroy the keystore that is here, whose key is lost.", show_default=False
        ),
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new keystore where the old one is lost for good, and every payload with it. The envelopes stay."""
    found = _keys(context, store, ask=False)
    if not yes:
        if not sys.stdin.isatty():
            raise usage_error("nobody can be asked here; --yes says that the keys are lost for good", "--yes")
        if not typer.confirm(f"No payload of {found.path} will ever be read again. Go on?", err=True):
            fail(REFUSED, "nothing was changed")
    _report(context, found.replace_lost(by=by, discard=discard), as_json=as_json)


def _keys(context: typer.Context, store: str | None, *, ask: bool = True) -> StoreKeys:
    given = settings(context)
    return StoreKeys(store or given.store, keys=given.keys, kek=key_source() if ask else None)


def _given(
    key_file: str | None,
    key_command: str | None,
    passphrase_file: str | None,
    *,
    asked: bool,
    twice: bool = True,
) -> KeySource | None:
    """The key that the options name, None where they name none."""
    sources: list[Any] = []
    if key_file is not None:
        sources.append(KeySource.file(key_file))
    if key_command is not None:
        sources.append(KeySource.command(key_command))
    if passphrase_file is not None:
        sources.append(KeySource.passphrase_file(passphrase_file))
    if asked:
        if not sys.stdin.isatty():
            raise usage_error("nobody can be asked here; --passphrase-file reads it", "--passphrase")
        sources.append(KeySource.passphrase(lambda: _ask(twice=twice)))
    if len(sources) > 1:
        raise usage_error("give one key, not several", "--key-file")
    return sources[0] if sources else None


def _ask(*, twice: bool) -> str:
    said: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=twice, err=True)
    return said


def _report(context: typer.Context, change: KeyChange, *, as_json: bool) -> None:
    on = render.screen(context, as_json=as_json)
    if on is None:
        put_json(change.to_dict())
    else:
        for line in render.tree(change.to_dict(), on):
            say(line)
    sys.stdout.flush()
    if change.missing:
        complain(f"{change.missing} keys that the log uses are lost; `convlog verify` names the events")


def _say_where(new: KeySource | None) -> None:
    """What the caller has to set from now on."""
    if new is None:
        return
    if new.variable is None:
        complain("from now on the passphrase is asked for, or read from CONVLOG_KEK_PASSPHRASE_FILE")
    else:
        complain(f"from now on the store opens with {new.variable} set to what was given here")
