"""Calls, effects and threads: what runs, what it does outside, in which conversations.

What is over is counted, not kept.
"""

from __future__ import annotations

from typing import Any, Final

from convlog_sqlite.events import Event
from convlog_sqlite.projections.projection import Look, Projection

MAIN_THREAD: Final = ""  # no thread can be called so


def described(said: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Who wrote an event and where it stands, and those of `keys` that it has."""
    return {"by": said["agent"], "seq": said["seq"]} | {key: said[key] for key in keys if key in said}


def fold_call(state: dict[str, Any], event: Event) -> None:
    """A call is open until its result; results are counted by tool and status."""
    said = event.envelope
    if said["type"] == "tool_call":
        state["open"][said["id"]] = described(said, "tool", "task_id", "thread_id")
    elif said["type"] == "tool_result":
        state["open"].pop(said.get("call_id"), None)
        counts = state["answered"].setdefault(said.get("tool", ""), {})
        counts[said["status"]] = counts.get(said["status"], 0) + 1


def fold_effect(state: dict[str, Any], event: Event) -> None:
    """An effect stands from its proposal until it is committed or compensated; then it is counted."""
    said = event.envelope
    effect = said.get("effect")
    if effect is None:
        return
    effect_id, step = effect.get("id", said["id"]), effect["state"]
    if step in ("proposed", "attempted"):
        found = state["standing"].setdefault(effect_id, described(said, "tool", "task_id"))
        found["state"], found["last"] = step, said["seq"]
        if step == "attempted":
            found["worker"] = said["agent"]
        return
    stood = state["standing"].pop(effect_id, None)
    if step == "committed":
        state["committed"] += 1
    else:
        if stood is None:  # it had been committed
            state["committed"] = max(0, state["committed"] - 1)
        outcomes = state["compensated"]
        outcomes[effect["outcome"]] = outcomes.get(effect["outcome"], 0) + 1


def _fold_thread(state: dict[str, Any], event: Event) -> None:
    said = event.envelope
    seq, agent = said["seq"], said["agent"]
    thread = state.setdefault(said.get("thread_id", MAIN_THREAD), {"first": seq, "events": 0, "agents": []})
    thread["last"] = seq
    thread["events"] += 1
    if agent not in thread["agents"]:
        thread["agents"].append(agent)


def listed(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What stands, oldest first, each with the id of its event."""
    return [{"event": event_id} | item for event_id, item in found.items()]


def render_calls(state: dict[str, Any], _look: Look) -> dict[str, Any]:
    """{"open": […], "answered": {tool: {status: count}}}."""
    return {
        "open": listed(state["open"]),
        "answered": {tool: dict(counts) for tool, counts in state["answered"].items()},
    }


def _render_effects(state: dict[str, Any], _look: Look) -> dict[str, Any]:
    return {
        "standing": listed(state["standing"]),
        "committed": state["committed"],
        "compensated": dict(state["compensated"]),
    }


def _render_threads(state: dict[str, Any], _look: Look) -> list[dict[str, Any]]:
    return [
        {"thread": name or None} | thread | {"agents": list(thread["agents"])}
        for name, thread in state.items()
    ]


NO_CALLS: Final[dict[str, Any]] = {"open": {}, "answered": {}}
NO_EFFECTS: Final[dict[str, Any]] = {"standing": {}, "committed": 0, "compensated": {}}

CALLS: Final = Projection(
    "calls",
    fold_call,
    initial=NO_CALLS,
    render=render_calls,
    types=("tool_call", "tool_result"),
    reads_content=False,
)
EFFECTS: Final = Projection(
    "effects", fold_effect, initial=NO_EFFECTS, render=_render_effects, reads_content=False
)
THREADS: Final = Projection("threads", _fold_thread, render=_render_threads, reads_content=False)
