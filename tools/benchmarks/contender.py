"""What a log must offer to be measured beside the others.

Input is made ready by `prepare`, which is not timed: everybody is handed what its interface takes. What
was prepared is appended once, in the order in which it was prepared.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

from benchmarks.workload import Message, Workload

APPEND: Final = "append"
APPEND_MANY: Final = "append_many"
TAIL: Final = "tail"
EXPORT: Final = "export"

SESSION: Final = "bench"
FILL_BATCH: Final = 1000
PAGE: Final = 500  # rows in one snapshot of an export


class Contender(ABC):
    """One log with one session, in a directory of its own. Made empty, filled, measured, closed."""

    name: ClassVar[str]
    # Another may leave out what it does not offer, or what says nothing new of it.
    takes_part: ClassVar[frozenset[str]] = frozenset({APPEND, APPEND_MANY, TAIL, EXPORT})
    peer: ClassVar[bool] = False  # a peer is compared with convlog, everybody else with the floor
    fewer_tails: ClassVar[int] = 1  # how many times fewer tails of it are enough
    # Where `append`, `append_many` and `tail` are awaited, if they are to be awaited.
    runner: asyncio.Runner | None = None

    @abstractmethod
    def __init__(self, directory: Path, durability: str, workload: Workload) -> None:
        """`durability` is `full` (each commit synced) or `normal`."""

    @abstractmethod
    def prepare(self, messages: Sequence[Message]) -> Any:
        """The messages as `append` (of one) and `append_many` take them."""

    @abstractmethod
    def append(self, prepared: Any) -> None:
        """Record one message in a commit of its own."""

    @abstractmethod
    def append_many(self, prepared: Any) -> None:
        """Record messages in one commit."""

    @abstractmethod
    def tail(self, count: int) -> int:
        """Read and parse the last `count` events; how many there were."""

    def export(self, file: BinaryIO) -> int:
        """Write every event as a line of JSON; how many there were. Asked only of those whose `takes_part` has it."""
        raise LookupError(f"{self.name} does not export to {file.name}")

    @abstractmethod
    def close(self) -> None:
        """Close every file."""

    def fill(self, workload: Workload, count: int) -> None:
        """Record the first `count` messages."""
        for start in range(0, count, FILL_BATCH):
            self.append_many(self.prepare(workload.batch(start, min(FILL_BATCH, count - start))))
