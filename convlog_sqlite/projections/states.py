"""State: what stands for each state key, by the same rule that judges an append (`store.states`).

Where agents decided apart, every value stands, until one supersedes all of them. A value that replaced
another agent's without saying so is marked `over`; the steps of a task's life are not, they are meant to.
"""

from __future__ import annotations

from typing import Any, Final

from convlog_sqlite.events import Event
from convlog_sqlite.projections.projection import Look, Projection
from convlog_sqlite.store.states import Head, fold

_LIFECYCLE: Final = ("task-", "tilldone-")
_UNKNOWN: Final = -1  # superseded, but not what stands here


def fold_heads(state: dict[str, Any], event: Event) -> None:
    """Let a mutation stand. A head is [seq, id, agent, kind, and seq, id and agent of the one it replaced]."""
    said = event.envelope
    key = said.get("state_key")
    if key is None:
        return
    before = state.get(key, ())
    new = [said["seq"], said["id"], said["agent"], said["kind"], None]
    if not before:
        state[key] = [new]
        return
    by_id = {head[1]: head[0] for head in before}
    superseded = {by_id.get(target, _UNKNOWN) for target in said.get("links", {}).get("supersedes", ())}
    standing = fold([Head(head[0], b"", head[2]) for head in before], Head(new[0], b"", new[2]), superseded)
    heads = {head[0]: head for head in before}
    over = standing[-1].over
    if over is not None and not new[3].startswith(_LIFECYCLE):
        new[4] = heads[over][:3]
    state[key] = [new if head.pos == new[0] else heads[head.pos] for head in standing]


def render_heads(state: dict[str, Any], look: Look) -> dict[str, Any]:
    """A value for each key: {"value", "kind", "by", "seq", "event"}, or a `conflict` of several."""
    events = look.events(head[0] for heads in state.values() for head in heads)

    def show(head: list[Any]) -> dict[str, Any]:
        seq, event_id, agent, kind, over = head
        shown = look.shown(events[seq]) | {"kind": kind, "by": agent, "seq": seq, "event": event_id}
        if over is not None:
            shown["over"] = {"by": over[2], "seq": over[0], "event": over[1]}
        return shown

    return {
        key: show(found[0]) if len(found) == 1 else {"conflict": [show(head) for head in found]}
        for key, found in state.items()
    }


def conflicts(state: dict[str, Any]) -> dict[str, Any]:
    """The keys for which more than one value stands, and who decided each."""
    return {
        key: [{"by": agent, "seq": seq, "event": event_id} for seq, event_id, agent, *_ in found]
        for key, found in state.items()
        if len(found) > 1
    }


STATE: Final = Projection("state", fold_heads, render=render_heads, keyed=True, reads_content=False)
