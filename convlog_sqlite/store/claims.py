"""Who has a task: one agent at a time, decided inside the append.

A task is claimed by a mutation `task-claimed` on its state key. The claim holds until it is given back, the
task is done or has failed, or its lease runs out; the claim's seq is the fencing number, which grows with
each claim of the task. Claiming again renews it. A task that was assigned is for those it was assigned to.
"""

from __future__ import annotations

from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.errors import StateConflict
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.store.states import line_of

CLAIMED: Final = "task-claimed"

SELECT_DECISIVE: Final = """
SELECT k.text, a.text, v.id, v.bytes, l.until FROM event AS e CROSS JOIN name AS k ON k.id = e.kind
CROSS JOIN name AS a ON a.id = e.agent CROSS JOIN envelope AS v ON v.pos = e.pos LEFT JOIN lease AS l ON l.pos = e.pos
WHERE e.session = ? AND e.state_key = ? AND e.seq <= ? AND k.text IN
('task-claimed', 'task-released', 'task-assigned', 'task-created', 'task-done', 'task-failed')
ORDER BY e.seq DESC LIMIT 1"""


def require_free(
    connection: Connection, session: SessionRow, key: int, keys: dict[str, Any], microseconds: int
) -> None:
    """Refuse a claim on a task that is not the claiming agent's to take. Raises StateConflict."""
    newest = next(
        (
            row
            for owner, upto in line_of(connection, session)
            for row in _newest(connection, owner, key, upto)
        ),
        None,
    )
    if newest is None:
        return
    kind, agent, event_id, envelope, until = newest
    claims = keys["agent"]
    if kind == CLAIMED and agent != claims and (until is None or until > microseconds):
        raise StateConflict(keys["state_key"], [id_text(event_id)], holder=agent)
    if kind in ("task-done", "task-failed"):
        raise StateConflict(keys["state_key"], [id_text(event_id)])
    if kind == "task-assigned":
        assigned = strictjson.load(envelope).get("to", [])
        if assigned and claims not in assigned:
            raise StateConflict(keys["state_key"], [id_text(event_id)], holder=assigned[0])


def _newest(connection: Connection, session: int, key: int, upto: int) -> list[tuple[Any, ...]]:
    return fetch(connection, SELECT_DECISIVE, (session, key, upto))
