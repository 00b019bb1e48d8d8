"""Agents: who took part, since when, which roles they hold in the session, which skills they loaded.

Roles that the store grants for all sessions stand in the session `_store`.
"""

from __future__ import annotations

from typing import Any, Final

from convlog_sqlite.events import Event
from convlog_sqlite.projections.projection import Look, Projection
from convlog_sqlite.vocabulary import unescaped

_SKILLS: Final = 20  # the newest of those that only their content names
_SKILL_KEY: Final = "skill"


def _fold(state: dict[str, Any], event: Event) -> None:
    said = event.envelope
    agent = _agent(state, said["agent"])
    agent.setdefault("first", said["seq"])
    agent["last"] = said["seq"]
    agent["events"] += 1
    if "role" in said:
        agent["role"] = said["role"]
    kind = said.get("kind")
    if kind in ("agent-joined", "agent-left"):
        agent["status"] = "joined" if kind == "agent-joined" else "left"
    elif kind == "agent-spawned":
        for name in said.get("to", ()):
            spawned = _agent(state, name)
            spawned["status"], spawned["spawned_by"] = "spawned", said["agent"]
    elif kind in ("role-granted", "role-revoked"):
        _fold_role(state, said)
    elif kind == "skill-activated":
        _fold_skill(agent, said)


def _agent(state: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = state.setdefault(name, {"events": 0})
    return found


def _fold_role(state: dict[str, Any], said: dict[str, Any]) -> None:
    parts = said.get("state_key", "").split("/")
    if len(parts) != 3 or parts[0] != "role":
        return
    holder, role = map(unescaped, parts[1:])
    roles: list[str] = _agent(state, holder).setdefault("roles", [])
    if role in roles:
        roles.remove(role)
    if said["kind"] == "role-granted":
        roles.append(role)


def _fold_skill(agent: dict[str, Any], said: dict[str, Any]) -> None:
    parts = said.get("state_key", "").split("/")
    if parts[0] == _SKILL_KEY and len(parts) > 1:
        skills = agent.setdefault("skills", [])
        if (skill := unescaped(parts[-1])) not in skills:
            skills.append(skill)
    else:
        agent["skill_events"] = [*agent.get("skill_events", []), said["seq"]][-_SKILLS:]


def _render(state: dict[str, Any], look: Look) -> dict[str, Any]:
    events = look.events(seq for agent in state.values() for seq in agent.get("skill_events", ()))
    shown = {}
    for name, agent in state.items():
        shown[name] = {key: item for key, item in agent.items() if key != "skill_events"}
        named = [_skill(look.shown(events[seq])) for seq in agent.get("skill_events", ())]
        skills = list(dict.fromkeys([*agent.get("skills", ()), *(skill for skill in named if skill)]))
        if skills:
            shown[name]["skills"] = skills
        if not shown[name].get("roles", True):
            del shown[name]["roles"]
    return shown


def _skill(said: dict[str, Any]) -> str | None:
    """The name in the value of a `skill-activated`: a text, or an object's `skill` or `name`."""
    value = said.get("value")
    if isinstance(value, dict):
        value = value.get("skill", value.get("name"))
    return value if isinstance(value, str) else None


AGENTS: Final = Projection("agents", _fold, render=_render, reads_content=False)
