"""Fences: people about whom nothing more is recorded. Mutations in `_store` that hold no content.

A fence stands from the event `subject-fenced` that names the digest of a person to the event `fence-lifted` that
does. Both are found by their envelope alone, in the transaction of each append whose draft names a person: no
process records what was fenced before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.errors import SubjectFenced
from convlog_sqlite.events import Event, Live
from convlog_sqlite.instants import id_text
from convlog_sqlite.vocabulary import FENCE_KIND, STORE_SESSION

# The newest word on a person: nothing else in `_store` names one in its envelope.
SELECT_NEWEST: Final = """
SELECT v.id, k.text FROM name AS n CROSS JOIN session AS s
CROSS JOIN posting AS p ON p.session = s.id AND p.facet = 5 AND p.name = n.id
CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq
CROSS JOIN name AS k ON k.id = e.kind CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE n.text = ? AND s.name = ? ORDER BY p.seq DESC LIMIT 1"""
SELECT_FENCES: Final = """
SELECT v.bytes FROM session AS s CROSS JOIN event AS e ON e.session = s.id
CROSS JOIN name AS k ON k.id = e.kind CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE s.name = ? AND k.text IN ('subject-fenced', 'fence-lifted') ORDER BY e.seq"""

FENCE_KEY: Final = "fence/{subject}"


@dataclass(frozen=True, slots=True)
class Fence:
    """A person about whom nothing more is recorded. `id` is that of the event that placed the fence.

    `subject` is the keyed digest of the name, `by` the agent that answers for it, `at` is RFC 3339.
    """

    id: str
    subject: str
    by: str
    at: str

    def to_dict(self) -> dict[str, str]:
        """The fence as JSON values."""
        return asdict(self)


def standing_on(connection: Connection, subject: str) -> str | None:
    """The id of the event that fenced a person, by digest; None when no fence stands."""
    rows = fetch(connection, SELECT_NEWEST, (subject, STORE_SESSION))
    return id_text(rows[0][0]) if rows and rows[0][1] == FENCE_KIND else None


def check(connection: Connection, session: str, subjects: Sequence[str]) -> None:
    """Raises SubjectFenced when one of the people, by digest, is fenced. What the store says of them passes."""
    for number, subject in enumerate(subjects if session != STORE_SESSION else ()):
        fence = standing_on(connection, subject)
        if fence is not None:
            raise SubjectFenced(f"/subjects/{number}", subject, fence)


def standing_fences(connection: Connection) -> list[Fence]:
    """The fences that stand, in the order in which they were placed."""
    found: dict[str, Fence] = {}
    for (envelope,) in fetch(connection, SELECT_FENCES, (STORE_SESSION,)):
        event = Event(envelope, Live(b"{}"))
        for subject in event.subjects:
            if event.kind != FENCE_KIND:
                found.pop(subject, None)
            elif subject not in found:
                found[subject] = Fence(event.id, subject, event.agent, event.ts)
    return list(found.values())
