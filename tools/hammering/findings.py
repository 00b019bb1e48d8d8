"""What a part of the run measured, and what it found wrong."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_STARTED: Final = time.monotonic()
_MOST_SHOWN: Final = 20


@dataclass(slots=True)
class Findings:
    """Figures in the order in which they were taken, and faults."""

    part: str
    figures: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def figure(self, name: str, value: str) -> None:
        """Note what was measured."""
        self.figures.append((name, value))

    def expect(self, ok: object, otherwise: str) -> None:
        """Note a fault, `otherwise`, unless `ok`."""
        if not ok:
            self.faults.append(otherwise)
            self.say(f"FAULT {otherwise}")

    def say(self, what: str) -> None:
        """Progress, on stderr."""
        print(f"{time.monotonic() - _STARTED:6.1f} s  {self.part}: {what}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Run:
    """How to run a part: where, how much, and from which seed."""

    directory: Path
    seed: int
    short: bool
    seconds: float
    events: int


def table(found: list[Findings]) -> str:
    """Everything as a Markdown table, faults below it."""
    rows = [("part", "what", "measured"), ("---", "---", "---")]
    for part in found:
        rows += [(part.part, name, value) for name, value in part.figures]
        rows.append((part.part, "faults", str(len(part.faults)) if part.faults else "none"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    for part in found:
        lines += [f"FAULT {part.part}: {fault}" for fault in part.faults[:_MOST_SHOWN]]
        if len(part.faults) > _MOST_SHOWN:
            lines.append(f"FAULT {part.part}: and {len(part.faults) - _MOST_SHOWN} more")
    return "\n".join(lines)


def milliseconds(seconds: float) -> str:
    """A duration for the table."""
    return f"{seconds * 1000:.1f} ms"


def megabytes(count: float) -> str:
    """A size for the table."""
    return f"{count / (1 << 20):.1f} MiB"
