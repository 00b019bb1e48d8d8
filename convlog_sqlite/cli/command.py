"""Verbs as typer runs them: errors become exit statuses, and only what a verb needs is made and imported.

A verb is made when it is named: most calls need one, and making all takes as long as the append that waits.
typer hands every argument to pydantic, text included, whose import takes longer still (measured: 85 of
165 ms). All arguments of this command are text, flags and counts, so they are taken as they come. Where
typer has no such step, nothing changes.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

from convlog_sqlite import ConvlogError
from convlog_sqlite.cli.failing import DONE, INTERRUPTED, UNUSABLE, complain, status_of

LARGEST: Final = 2**53  # of a count or a seq: what JSON carries everywhere
_COERCION: Final = "get_runtime_param"


class _AsItComes:
    """Takes the place of pydantic for text, lists of text, flags and counts."""

    def __init__(self, *, counts: bool) -> None:
        self._counts = counts

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if not self._counts or isinstance(value, int):
            return value
        if not (value.isascii() and value.isdigit() and len(value) <= 16 and int(value) <= LARGEST):
            raise typer.BadParameter(f"{value!r} is not a count", ctx=ctx, param=param)
        return int(value)


def _light(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if hasattr(parameter, _COERCION):
            plain = _AsItComes(counts=parameter.type_descriptor.annotation is int)
            setattr(parameter, _COERCION, lambda plain=plain: plain)
    return parameters


class Verb(TyperCommand):
    """One verb."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Arguments and options, `--help` included."""
        return _light(super().get_params(ctx))


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a verb is, and what the help says beside its own text."""

    module: str
    function: str
    panel: str
    example: str


class _Shelf(Mapping[str, Any]):
    """Verbs by name, each made when it is asked for."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make(name, self._entries[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _make(name: str, entry: Entry) -> Any:
    function = getattr(import_module(f"{__package__}.{entry.module}"), entry.function)
    if isinstance(function, typer.Typer):  # a verb with verbs of its own
        group: Any = typer.main.get_command(function)
        group.name, group.rich_help_panel = name, entry.panel
        return group
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=Verb, rich_help_panel=entry.panel, epilog=f"Example: {entry.example}")(function)
    return typer.main.get_command(alone)


class Verbs(TyperGroup):
    """All verbs: the one place where errors become exit statuses."""

    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast("dict[str, Any]", _Shelf(self.entries))  # it is only read

    def get_params(self, ctx: Any) -> list[Any]:
        """Options that stand in front of the verb."""
        return _light(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. What was printed is known to be written when this returns."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except ConvlogError as error:
            _flush()
            complain(str(error))
            raise typer.Exit(status_of(error)) from None
        except KeyboardInterrupt:
            _flush()
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            raise typer.Exit(_output_failed(error)) from None
        return result


def _flush() -> None:
    """Show what was printed before something else went wrong."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _output_failed(error)


def _output_failed(error: OSError) -> int:
    """The status when standard output takes no more. An OSError of anything else is a defect and raised again.

    The store turns its own into StoreErrors, and files given by the caller are reported where they are read.
    """
    if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF):
        raise error
    # What is still buffered goes nowhere, instead of failing again when the interpreter ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    if error.errno == errno.EPIPE:
        return DONE  # the reader had enough
    complain(f"standard output: {error.strerror}")
    return UNUSABLE
