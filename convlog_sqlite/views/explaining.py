"""Why an event is in a slice or out of it, rule by rule."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite.database import Connection
from convlog_sqlite.events import Event
from convlog_sqlite.store import labels
from convlog_sqlite.store.preparing import flags
from convlog_sqlite.views.compiling import Asked
from convlog_sqlite.views.definition import Select
from convlog_sqlite.vocabulary import (
    ABOUT_A_PERSON,
    ANY_PURPOSE,
    DEFAULT_SENSITIVITY,
    SENSITIVITIES,
    UNLABELLED,
)

_MOST_LISTED: Final = 20  # names in a rule
_NAMES: Final = {code: name for name, code in SENSITIVITIES.items()}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a slice does with an event. `because` are the rules that decide: what selects it, or what keeps it out."""

    view: str
    shown: bool
    because: tuple[str, ...]
    withheld: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON values."""
        found: dict[str, Any] = {"view": self.view, "shown": self.shown, "because": list(self.because)}
        return found | ({"withheld": list(self.withheld)} if self.withheld else {})


def explain(
    connection: Connection, asked: Asked, session: int, event: Event, withheld: tuple[str, ...]
) -> Explanation:
    """What the slice does with an event of the session of number `session`, and why."""
    kept_back = tuple(_ceilings(connection, asked, session, event))
    view = asked.view
    if kept_back:
        return Explanation(view.label, shown=False, because=kept_back)
    if not view.selects:
        return Explanation(view.label, True, ("the view selects every event",), withheld)
    misses = []
    for number, select in enumerate(view.selects):
        missing = list(_missing(select, asked, event))
        if not missing:
            said = f"/selects/{number} selects it: {_said(select)}"
            return Explanation(view.label, True, (said,), withheld)
        misses.append(f"/selects/{number} does not: {'; '.join(missing)}")
    return Explanation(view.label, shown=False, because=tuple(misses))


def _ceilings(connection: Connection, asked: Asked, session: int, event: Event) -> Iterator[str]:
    view, said = asked.view, flags(event.envelope)
    label = labels.said_of(connection, session, event.seq)
    highest = max(
        0 if label is None else label.sensitivity, SENSITIVITIES[event.sensitivity or DEFAULT_SENSITIVITY]
    )
    if highest > SENSITIVITIES[view.max_sensitivity]:
        yield f"it is {_NAMES[highest]}, the view shows nothing above {view.max_sensitivity}"
    if not view.people and (said & ABOUT_A_PERSON or (label is not None and label.person)):
        yield "it is about a person"
    if not view.unlabelled and said & UNLABELLED and label is None:
        yield "it was imported, and nobody said how sensitive it is"
    if event.purposes and asked.purpose != ANY_PURPOSE and asked.purpose not in event.purposes:
        purpose = "no purpose was given" if asked.purpose is None else f"the purpose is {asked.purpose}"
        yield f"it may be used for {', '.join(event.purposes)} only, and {purpose}"


def _missing(select: Select, asked: Asked, event: Event) -> Iterator[str]:
    """What a select asks for that the event is not."""
    for key, wanted in (
        ("thread_id", select.threads), ("agent", select.agents), ("role", select.roles), ("type", select.types),
        ("kind", select.kinds), ("performative", select.performatives),
    ):  # fmt: skip
        if wanted and getattr(event, key) not in wanted:
            yield f"its {key} is not {_listed(wanted)}"
    tasks = set(select.tasks) | (asked.own if select.own else set())
    tasks |= asked.awaited if select.dependencies else set()
    if (select.tasks or select.own or select.dependencies) and event.task_id not in tasks:
        yield f"its task is not {_listed(tasks) or 'one of the reader, which has none'}"
    if select.addressed and not asked.addressed & set(event.to):
        yield "it is not addressed to the reader"
    if select.authored and event.agent != asked.reader:
        yield "the reader did not write it"
    if select.effects and event.effect is None:
        yield "it is no step of an effect"


def _listed(names: Collection[str]) -> str:
    """Some names, as many as are worth reading."""
    more = len(names) - _MOST_LISTED
    said = [*sorted(names)[:_MOST_LISTED], *([f"one of {more:,} more"] if more > 0 else [])]
    return " or ".join(said)


def _said(select: Select) -> str:
    said = [f"{key} {_listed(names)}" for key, names in (
        ("task", select.tasks), ("thread", select.threads), ("agent", select.agents), ("role", select.roles),
        ("type", select.types), ("kind", select.kinds), ("performative", select.performatives),
    ) if names]  # fmt: skip
    flags_ = {
        "a task of the reader": select.own, "a task that the reader's wait for": select.dependencies,
        "addressed to the reader": select.addressed, "written by the reader": select.authored,
        "a step of an effect": select.effects,
    }  # fmt: skip
    return ", ".join(said + [text for text, given in flags_.items() if given]) or "every event"
