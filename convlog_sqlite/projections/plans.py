"""Plans and decisions: the plan that stands, and what was decided and not superseded since.

A plan is that of its state key, else of its task, else the session's. Decisions with a state key stand as
`state` has them; those without stand until one names them in `links.supersedes`.
"""

from __future__ import annotations

from typing import Any, Final

from convlog_sqlite.events import Event
from convlog_sqlite.projections.projection import Look, Projection, said_by
from convlog_sqlite.projections.states import fold_heads, render_heads

_PLAN: Final = "plan-set"
_DECISION: Final = "decision-made"
_LOOSE: Final = 1000  # decisions without a state key: the newest


def _fold(state: dict[str, Any], event: Event) -> None:
    said = event.envelope
    if said["kind"] == _PLAN:
        state["plans"][said.get("state_key", said.get("task_id", ""))] = said["seq"]
    elif "state_key" in said:
        fold_heads(state["keyed"], event)
    else:
        superseded = said.get("links", {}).get("supersedes", ())
        loose = [item for item in state["loose"] if item[1] not in superseded]
        loose.append([said["seq"], said["id"]])
        state["older"] += max(0, len(loose) - _LOOSE)
        state["loose"] = loose[-_LOOSE:]


def _render(state: dict[str, Any], look: Look) -> dict[str, Any]:
    events = look.events([*state["plans"].values(), *(seq for seq, _ in state["loose"])])

    def show(seq: int) -> dict[str, Any]:
        return look.shown(events[seq]) | said_by(events[seq])

    shown: dict[str, Any] = {
        "plans": {key: show(seq) for key, seq in state["plans"].items()},
        "decisions": render_heads(state["keyed"], look),
        "other_decisions": [show(seq) for seq, _ in state["loose"]],
    }
    return shown | ({"older": state["older"]} if state["older"] else {})


PLANS: Final = Projection(
    "plans",
    _fold,
    initial={"plans": {}, "keyed": {}, "loose": [], "older": 0},
    render=_render,
    kinds=(_PLAN, _DECISION),
    reads_content=False,
)
