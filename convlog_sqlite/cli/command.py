"""Verbs as typer runs them: errors become exit statuses, and nothing heavy is imported on the way.

typer hands every argument to pydantic, text included, and importing pydantic takes longer than the append
that waits for it (measured: 85 of 165 ms). All arguments of this command are text, flags and counts, so
they are taken as they come. Where typer has no such step, nothing changes.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from convlog_sqlite import ConvlogError
from convlog_sqlite.cli.failing import DONE, INTERRUPTED, UNUSABLE, complain, status_of

# click's class. typer carries its own copy of click since 0.25 and gives it no public name.
USAGE_ERROR: Final[type[Exception]] = typer.BadParameter.__mro__[1]

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


class Verbs(TyperGroup):
    """All verbs: the one place where errors become exit statuses."""

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
