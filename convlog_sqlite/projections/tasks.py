"""Tasks: how far each is, who has it, what it waits for.

A table of the store says which kinds of mutation mean what; `log.set_task_kind` adds a harness's own. The SQL
view `tasks` uses the same table.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

from convlog_sqlite.events import Event
from convlog_sqlite.projections.projection import Look, Projection
from convlog_sqlite.vocabulary import unescaped

STATUSES: Final = ("created", "assigned", "claimed", "started", "blocked", "done", "failed")
ENDED: Final = frozenset({"done", "failed"})
_DEPENDS: Final = "task-depends"
_VERSION: Final = 1


def tasks(statuses: Mapping[str, str]) -> Projection:
    """The projection `tasks`, where each of these kinds says that a task has this status."""

    def fold(state: dict[str, Any], event: Event) -> None:
        said = event.envelope
        task_id, kind = said.get("task_id"), said["kind"]
        if task_id is None:
            return
        task = state.setdefault(
            task_id, {"status": "created", "by": said["agent"], "seq": said["seq"], "event": said["id"]}
        )
        if kind == _DEPENDS:
            _depend(task, said)
            return
        status = statuses[kind]
        task |= {"status": status, "by": said["agent"], "seq": said["seq"], "event": said["id"]}
        if status == "assigned":
            task["assigned"] = said.get("to", [])
        if status == "claimed":
            task["claimed_by"], task["fence"] = said["agent"], said["seq"]
        elif status in ("created", "done", "failed"):
            task.pop("claimed_by", None)
            task.pop("fence", None)

    return Projection(
        "tasks", fold, version=_version(statuses), render=_render, kinds=(*statuses, _DEPENDS),
        reads_content=False,
    )  # fmt: skip


def _version(statuses: Mapping[str, str]) -> int:
    """What was folded with other kinds is another state."""
    said = "\n".join(f"{kind}={status}" for kind, status in sorted(statuses.items()))
    return _VERSION << 32 | zlib.crc32(said.encode())


def _depend(task: dict[str, Any], said: Mapping[str, Any]) -> None:
    parts = said.get("state_key", "").split("/")
    if len(parts) == 3 and parts[0] == "depends":
        on = unescaped(parts[2])
        if on not in task.setdefault("depends", []):
            task["depends"].append(on)


def _render(state: dict[str, Any], _look: Look) -> dict[str, Any]:
    """Each task, and of what it depends on, what is not done: it `waits_for` that."""
    shown = {}
    for task_id, task in state.items():
        shown[task_id] = dict(task)
        waits_for = [on for on in task.get("depends", ()) if state.get(on, {}).get("status") != "done"]
        if waits_for and task["status"] not in ENDED:
            shown[task_id]["waits_for"] = waits_for
    return shown
