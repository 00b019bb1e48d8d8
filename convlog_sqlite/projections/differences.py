"""A state that somebody keeps beside the log, held against what the log gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite.drafts import ABSENT, Absent
from convlog_sqlite.strictjson import escape, same

DIFFERS: Final = "differs"
ONLY_GIVEN: Final = "only-given"
ONLY_LOGGED: Final = "only-logged"
CONFLICT: Final = "conflict"
UNREADABLE: Final = "unreadable"


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One place at which a given state is not what the log gives.

    `pointer` is a JSON pointer to it, the first step a state key. `what` is `differs`, `only-given`,
    `only-logged`, `conflict` (several values stand, `logged` lists them) or `unreadable` (a value stands and
    cannot be read). `given` and `logged` are the values, ABSENT where there is none.
    """

    pointer: str
    what: str
    given: Any = ABSENT
    logged: Any = ABSENT

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON values; what is absent is left out."""
        said = {"pointer": self.pointer, "what": self.what, "given": self.given, "logged": self.logged}
        return {key: item for key, item in said.items() if not isinstance(item, Absent)}


def from_values(given: Any, state: Mapping[str, Any]) -> Iterator[Discrepancy]:
    """A given map of state keys to values, against the projection `state`.

    What stands without a value (a step of a task) is a difference only where a value is given for it.
    """
    given = given if isinstance(given, Mapping) else {"": given}
    for key in dict.fromkeys([*given, *state]):
        pointer = "/" + escape(key)
        said, found = given.get(key, ABSENT), state.get(key, {})
        if "conflict" in found:
            values = [head.get("value") for head in found["conflict"]]
            yield Discrepancy(pointer, CONFLICT, said, values)
        elif "redacted" in found or "unreadable" in found:
            yield Discrepancy(pointer, UNREADABLE, said)
        else:
            yield from between(said, found.get("value", ABSENT), pointer)


def between(given: Any, logged: Any, pointer: str = "") -> Iterator[Discrepancy]:
    """Every place at which two JSON values are not the same."""
    if isinstance(given, Absent) or isinstance(logged, Absent):
        if not isinstance(given, Absent):
            yield Discrepancy(pointer, ONLY_GIVEN, given)
        elif not isinstance(logged, Absent):
            yield Discrepancy(pointer, ONLY_LOGGED, logged=logged)
    elif isinstance(given, dict) and isinstance(logged, dict):
        for key in dict.fromkeys([*given, *logged]):
            yield from between(given.get(key, ABSENT), logged.get(key, ABSENT), f"{pointer}/{escape(key)}")
    elif isinstance(given, list) and isinstance(logged, list):
        for number in range(max(len(given), len(logged))):
            here, there = (side[number] if number < len(side) else ABSENT for side in (given, logged))
            yield from between(here, there, f"{pointer}/{number}")
    elif not same(given, logged):
        yield Discrepancy(pointer, DIFFERS, given, logged)
