"""Labels: what is said afterwards of whom an event is about and how sensitive it is. Mutations `event-labelled`.

The label is the envelope: `links.evidence` names the events, `subjects` and `sensitivity` what is said of them, so
that it outlives all content. A labelled event is posted under the subjects of its labels as under its own, and its
sensitivity is the highest of its own and those of its labels: a label only raises it. A label that names no
sensitivity says `internal`, as every event does.

Owns the table `label`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.errors import InvalidEvent
from convlog_sqlite.store.preparing import Prepared

INSERT_SUBJECT: Final = "INSERT OR IGNORE INTO posting VALUES (?, ?, ?, ?)"
INSERT_LABEL: Final = """
INSERT INTO label VALUES (?, ?, ?, ?) ON CONFLICT (session, seq)
DO UPDATE SET sensitivity = max(sensitivity, excluded.sensitivity), person = max(person, excluded.person)"""

SELECT_LABEL: Final = "SELECT sensitivity, person FROM label WHERE session = ? AND seq = ?"

# For verify: posted under a recipient or subject that neither the event nor a label on it names.
WRONGLY_ADDRESSED: Final = """
SELECT p.session, p.seq FROM posting AS p CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq
CROSS JOIN envelope AS v ON v.pos = e.pos CROSS JOIN name AS n ON n.id = p.name
WHERE p.facet IN (4, 5) AND json_valid(CAST(v.bytes AS TEXT)) AND n.text NOT IN (
    SELECT value FROM json_each(CAST(v.bytes AS TEXT), CASE p.facet WHEN 4 THEN '$.to' ELSE '$.subjects' END))
AND NOT (p.facet = 5 AND EXISTS (
    SELECT 1 FROM link AS l CROSS JOIN envelope AS w ON w.pos = l.pos AND w.session = e.session
    CROSS JOIN event AS m ON m.session = w.session AND m.seq = w.seq
    WHERE l.target = e.pos AND l.type = 2 AND m.kind = (SELECT id FROM name WHERE text = 'event-labelled')
    AND json_valid(CAST(w.bytes AS TEXT))
    AND n.text IN (SELECT value FROM json_each(CAST(w.bytes AS TEXT), '$.subjects'))))"""
# For verify: what `label` says of an event is not what its labels say.
WRONGLY_LABELLED: Final = """
SELECT coalesce(s.session, b.session), coalesce(s.seq, b.seq) FROM (
    SELECT t.session AS session, t.seq AS seq, max(e.sensitivity) AS sensitivity, max(e.flags & 1) AS person
    FROM event AS e CROSS JOIN link AS l ON l.pos = e.pos AND l.type = 2
    CROSS JOIN envelope AS t ON t.pos = l.target AND t.session = e.session
    WHERE e.kind = (SELECT id FROM name WHERE text = 'event-labelled') GROUP BY t.session, t.seq) AS s
FULL JOIN label AS b ON b.session = s.session AND b.seq = s.seq
WHERE s.sensitivity IS NOT b.sensitivity OR s.person IS NOT b.person"""
# For verify: an event that is not found by the subject of a label on it.
NOT_LABELLED: Final = """
SELECT t.session, t.seq FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN link AS l ON l.pos = e.pos AND l.type = 2
CROSS JOIN envelope AS t ON t.pos = l.target AND t.session = e.session
CROSS JOIN json_each(CASE WHEN json_valid(CAST(v.bytes AS TEXT)) THEN CAST(v.bytes AS TEXT) ELSE '{}' END, '$.subjects') AS j
WHERE e.kind = (SELECT id FROM name WHERE text = 'event-labelled')
AND NOT EXISTS (SELECT 1 FROM posting AS p WHERE p.session = t.session AND p.facet = 5 AND p.seq = t.seq
                AND p.name = (SELECT id FROM name WHERE text = j.value))"""


class Labelled(NamedTuple):
    """What labels say of an event: the code of the highest sensitivity, and whether it is about a person."""

    sensitivity: int
    person: bool


def said_of(connection: Connection, session: int, seq: int) -> Labelled | None:
    """What labels say of an event, None where there is none."""
    return next((Labelled(*row) for row in fetch(connection, SELECT_LABEL, (session, seq))), None)


class Standing(Protocol):
    """An event that a label names: the number of its session, and its seq."""

    @property
    def session(self) -> int: ...

    @property
    def seq(self) -> int: ...


def targets(prepared: Prepared, session: int, find: Callable[[str, str], Standing]) -> list[int]:
    """The seqs of the events that a label is about. Raises InvalidEvent, and what `find` raises."""
    found = []
    for number, event_id in enumerate(prepared.envelope.get("links", {}).get("evidence", ())):
        target = find("links/evidence", event_id)
        if target.session != session:
            raise InvalidEvent(f"/links/evidence/{number}", "a label stands in the session of its events")
        found.append(target.seq)
    if not found:
        raise InvalidEvent("/links/evidence", "a label names the events that it is about")
    return found
