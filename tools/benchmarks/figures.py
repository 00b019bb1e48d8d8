"""Samples, and what is made of them.

A series is many timings of one call of one contender, taken in rounds. Two series that were taken in the
same rounds are compared round by round, median with median, and the median of that is the figure: what
else the machine did meanwhile met both.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(slots=True)
class Series:
    """Timings in microseconds, by round. `per` is how many events one sample stands for: each is divided by it."""

    label: str
    per: int = 1
    rounds: list[list[float]] = field(default_factory=list)

    def take(self, calls: Sequence[Callable[[], Any]], runner: asyncio.Runner | None = None) -> None:
        """Time each call once: one round. With a runner they are awaited, in its loop, which runs all the while."""
        gc.collect()
        taken = _timed(calls) if runner is None else runner.run(_timed_awaiting(calls))
        self.rounds.append([nanoseconds / 1000 / self.per for nanoseconds in taken])

    @property
    def samples(self) -> list[float]:
        """All of them, ascending."""
        return sorted(sample for taken in self.rounds for sample in taken)

    def quantile(self, share: float) -> float | None:
        """The sample below which `share` of all lie (nearest rank); None where there are too few to say."""
        samples = self.samples
        if len(samples) * (1 - share) < 1:
            return None
        return samples[math.ceil(share * len(samples)) - 1]

    @property
    def median(self) -> float:
        """The median of all samples."""
        return median(self.samples)

    @property
    def rate(self) -> float:
        """Events a second over the whole time that was taken."""
        samples = self.samples
        return 1e6 * len(samples) / sum(samples)

    def medians(self) -> list[float]:
        """One for each round."""
        return [median(taken) for taken in self.rounds]


def _timed(calls: Sequence[Callable[[], Any]]) -> list[int]:
    clock, taken = time.perf_counter_ns, []
    for call in calls:
        started = clock()
        call()
        taken.append(clock() - started)
    return taken


async def _timed_awaiting(calls: Sequence[Callable[[], Any]]) -> list[int]:
    clock, taken = time.perf_counter_ns, []
    for call in calls:
        started = clock()
        await call()
        taken.append(clock() - started)
    return taken


def ratios(series: Series, base: Series) -> list[float]:
    """By round: how many times `base` the series takes."""
    return [mine / theirs for mine, theirs in zip(series.medians(), base.medians(), strict=True)]


def ratio(series: Series, base: Series) -> float:
    """How many times `base` the series takes."""
    return median(ratios(series, base))


def difference(series: Series, base: Series) -> float:
    """How many microseconds the series takes beyond `base`."""
    return median(mine - theirs for mine, theirs in zip(series.medians(), base.medians(), strict=True))


@dataclass(frozen=True, slots=True)
class Group:
    """Series that stand together in the table. `base`, one of them, is what the others are compared with."""

    title: str
    series: tuple[Series, ...]
    base: Series | None = None
    rated: bool = False  # whether events a second say something


class Recorder:
    """All groups of one run, in the order of the table."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.groups: list[Group] = []
        self.numbers: dict[str, float] = {}
        self.notes: list[str] = []  # how to read them
        self.say = say

    def add(
        self, title: str, series: Sequence[Series], base: Series | None = None, *, rated: bool = False
    ) -> None:
        """One group more; series without samples are left out."""
        taken = tuple(found for found in series if found.rounds)
        if taken:
            self.groups.append(Group(title, taken, base if base in taken else None, rated))
