"""From a definition to probes: names become numbers, what the reader is and has takes its place, an index is chosen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection
from convlog_sqlite.store.names import Names
from convlog_sqlite.store.probing import Ceiling, Compiled, Probe, Tests
from convlog_sqlite.store.reading import EFFECT_FACET, EFFECT_WORD, FACETS, PROPOSAL_FACET, correlation_digest
from convlog_sqlite.views.definition import Select, View
from convlog_sqlite.vocabulary import (
    ABOUT_A_PERSON,
    ANY_PURPOSE,
    FOR_SOME_PURPOSES,
    PROPOSALS,
    SENSITIVITIES,
    TYPES,
    UNLABELLED,
)

_MOST_WALKS: Final = 64  # of one select: a name each; where there are more, the events themselves are walked
_FEW_WALKS: Final = 1  # more than with a walk for each select: no longer than a look at the nearest events
_NOBODY: Final = 0  # the number of no name

_Sets = dict[str, frozenset[str] | None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a view is compiled for. `addressed` are the names that reach the reader, None without one."""

    view: View
    purpose: str | None
    reader: str | None
    addressed: frozenset[str]
    own: frozenset[str]
    awaited: frozenset[str]


def compiled(connection: Connection, names: Names, asked: Asked, filters: Mapping[str, str]) -> Compiled:
    """The probes of a view, narrowed by filters. A name that nobody used matches nothing."""
    view = asked.view
    probes: list[Probe] = []
    near: list[Probe] = []
    for select in view.selects or (Select(),):
        sets = _narrowed(_sets(select, asked), filters)
        if sets is not None:
            every, walks = _probes(_Numbers(connection, names), select, sets, filters)
            probes += walks
            near += [every] if len(walks) > 1 else walks
    probes, near = list(dict.fromkeys(probes)), list(dict.fromkeys(near))
    near = near if len(probes) > len(near) + _FEW_WALKS else []
    return Compiled(probes, near, ceiling(connection, names, view, asked.purpose))


def ceiling(connection: Connection, names: Names, view: View, purpose: str | None) -> Ceiling:
    """What a view keeps back, whatever selects it, from who reads for a purpose."""
    flags = (0 if view.people else ABOUT_A_PERSON) | (0 if view.unlabelled else UNLABELLED)
    flags |= 0 if purpose == ANY_PURPOSE else FOR_SOME_PURPOSES
    number = None if purpose is None else names.find(connection, purpose)
    return Ceiling(SENSITIVITIES[view.max_sensitivity], flags, number or _NOBODY)


def _sets(select: Select, asked: Asked) -> _Sets:
    """What each column may hold, as names; None: anything."""
    tasks = set(select.tasks)
    if select.own:
        tasks |= asked.own
    if select.dependencies:
        tasks |= asked.awaited
    agents = set(select.agents)
    if select.authored:
        agents = agents & {asked.reader or ""} if agents else {asked.reader or ""}
    asks_for_tasks = bool(select.tasks) or select.own or select.dependencies
    return {
        "type": frozenset(select.types) or None,
        "agent": frozenset(agents) if select.agents or select.authored else None,
        "role": frozenset(select.roles) or None,
        "task_id": frozenset(tasks) if asks_for_tasks else None,
        "thread_id": frozenset(select.threads) or None,
        "kind": frozenset(select.kinds) or None,
        "performative": frozenset(select.performatives) or None,
        "addressed": asked.addressed if select.addressed else None,
    }


def _narrowed(sets: _Sets, filters: Mapping[str, str]) -> _Sets | None:
    """The sets with a caller's filters; None where that leaves nothing."""
    found = dict(sets)
    for key, wanted in filters.items():
        if key in found:
            before = found[key]
            found[key] = frozenset({wanted}) if before is None or wanted in before else frozenset()
    return None if any(allowed is not None and not allowed for allowed in found.values()) else found


class _Numbers:
    """Names as numbers."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection, self._names = connection, names

    def of(self, texts: Iterable[str]) -> list[int]:
        found = (self._names.find(self._connection, text) for text in texts)
        return sorted(number for number in found if number is not None)

    def one(self, text: str) -> int:
        return self._names.find(self._connection, text) or _NOBODY


def _probes(
    numbers: _Numbers, select: Select, sets: _Sets, filters: Mapping[str, str]
) -> tuple[Probe, list[Probe]]:
    """The walk of a select over the events themselves, and the walks by an index that find the same.

    No walks where it takes nothing, since nobody used a name that it asks for.
    """
    lists = {
        key: None if names is None else numbers.of(names) for key, names in sets.items() if key != "type"
    }
    types = sets["type"]
    bits = 0 if types is None else sum(1 << TYPES[name] for name in types)
    walk = _walk(numbers, select, sets, lists)
    tests: dict[str, Any] = {
        field: strictjson.dump(found).decode()
        for key, field in _FIELDS.items()
        if (found := lists[key]) is not None
    }
    tests |= {key: numbers.one(filters[key]) for key in ("tool", "to") if key in filters}
    if "correlation_id" in filters:
        tests["correlation"] = correlation_digest(filters["correlation_id"])
    every = Probe(bits, int(select.effects), (), Tests(**tests))
    if any(names is not None and not names for names in lists.values()):
        return every, []
    if walk is None:
        return every, [every]
    key, facet, walked = walk
    tests.pop(_FIELDS.get(key, ""), None)  # what is walked needs no test
    rest = Tests(**tests)
    return every, [Probe(bits, int(select.effects), (facet, name), rest) for name in walked]


_FIELDS: Final = {
    "agent": "agents", "role": "roles", "task_id": "tasks", "thread_id": "threads", "kind": "kinds",
    "performative": "performatives", "addressed": "recipients",
}  # fmt: skip


def _walk(
    numbers: _Numbers, select: Select, sets: _Sets, lists: Mapping[str, Collection[int] | None]
) -> tuple[str, int, Collection[int]] | None:
    """What to walk: the key, the facet and the names; the most selective first. None: the events themselves."""
    choices: list[tuple[str, int, Collection[int] | None]] = [
        ("addressed", FACETS["to"], lists["addressed"]),
        ("task_id", FACETS["task_id"], lists["task_id"]),
        ("thread_id", FACETS["thread_id"], lists["thread_id"]),
        ("effects", EFFECT_FACET, numbers.of([EFFECT_WORD]) if select.effects else None),
    ]
    performatives = sets["performative"]
    if performatives is not None and performatives <= PROPOSALS:
        choices.append(("performative", PROPOSAL_FACET, lists["performative"]))
    choices += [("kind", FACETS["kind"], lists["kind"]), ("agent", FACETS["agent"], lists["agent"])]
    for key, facet, found in choices:
        if found is not None and len(found) <= _MOST_WALKS:
            return key, facet, found
    return None
