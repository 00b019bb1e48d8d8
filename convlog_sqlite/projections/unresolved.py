"""Approvals, and `open`: all that somebody still has to do something about, in one list.

A request is answered by the first event of another agent in the session that has it as its parent; a
proposal by one that accepts or rejects it. Who takes it back says `cancel`. A call that is a request waits for its
result, whoever gives it, and for nothing else.
"""

from __future__ import annotations

from typing import Any, Final

from convlog_sqlite.events import Event
from convlog_sqlite.projections.projection import Look, Projection
from convlog_sqlite.projections.states import conflicts, fold_heads
from convlog_sqlite.projections.work import (
    NO_CALLS,
    NO_EFFECTS,
    described,
    fold_call,
    fold_effect,
    listed,
)
from convlog_sqlite.vocabulary import ACCEPTANCES, DECISIONS, ROLE_ADDRESS

_ASKING: Final = frozenset({"request", "request-when", "request-whenever", "query-if", "query-ref", "cfp"})
_PROPOSE: Final = "propose"
_CANCEL: Final = "cancel"
_NO_APPROVALS: Final[dict[str, Any]] = {"pending": {}, "accepted": 0, "rejected": 0, "cancelled": 0}


def _fold_approval(state: dict[str, Any], event: Event) -> None:
    said = event.envelope
    performative = said.get("performative")
    pending = state["pending"]
    asked = pending.get(said.get("parent_id"))
    if asked is not None:
        is_maker = asked["by"] == said["agent"]
        if performative in DECISIONS and not is_maker:
            state["accepted" if performative in ACCEPTANCES else "rejected"] += 1
            del pending[said["parent_id"]]
        elif performative == _CANCEL and is_maker:
            state["cancelled"] += 1
            del pending[said["parent_id"]]
    roles = _roles(said)
    if performative == _PROPOSE and roles:
        pending[said["id"]] = described(said, "task_id", "thread_id") | {"roles": roles}


def _roles(said: dict[str, Any]) -> list[str]:
    return [to.removeprefix(ROLE_ADDRESS) for to in said.get("to", ()) if to.startswith(ROLE_ADDRESS)]


def _fold_request(waiting: dict[str, Any], event: Event) -> None:
    said = event.envelope
    performative = said.get("performative")
    asked = waiting.get(said.get("parent_id", ""))
    if asked is not None:
        answers = asked["performative"] != _PROPOSE or performative in DECISIONS
        if answers if asked["by"] != said["agent"] else performative == _CANCEL:
            del waiting[said["parent_id"]]
    asks = performative in _ASKING and said["type"] != "tool_call"
    if asks or (performative == _PROPOSE and not _roles(said)):
        waiting[said["id"]] = described(said, "performative", "to", "task_id", "thread_id")


def _fold_open(state: dict[str, Any], event: Event) -> None:
    fold_call(state["calls"], event)
    fold_effect(state["effects"], event)
    fold_heads(state["heads"], event)
    _fold_approval(state["approvals"], event)
    _fold_request(state["waiting"], event)


def _render_open(state: dict[str, Any], _look: Look) -> list[dict[str, Any]]:
    """One list, oldest first; `open` says what each is."""
    found = [{"open": "call"} | item for item in listed(state["calls"]["open"])]
    found += [
        {"open": "proposal" if item["performative"] == _PROPOSE else "request"} | item
        for item in listed(state["waiting"])
    ]
    found += [{"open": "approval"} | item for item in listed(state["approvals"]["pending"])]
    found += [
        {"open": "effect-in-doubt" if item["state"] == "attempted" else "effect"} | item
        for item in listed(state["effects"]["standing"])
    ]
    found += [
        {"open": "conflict", "state_key": key, "heads": heads, "seq": heads[0]["seq"]}
        for key, heads in conflicts(state["heads"]).items()
    ]
    return sorted(found, key=lambda item: (item["seq"], item["open"]))


def _render_approvals(state: dict[str, Any], _look: Look) -> dict[str, Any]:
    return state | {"pending": listed(state["pending"])}


APPROVALS: Final = Projection(
    "approvals",
    _fold_approval,
    initial=_NO_APPROVALS,
    render=_render_approvals,
    performatives=(_PROPOSE, _CANCEL, *sorted(DECISIONS)),
    reads_content=False,
)
OPEN: Final = Projection(
    "open",
    _fold_open,
    initial={
        "calls": NO_CALLS,
        "effects": NO_EFFECTS,
        "heads": {},
        "approvals": _NO_APPROVALS,
        "waiting": {},
    },
    render=_render_open,
    version=2,
    reads_content=False,
)
