"""What a reader remembers while it walks through a transcript: maps with a fixed bound.

All of them full hold about 20 MB. Beyond a bound the entry written longest ago is forgotten:

    MAX_UUIDS     uuids seen. An echo from further back is emitted again, under the same key.
    MAX_IDS       ids of calls, for the figures. A pair that lies further apart is counted as two halves.
    MAX_LINES     records without uuid. The same line from further back gets the key of its first occurrence.
    MAX_PARENTS   dropped records and records of several events. A parent from further back may not resolve.
    MAX_CALLS     calls without a result. A result that comes later is an orphan.
    MAX_ANSWERED  calls with a result. A hook message that comes later has its chain parent instead.
    MAX_SPAWNS    spawning calls. A sub-agent that begins later is not linked.
    MAX_RESPONSES API responses. A line of one from further back repeats its usage.
    MAX_THREADS   threads. A thread that is silent for longer begins anew, unlinked.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from convlog_sqlite.adapters.claude_code.counting import ImportCounts
from convlog_sqlite.vocabulary import MAX_INTEGER

MAX_UUIDS: Final = 32_768
MAX_IDS: Final = 16_384
MAX_LINES: Final = 16_384
MAX_PARENTS: Final = 16_384
MAX_CALLS: Final = 4_096
MAX_ANSWERED: Final = 1_024
MAX_SPAWNS: Final = 4_096
MAX_RESPONSES: Final = 4_096
MAX_THREADS: Final = 1_024

_CALLED: Final = 1
_ANSWERED: Final = 2

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedMap(Generic[Key, Value]):
    """A map of at most `limit` entries; `forget` is told the value of each entry that had to go."""

    def __init__(self, limit: int, forget: Callable[[Value], None] | None = None) -> None:
        self._limit = limit
        self._forget = forget
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value, None when it is unknown or forgotten."""
        return self._entries.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Remember, as the newest entry."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            _, gone = self._entries.popitem(last=False)
            if self._forget:
                self._forget(gone)

    def pop(self, key: Key) -> Value | None:
        """The value, which is forgotten."""
        return self._entries.pop(key, None)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[Value]:
        """All values, the oldest first."""
        return list(self._entries.values())


