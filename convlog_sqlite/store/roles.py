"""Roles, and who may accept a proposal, decided inside the append.

A role is granted by a mutation `role-granted` on the state key `role/<agent>/<role>`, in a session or, for
all of them, in `_store`; `role-revoked` takes it away. What the session says goes before what the store says.
Nobody grants a role to itself.

A proposal that is addressed to `role:<role>` is accepted (`accept-proposal`, `agree`) by an agent other than
the one that made it, which holds that role. Any other proposal is accepted by anybody but its maker.
"""

from __future__ import annotations

from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.errors import NotAuthorized
from convlog_sqlite.instants import id_bytes
from convlog_sqlite.store.names import SELECT_NAME
from convlog_sqlite.store.sessions import SELECT_SESSION, SessionRow
from convlog_sqlite.store.states import line_of
from convlog_sqlite.vocabulary import LAST_SEQ, ROLE_ADDRESS, STORE_SESSION, role_key, unescaped

GRANTED: Final = "role-granted"

SELECT_ENVELOPE: Final = "SELECT bytes FROM envelope WHERE id = ?"
SELECT_ROLE: Final = """
SELECT k.text FROM event AS e INDEXED BY event_state CROSS JOIN name AS k ON k.id = e.kind
WHERE e.session = ? AND e.state_key = ? AND e.seq <= ? AND k.text IN ('role-granted', 'role-revoked')
ORDER BY e.seq DESC LIMIT 1"""

SELECT_ROLE_KEYS: Final = "SELECT text FROM name WHERE text > ?1 AND text < ?2"
SELECT_JOINED: Final = """
SELECT r.text FROM name AS k CROSS JOIN posting AS p ON p.session = ?1 AND p.facet = 6 AND p.name = k.id AND p.seq <= ?2
CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq CROSS JOIN name AS a ON a.id = e.agent
CROSS JOIN name AS r ON r.id = e.role
WHERE k.text = 'agent-joined' AND a.text = ?3 ORDER BY p.seq DESC LIMIT 1"""

_AFTER_SLASH: Final = "0"  # follows "/" in ASCII: the end of the names that begin with a prefix and a slash


def holds(connection: Connection, session: SessionRow, agent: str, role: str) -> bool:
    """Whether an agent holds a role in a session."""
    key = value(connection, SELECT_NAME, (role_key(agent, role),))
    if key is None:
        return False
    places = line_of(session)
    places += [(row[0], LAST_SEQ) for row in fetch(connection, SELECT_SESSION, (STORE_SESSION,))]
    said = (kind for place, upto in places for (kind,) in fetch(connection, SELECT_ROLE, (place, key, upto)))
    return next(said, None) == GRANTED


def granted(connection: Connection, session: SessionRow, agent: str) -> list[str]:
    """The roles that an agent holds in a session, by name."""
    prefix = role_key(agent, "")
    keys = fetch(connection, SELECT_ROLE_KEYS, (prefix, prefix[:-1] + _AFTER_SLASH))
    named = sorted(unescaped(text.removeprefix(prefix)) for (text,) in keys)
    return [role for role in named if holds(connection, session, agent, role)]


def roles_of(connection: Connection, session: SessionRow, agent: str) -> list[str]:
    """The roles that an agent holds, or else the one that it joined with; none if it has none."""
    found = granted(connection, session, agent)
    if found:
        return found
    for part in session.line:
        for (role,) in fetch(connection, SELECT_JOINED, (part.number, part.upto, agent)):
            return [role]
    return []


def addresses(agent: str, roles: list[str]) -> frozenset[str]:
    """What an event is addressed to that is to reach the agent."""
    return frozenset({agent, *(ROLE_ADDRESS + role for role in roles)})


def require_other(keys: dict[str, Any]) -> None:
    """Refuse a role that an agent grants to itself. Raises NotAuthorized."""
    if keys["state_key"].startswith(role_key(keys["agent"], "")):
        raise NotAuthorized(keys["agent"], "a role is granted by another agent")


def require_approver(connection: Connection, session: SessionRow, keys: dict[str, Any]) -> None:
    """Refuse an acceptance that is not this agent's to give. Raises NotAuthorized."""
    for (envelope,) in fetch(connection, SELECT_ENVELOPE, (id_bytes(keys["parent_id"]),)):
        proposal = strictjson.load(envelope)
        wanted = roles_wanted(proposal)
        if not wanted and proposal.get("performative") != "propose":
            return
        if proposal["agent"] == keys["agent"]:
            raise NotAuthorized(keys["agent"], "a proposal is accepted by another agent than its own")
        if wanted and not any(holds(connection, session, keys["agent"], role) for role in wanted):
            raise NotAuthorized(keys["agent"], "it takes the role " + " or ".join(wanted))


def roles_wanted(proposal: dict[str, Any]) -> list[str]:
    """The roles to whose holders a proposal's envelope is addressed."""
    return [to.removeprefix(ROLE_ADDRESS) for to in proposal.get("to", ()) if to.startswith(ROLE_ADDRESS)]
