"""Exit statuses, and the one line that stands on stderr when something did not work.

    0 done                         4 the store cannot be used
    1 a check found faults,        5 asked-for content is not readable
      or nobody answered           6 erasure incomplete
    2 usage                        130 interrupted
    3 refused, nothing written

What is expected ends in a line and one of these. Anything else is a defect and shows its traceback.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn

import typer

from convlog_sqlite import (
    ConvlogError,
    ImportFailed,
    NoReply,
    NotPerformed,
    PayloadUnreadable,
    ProjectionFailed,
    Refused,
    StoreError,
)

DONE: Final = 0
FAULTS: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
UNUSABLE: Final = 4
UNREADABLE: Final = 5
INCOMPLETE: Final = 6
INTERRUPTED: Final = 130

# click's class. typer carries its own copy of click in newer versions and gives it no public name.
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]

_STATUSES: Final[tuple[tuple[type[ConvlogError], int], ...]] = (
    (Refused, REFUSED),
    (NoReply, FAULTS),
    (NotPerformed, REFUSED),
    (ProjectionFailed, REFUSED),
    (ImportFailed, REFUSED),
    (StoreError, UNUSABLE),
    (PayloadUnreadable, UNREADABLE),
)


def status_of(error: ConvlogError) -> int:
    """The exit status that `error` ends in."""
    return next(status for kind, status in _STATUSES if isinstance(error, kind))


def complain(text: str) -> None:
    """Say one line on stderr, whatever characters are in it."""
    shown = "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text)
    print(f"convlog: {shown}", file=sys.stderr)


def fail(status: int, text: str) -> NoReturn:
    """Say why, and end with `status`."""
    complain(text)
    raise typer.Exit(status)