class Tally:
    """Counts uuids and pairs of calls and results. What it keeps of a text is its 64-bit hash."""

    def __init__(self, counts: ImportCounts) -> None:
        self._counts = counts
        self._uuids: BoundedMap[int, int] = BoundedMap(MAX_UUIDS)
        self._repeated: BoundedMap[int, bool] = BoundedMap(MAX_UUIDS)
        self._ids: BoundedMap[int, int] = BoundedMap(MAX_IDS, self._settle)
        self._lines: BoundedMap[int, int] = BoundedMap(MAX_LINES)

    def first_time(self, uuid: str, raw: bytes) -> bool | None:
        """Whether no record had this uuid before; None if one had it, and other bytes."""
        known, new = hash(uuid), hash(raw)
        before = self._uuids.get(known)
        if before is None:
            self._uuids.put(known, new)
            return True
        if known not in self._repeated:
            self._repeated.put(known, True)
            self._counts.dup_uuids += 1
        return False if before == new else None

    def occurrence(self, thread: str, raw: bytes) -> int:
        """How often this line came before in its file."""
        key = hash((thread, raw))
        before = self._lines.get(key) or 0
        self._lines.put(key, before + 1)
        return before

    def block(self, block: Any) -> None:
        """Count the call or result that a content block is, if it is one."""
        sort = block.get("type") if isinstance(block, dict) else None
        if sort == "tool_use":
            if not (given := block.get("id")):
                self._counts.calls_without_id += 1
            elif self._mark(given, _CALLED):
                self._counts.tool_calls += 1
        elif sort == "tool_result":
            if not (given := block.get("tool_use_id")):
                self._counts.results_without_id += 1
            elif self._mark(given, _ANSWERED):
                self._counts.tool_results += 1

    def close(self) -> None:
        """Settle the pairs that are still remembered: nothing more comes."""
        for state in self._ids.values():
            self._settle(state)
        self._ids = BoundedMap(MAX_IDS, self._settle)

    def _mark(self, given: Any, bit: int) -> bool:
        key = hash(str(given))
        before = self._ids.get(key) or 0
        self._ids.put(key, before | bit)
        return not before & bit

    def _settle(self, state: int) -> None:
        if state == _CALLED:
            self._counts.unanswered_calls += 1
        elif state == _ANSWERED:
            self._counts.orphan_results += 1


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: the key of its event, and what its result takes over. `spawns` is the type of agent."""

    key: str
    tool: str
    agent: str
    correlation: str | None
    spawns: str | None


class Calls:
    """Tool calls by the id that the API gave them."""

    def __init__(self) -> None:
        self._open: BoundedMap[str, Call] = BoundedMap(MAX_CALLS)
        self._answered: BoundedMap[str, Call] = BoundedMap(MAX_ANSWERED)

    def add(self, given: str, call: Call) -> None:
        """A call, open until its result comes."""
        self._open.put(given, call)

    def answer(self, given: Any) -> tuple[Call | None, bool]:
        """The call that this id names, and whether it still waited for its result, which it now has."""
        if not isinstance(given, str):
            return None, False
        if (call := self._open.pop(given)) is not None:
            self._answered.put(given, call)
            return call, True
        return self._answered.get(given), False

    def find(self, given: Any) -> Call | None:
        """The call that this id names, open or answered."""
        if not isinstance(given, str):
            return None
        return self._open.get(given) or self._answered.get(given)


class Spawns:
    """Which call started which sub-agent."""

    def __init__(self) -> None:
        self._by_use: BoundedMap[str, Call] = BoundedMap(MAX_SPAWNS)
        self._by_prompt: BoundedMap[int, Call] = BoundedMap(MAX_SPAWNS)
        self._by_agent: BoundedMap[str, Call] = BoundedMap(MAX_SPAWNS)

    def add(self, use: str, call: Call, prompt: Any) -> None:
        """A call that starts a sub-agent with `prompt`."""
        self._by_use.put(use, call)
        if isinstance(prompt, str) and prompt:
            self._by_prompt.put(hash(prompt.strip()), call)

    def bind(self, agent: Any, call: Call | None) -> None:
        """`call` started the sub-agent with the id `agent`."""
        if isinstance(agent, str) and call is not None:
            self._by_agent.put(agent, call)

    def find(self, *, use: Any = None, agent: Any = None, prompt: Any = None) -> Call | None:
        """The call, by the first of these that is known."""
        found = self._by_use.get(use) if isinstance(use, str) else None
        if found is None and isinstance(agent, str):
            found = self._by_agent.get(agent)
        if found is None and isinstance(prompt, str):
            found = self._by_prompt.get(hash(prompt.strip()))
        return found


class Usage:
    """Figures of API responses, so that the sum over all events is what each response cost, once."""

    def __init__(self) -> None:
        self._told: BoundedMap[tuple[Any, ...], dict[str, Any]] = BoundedMap(MAX_RESPONSES)

    def news(self, response: tuple[Any, ...], usage: Any) -> dict[str, Any] | None:
        """What `usage` says beyond what was said of the same response before; None if nothing."""
        if not isinstance(usage, dict) or not usage:
            return None
        if response == (None, None):
            return usage
        before = self._told.get(response)
        self._told.put(response, usage if before is None else _highest(before, usage))
        return usage if before is None else _increase(before, usage) or None


def _highest(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    result = dict(before)
    for key, value in now.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            result[key] = _highest(old, value)
        elif not (_is_number(old) and _is_number(value) and old > value):
            result[key] = value
    return result


def _increase(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The numbers in `now` that grew, as differences, at the same places."""
    result: dict[str, Any] = {}
    for key, value in now.items():
        old = before.get(key)
        if isinstance(value, dict):
            if inner := _increase(old if isinstance(old, dict) else {}, value):
                result[key] = inner
        elif _is_number(value) and value > (old := old if _is_number(old) else 0):
            increase = value - old
            if (
                math.isfinite(increase) and increase <= MAX_INTEGER
            ):  # absurd figures, as from negative ones, are no news
                result[key] = increase
    return result


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(slots=True)
class Thread:
    """A line of work: the main one (`id` None) or a sub-agent's. `spawn` is the call not yet linked to."""

    id: str | None
    agent: str
    spawner: str
    spawn: Call | None = None


@dataclass(slots=True)
class Memory:
    """All of the above for one transcript."""

    tally: Tally
    calls: Calls = field(default_factory=Calls)
    spawns: Spawns = field(default_factory=Spawns)
    usage: Usage = field(default_factory=Usage)
    threads: BoundedMap[str, Thread] = field(default_factory=lambda: BoundedMap(MAX_THREADS))
    roots: BoundedMap[str, str] = field(default_factory=lambda: BoundedMap(MAX_PARENTS))
    dropped: BoundedMap[str, str | None] = field(default_factory=lambda: BoundedMap(MAX_PARENTS))
    last_block: BoundedMap[str, int] = field(default_factory=lambda: BoundedMap(MAX_PARENTS))
