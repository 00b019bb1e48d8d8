"""Why an event is there, and what came of it: walks over the edges that envelopes draw.

An edge goes from an event to one it names: `parent_id`, `call_id`, `effect`, and the typed links. They were
checked at append, so each leads to an event that stood there before, and nothing runs in a circle; a changed
database may hold one, so what was visited is not visited again. Every walk is bounded and breadth first: what
is nearest is found first. For a tenant, events of others are not shown and not gone on from: what names one says so.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from convlog_sqlite.database import Connection, Database, fetch, value
from convlog_sqlite.errors import StoreCorrupt, UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.instants import id_bytes, id_text
from convlog_sqlite.store.reading import SELECT_POS, Opener, Row
from convlog_sqlite.store.readings import Reading, informing
from convlog_sqlite.store.sessions import tenant_of
from convlog_sqlite.vocabulary import LINKS

SELECT_NODES: Final = """
SELECT s.name, v.seq, v.id, v.bytes, p.slot, p.sealed FROM json_each(?) AS j CROSS JOIN envelope AS v ON v.pos = j.value
CROSS JOIN session AS s ON s.id = v.session LEFT JOIN payload AS p ON p.pos = v.pos ORDER BY j.key"""
SELECT_REASONS: Final = """
SELECT 0, e.parent FROM envelope AS v CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq
WHERE v.pos = ?1 AND e.parent IS NOT NULL
UNION ALL SELECT -1, coalesce(
    (SELECT c.pos FROM event AS c WHERE c.session = e.session AND c.seq = e.answers),
    (SELECT w.pos FROM envelope AS w WHERE w.id = CASE WHEN json_valid(CAST(v.bytes AS TEXT))
     THEN unhex(replace(json_extract(CAST(v.bytes AS TEXT), '$.call_id'), '-', '')) END))
FROM envelope AS v CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq
WHERE v.pos = ?1 AND e.answers IS NOT NULL
UNION ALL SELECT type, target FROM link WHERE pos = ?1"""
SELECT_OUTCOMES: Final = """
SELECT * FROM (SELECT 0, pos FROM event WHERE parent = ?1 LIMIT ?2)
UNION ALL SELECT * FROM (SELECT type, pos FROM link WHERE target = ?1 LIMIT ?2)"""
SELECT_OUTCOMES_OF: Final = """
SELECT * FROM (SELECT 0, e.pos FROM event AS e CROSS JOIN session AS s ON s.id = e.session
               WHERE e.parent = ?1 AND s.tenant = (SELECT id FROM name WHERE text = ?3) LIMIT ?2)
