"""Events as holds and retention look at them: the narrow row with its names, and nothing of the content."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.sessions import SessionRow, heirs
from convlog_sqlite.vocabulary import REDACTION_KIND, SENSITIVITIES, STORE_SESSION, TYPE_NAMES

# ?1 session  ?2 after seq (exclusive)  ?3 limit
SELECT_CANDIDATES: Final = """
SELECT e.seq, e.pos, v.id, e.type, a.text, t.text, o.text, k.text,
       max(e.sensitivity, coalesce(
           (SELECT max(m.sensitivity) FROM link AS l CROSS JOIN envelope AS w ON w.pos = l.pos AND w.session = ?1
            CROSS JOIN event AS m ON m.session = ?1 AND m.seq = w.seq
            WHERE l.target = e.pos AND l.type = 2
            AND m.kind = (SELECT id FROM name WHERE text = 'event-labelled')), 0)), e.at,
       EXISTS (SELECT 1 FROM tombstone AS d WHERE d.pos = e.pos)
       OR EXISTS (SELECT 1 FROM intent_event AS i WHERE i.pos = e.pos)
FROM (SELECT seq, pos, type, agent, task, tool, kind, sensitivity, at FROM event
      WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3) AS e
CROSS JOIN envelope AS v ON v.pos = e.pos CROSS JOIN name AS a ON a.id = e.agent
LEFT JOIN name AS t ON t.id = e.task LEFT JOIN name AS o ON o.id = e.tool
LEFT JOIN name AS k ON k.id = e.kind ORDER BY e.seq"""
# ?1 session  ?2 digest  ?3 first seq  ?4 last seq
SELECT_ABOUT: Final = """
SELECT p.seq FROM name AS n CROSS JOIN posting AS p
ON p.session = ?1 AND p.facet = 5 AND p.name = n.id AND p.seq BETWEEN ?3 AND ?4 WHERE n.text = ?2"""
# The seq of the event that is ?3 + 1 from the end. Redactions do not count: each would push another one out.
SELECT_FROM_END: Final = """
SELECT seq FROM event WHERE session = ?1 AND kind IS NOT coalesce((SELECT id FROM name WHERE text = ?2), 0)
ORDER BY seq DESC LIMIT 1 OFFSET ?3"""
SELECT_PLACE: Final = "SELECT session, seq FROM envelope WHERE pos = ?"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An event that may be erased. `at` is in microseconds: when its source says it happened, else when recorded.

    `sensitivity` is the highest of its own and its labels'. `subjects` holds those of the digests that were asked
    for, its labels' too. `erased` says that it is, or is decided to be.
    `heirs` are the forks that share events of its session, each with the last seq that it shares.
    """

    session: str
    tenant: str | None
    seq: int
    pos: int
    id: str
    type: str
    agent: str
    task: str | None
    tool: str | None
    kind: str | None
    sensitivity: str
    at: int
    erased: bool
    subjects: frozenset[str]
    heirs: Mapping[str, int] = field(default_factory=dict, compare=False)

    def is_shown_in(self, session: str) -> bool:
        """Whether the event is one of a session, or shared by it."""
        return session == self.session or self.seq <= self.heirs.get(session, 0)

    @property
    def protected(self) -> bool:
        """Whether nothing may ever erase it: redactions, and the store's own session."""
        return self.session == STORE_SESSION or self.kind == REDACTION_KIND


_SENSITIVITY_NAMES: Final = {code: name for name, code in SENSITIVITIES.items()}


def page(
    connection: Connection, session: SessionRow, after: int, limit: int, digests: Collection[str]
) -> list[Candidate]:
    """The first `limit` events of a session after `after`, ascending."""
    rows = fetch(connection, SELECT_CANDIDATES, (session.number, after, limit))
    about: dict[int, set[str]] = {}
    if rows:
        for digest in digests:
            place = (session.number, digest, rows[0][0], rows[-1][0])
            for (seq,) in fetch(connection, SELECT_ABOUT, place):
                about.setdefault(seq, set()).add(digest)
    shared = heirs(connection, session.number) if rows else {}
    return [_candidate(session, row, frozenset(about.get(row[0], ())), shared) for row in rows]


def _candidate(
    session: SessionRow, row: tuple[Any, ...], subjects: frozenset[str], shared: Mapping[str, int]
) -> Candidate:
    seq, pos, event_id, event_type, agent, task, tool, kind, sensitivity, at, erased = row
    return Candidate(
        session.name, session.tenant, seq, pos, id_text(event_id), TYPE_NAMES[event_type], agent, task, tool,
        kind, _SENSITIVITY_NAMES[sensitivity], at, bool(erased), subjects, shared,
    )  # fmt: skip


def at_position(
    connection: Connection, sessions: dict[int, SessionRow], pos: int, digests: Collection[str]
) -> Candidate:
    """The event at `pos`, which exists. `sessions` are all of them, by number."""
    number, seq = fetch(connection, SELECT_PLACE, (pos,))[0]
    return page(connection, sessions[number], seq - 1, 1, digests)[0]


def newest(connection: Connection, session: SessionRow, counts: Collection[int]) -> dict[int, int]:
    """For each count, the seq from which on the events are among the newest `count` of the session."""
    found = {}
    for count in counts:
        place = (session.number, REDACTION_KIND, count - 1)
        first: int | None = value(connection, SELECT_FROM_END, place)
        found[count] = 0 if first is None else first
    return found
