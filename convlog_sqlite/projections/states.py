"""State: what stands for each state key, by the same rule that judges an append (`store.states`).

Where agents decided apart, every value stands, until one supersedes all of them. A value that replaced
another agent's without saying so is marked `over`; the steps of a task's life are not, they are meant to.
"""

from __future__ import annotations

from typing import Any, Final

from convlog_sqlite.events import Event
from convlog_sqlite.projections.projection import Look, Projection, said_by
from convlog_sqlite.store.states import Head, fold

_LIFECYCLE: Final = ("task-", "tilldone-")
_UNKNOWN: Final = -1  # superseded, but not what stands here


def fold_heads(state: dict[str, Any], event: Event) -> None:
    """Let a mutation stand. A head is [seq, id, agent, seq of the one it replaced]."""
    said = event.envelope
    key = said.get("state_key")
    if key is None:
        return
    before = state.get(key, ())
    seq, event_id, agent = said["seq"], said["id"], said["agent"]
    if not before:
        state[key] = [[seq, event_id, agent, None]]
        return
    by_id = {head[1]: head[0] for head in before}
    superseded = {by_id.get(target, _UNKNOWN) for target in said.get("links", {}).get("supersedes", ())}
    found = fold(
        [Head(place, b"", name, over) for place, _, name, over in before],
        Head(seq, b"", agent),
        superseded,
    )
    ids = {head[0]: head[1] for head in before} | {seq: event_id}
    state[key] = [[head.pos, ids[head.pos], head.agent, _over(said, head, seq)] for head in found]


def _over(said: dict[str, Any], head: Head, seq: int) -> int | None:
    return None if head.pos == seq and said["kind"].startswith(_LIFECYCLE) else head.over


def render_heads(state: dict[str, Any], look: Look) -> dict[str, Any]:
    """A value for each key: {"value", "kind", "by", "seq", "event"}, or a `conflict` of several."""
    heads = [head for found in state.values() for head in found]
    events = look.events([head[0] for head in heads] + [head[3] for head in heads if head[3] is not None])

    def show(head: list[Any]) -> dict[str, Any]:
        event = events[head[0]]
        shown = look.shown(event) | {"kind": event.kind} | said_by(event)
        if head[3] is not None:
            shown["over"] = said_by(events[head[3]])
        return shown

    return {
        key: show(found[0]) if len(found) == 1 else {"conflict": [show(head) for head in found]}
        for key, found in state.items()
    }


def conflicts(state: dict[str, Any]) -> dict[str, Any]:
    """The keys for which more than one value stands, and who decided each."""
    return {
        key: [{"by": agent, "seq": seq, "event": event_id} for seq, event_id, agent, _ in found]
        for key, found in state.items()
        if len(found) > 1
    }


STATE: Final = Projection("state", fold_heads, render=render_heads, keyed=True, reads_content=False)