UNION ALL SELECT * FROM (SELECT l.type, l.pos FROM link AS l CROSS JOIN envelope AS v ON v.pos = l.pos
                         CROSS JOIN session AS s ON s.id = v.session
                         WHERE l.target = ?1 AND s.tenant = (SELECT id FROM name WHERE text = ?3) LIMIT ?2)"""
SELECT_PLACE: Final = "SELECT session, id FROM envelope WHERE pos = ?"
SELECT_REPLIES: Final = """
SELECT s.name, v.seq, v.id, v.bytes, p.slot, p.sealed FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN session AS s ON s.id = v.session LEFT JOIN payload AS p ON p.pos = v.pos
WHERE e.parent = ?1 AND e.pos > ?2 AND (?3 IS NULL OR s.tenant = (SELECT id FROM name WHERE text = ?3))
ORDER BY e.pos LIMIT 100"""

_RELATIONS: Final = {0: "parent_id", -1: "call_id"} | dict(enumerate(LINKS, 1))


class Edge(NamedTuple):
    """Event `source` names event `target` as its `relation`: a key of the envelope, or a type of link."""

    source: str
    relation: str
    target: str


@dataclass(frozen=True, slots=True)
class Trace:
    """What a walk found: events, nearest first, each with its distance, and the edges between them.

    `readings` says for each event what its author had in front of it, None where the log does not know. `is_whole`
    is False when the walk ended at its limit. `unknown` are the edges that lead out of reach: to an event of another
    tenant than the one that the log is bound to.
    """

    events: list[Event] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    readings: list[Reading | None] = field(default_factory=list)
    is_whole: bool = True
    unknown: list[Edge] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Walk:
    """What was found so far: positions with their distance, in the order found; (source, relation, target)."""

    forward: bool
    limit: int
    tenant: str | None
    depths: dict[int, int] = field(default_factory=dict)
    edges: list[tuple[int, int, int]] = field(default_factory=list)
    unknown: list[tuple[int, int, str]] = field(default_factory=list)  # source, relation, id


def limited(found: Trace, shown: Sequence[Event | None]) -> Trace:
    """A trace with these events in place of its own; None for one that is only to be named."""
    kept = [number for number, event in enumerate(shown) if event is not None]
    ids = {found.events[number].id for number in kept}
    return Trace(
        [event for event in shown if event is not None],
        [found.depths[number] for number in kept],
        [edge for edge in found.edges if edge.source in ids and edge.target in ids],
        [found.readings[number] for number in kept],
        found.is_whole,
        [edge for edge in (*found.edges, *found.unknown) if edge.source in ids and edge.target not in ids],
    )


def reasons(
    database: Database, opener: Opener, event_id: str, limit: int, tenant: str | None = None
) -> Trace:
    """The event, what it names, what those name, back to the roots. Raises UnknownReference."""
    return _walk(database, opener, event_id, _Walk(forward=False, limit=limit, tenant=tenant))


def outcomes(
    database: Database, opener: Opener, event_id: str, limit: int, tenant: str | None = None
) -> Trace:
    """The event, what names it, what names those. Raises UnknownReference."""
    return _walk(database, opener, event_id, _Walk(forward=True, limit=limit, tenant=tenant))


def replies(
    database: Database, opener: Opener, event_id: str, after: int, tenant: str | None = None
) -> list[tuple[int, Event]]:
    """Events behind position `after` whose parent is this event, at most 100, each with its position."""
    with database.read() as connection:
        parent = value(connection, SELECT_POS, (id_bytes(event_id),))
        if parent is None:
            raise UnknownReference("event", event_id)
        rows = fetch(connection, SELECT_REPLIES, (parent, after, tenant))
        positions = [value(connection, SELECT_POS, (row[2],)) for row in rows]
    return list(zip(positions, _events(opener, rows), strict=True))


def _walk(database: Database, opener: Opener, event_id: str, walk: _Walk) -> Trace:
    with database.read() as connection:
        start = value(connection, SELECT_POS, (id_bytes(event_id),))
        if start is None:
            raise UnknownReference("event", event_id)
        is_whole = _breadth_first(connection, start, walk)
        depths = walk.depths
        nodes = fetch(connection, SELECT_NODES, (json.dumps(list(depths)),))
    if len(nodes) != len(depths):
        raise StoreCorrupt("link", "it names a position where nothing stands")
    # Of a session that was removed, the edges that lead there are left, and nothing to be shown.
    rows = {pos: row for pos, row in zip(depths, nodes, strict=True) if row[3]}
    events = _events(opener, list(rows.values()))
    ids = {pos: event.id for pos, event in zip(rows, events, strict=True)}
    edges = [
        Edge(ids[source], _RELATIONS[relation], ids[target])
        for source, relation, target in walk.edges
        if source in ids and target in ids
    ]
    unknown = [
        Edge(ids[source], _RELATIONS[relation], target)
        for source, relation, target in walk.unknown
        if source in ids
    ]
    with database.read() as connection:
        read = [_reading(connection, pos, event) for pos, event in zip(rows, events, strict=True)]
    return Trace(events, [depths[pos] for pos in rows], edges, read, is_whole, unknown)


def _reading(connection: Connection, pos: int, event: Event) -> Reading | None:
    return None if event.seen is None else informing(connection, pos, event.seen["seq"])


def _breadth_first(connection: Connection, start: int, walk: _Walk) -> bool:
    """Walk from a position; whether that is all."""
    depths, edges, is_whole = walk.depths, walk.edges, True
    depths[start] = 0
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        for relation, there in _edges(connection, here, walk):
            edges.append((there, relation, here) if walk.forward else (here, relation, there))
            if there in depths:
                continue
            if len(depths) >= walk.limit:
                is_whole = False
                continue
            depths[there] = depths[here] + 1
            waiting.append(there)
    return is_whole


def _edges(connection: Connection, pos: int, walk: _Walk) -> list[tuple[int, int]]:
    """(relation, position at the other end) of each edge that may be gone along."""
    if walk.forward and walk.tenant is not None:
        return fetch(connection, SELECT_OUTCOMES_OF, (pos, walk.limit + 1, walk.tenant))
    if walk.forward:
        return fetch(connection, SELECT_OUTCOMES, (pos, walk.limit + 1))
    edges: list[tuple[int, int]] = fetch(connection, SELECT_REASONS, (pos,))
    if walk.tenant is None:
        return edges
    return [
        (relation, there) for relation, there in edges if _reaches(connection, pos, relation, there, walk)
    ]


def _reaches(connection: Connection, pos: int, relation: int, there: int, walk: _Walk) -> bool:
    """Whether what an event names is the tenant's; if not, it is put down as unknown."""
    for session, event_id in fetch(connection, SELECT_PLACE, (there,)):
        if tenant_of(connection, session) != walk.tenant:
            walk.unknown.append((pos, relation, id_text(event_id)))
            return False
    return True


def _events(opener: Opener, rows: list[tuple[str, *Row]]) -> list[Event]:
    """Events of several sessions, in the order of their rows."""
    by_session: dict[str, list[Row]] = {}
    for session, seq, event_id, envelope, slot, sealed in rows:
        by_session.setdefault(session, []).append((seq, event_id, envelope, slot, sealed))
    opened: dict[str, Iterator[Event]] = {
        session: iter(opener.events(session, some)) for session, some in by_session.items()
    }
    return [next(opened[session]) for session, *_ in rows]
