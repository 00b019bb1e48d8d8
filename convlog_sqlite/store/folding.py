"""Reading for projections: the events that a fold needs, in order, and nothing of the others.

A fold says which events it needs by what stands in narrow columns; the others are passed over without
their envelopes being read. In a fork, what it inherited comes first: its seq goes on where that ends.

Owns the table `task_kind`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.events import Event, Live
from convlog_sqlite.instants import id_bytes
from convlog_sqlite.store.reading import SELECT_HEAD, Opener, Row
from convlog_sqlite.store.sessions import Segment, SessionRow
from convlog_sqlite.store.states import Head, heads

# ?1 session  ?2 after seq (exclusive)  ?3 last seq
EVERY_ENVELOPE: Final = """
SELECT v.bytes FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ?1 AND e.seq > ?2 AND e.seq <= ?3 ORDER BY e.seq"""
EVERY_EVENT: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
LEFT JOIN payload AS p ON p.pos = e.pos WHERE e.session = ?1 AND e.seq > ?2 AND e.seq <= ?3 ORDER BY e.seq"""
# ?4 types, a bit each  ?5 whether what sets a piece of state. Where no names are looked up, a new event that is
# not wanted is passed over in half the time.
TYPED_ENVELOPES: Final = """
SELECT v.bytes FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ?1 AND e.seq > ?2 AND e.seq <= ?3 AND (?4 >> e.type & 1 OR (?5 AND e.state_key IS NOT NULL))
ORDER BY e.seq"""
# ?6 ranges of kinds  ?7 performatives: lists in JSON
WANTED_ENVELOPES: Final = """
SELECT v.bytes FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ?1 AND e.seq > ?2 AND e.seq <= ?3
AND (?4 >> e.type & 1 OR (?5 AND e.state_key IS NOT NULL)
     OR e.kind IN (SELECT n.id FROM json_each(?6) AS j CROSS JOIN name AS n
                   ON n.text BETWEEN j.value ->> 0 AND j.value ->> 1)
     OR e.performative IN (SELECT n.id FROM json_each(?7) AS j CROSS JOIN name AS n ON n.text = j.value))
ORDER BY e.seq"""
WANTED_EVENTS: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
LEFT JOIN payload AS p ON p.pos = e.pos
WHERE e.session = ?1 AND e.seq > ?2 AND e.seq <= ?3
AND (?4 >> e.type & 1 OR (?5 AND e.state_key IS NOT NULL)
     OR e.kind IN (SELECT n.id FROM json_each(?6) AS j CROSS JOIN name AS n
                   ON n.text BETWEEN j.value ->> 0 AND j.value ->> 1)
     OR e.performative IN (SELECT n.id FROM json_each(?7) AS j CROSS JOIN name AS n ON n.text = j.value))
ORDER BY e.seq"""
# ?1 session  ?2 list of seqs in JSON
SELECT_SINGLE: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed FROM json_each(?2) AS j
CROSS JOIN event AS e ON e.session = ?1 AND e.seq = j.value CROSS JOIN envelope AS v ON v.pos = e.pos
LEFT JOIN payload AS p ON p.pos = e.pos"""
SELECT_NAMED: Final = """
SELECT s.name, v.seq, v.id, v.bytes, p.slot, p.sealed FROM envelope AS v CROSS JOIN session AS s ON s.id = v.session
LEFT JOIN payload AS p ON p.pos = v.pos WHERE v.id = ? AND length(v.bytes) > 0"""
SELECT_OWN_KEYS: Final = """
SELECT DISTINCT h.key, n.text FROM state_head AS h CROSS JOIN name AS n ON n.id = h.key WHERE h.session = ?"""
SELECT_TASK_KINDS: Final = "SELECT kind, status FROM task_kind ORDER BY kind"
SET_TASK_KIND: Final = "INSERT INTO task_kind VALUES (?1, ?2) ON CONFLICT (kind) DO UPDATE SET status = ?2"
DROP_TASK_KIND: Final = "DELETE FROM task_kind WHERE kind = ?"

NARROW_PAGE: Final = 4000  # events looked at in one read block
WHOLE_PAGE: Final = 500
_NONE: Final = "[]"


class Wanted(NamedTuple):
    """Which events a fold needs, as the statements take it; joined by or."""

    types: int
    keyed: bool
    kinds: str
    performatives: str

    @property
    def names(self) -> bool:
        """Whether kinds or performatives are among it."""
        return self.kinds != _NONE or self.performatives != _NONE


@dataclass(frozen=True, slots=True)
class Place:
    """A session as a fold sees it: what it inherited first, then itself, and its last seq."""

    row: SessionRow
    segments: tuple[Segment, ...]
    head: int


def place_of(connection: Connection, row: SessionRow) -> Place:
    """Where the events of a session are to be found."""
    head = value(connection, SELECT_HEAD, (row.number,)) or row.base
    return Place(row, tuple(reversed(row.line)), head)


def page(
    connection: Connection, place: Place, wanted: Wanted | None, after: int, upto: int, *, whole: bool
) -> tuple[Segment, list[Any], int]:
    """The rows of the next events behind `after`: their session, they themselves, and the last seq looked at.

    `wanted` is None for all of them.
    """
    segment = next(segment for segment in place.segments if segment.upto > after)
    last = min(after + (WHOLE_PAGE if whole else NARROW_PAGE), upto, segment.upto)
    here = (segment.number, after, last)
    if wanted is None:
        return segment, fetch(connection, EVERY_EVENT if whole else EVERY_ENVELOPE, here), last
    if not (whole or wanted.names):
        return segment, fetch(connection, TYPED_ENVELOPES, (*here, *wanted[:2])), last
    sql = WANTED_EVENTS if whole else WANTED_ENVELOPES
    return segment, fetch(connection, sql, (*here, *wanted)), last


def opened(opener: Opener, segment: Segment, rows: Sequence[Any], *, whole: bool) -> list[Event]:
    """The events of a page. Where the content is not wanted it is not opened: the payload is empty."""
    if whole:
        return opener.events(segment.name, rows)
    empty = Live(b"{}")
    return [Event(envelope, empty) for (envelope,) in rows]


def at_seqs(connection: Connection, place: Place, seqs: Iterable[int]) -> list[tuple[Segment, list[Row]]]:
    """The rows of single events, by the session that holds them."""
    asked: dict[Segment, list[int]] = {}
    for seq in seqs:
        segment = next(segment for segment in place.segments if segment.upto >= seq)
        asked.setdefault(segment, []).append(seq)
    return [
        (segment, fetch(connection, SELECT_SINGLE, (segment.number, json.dumps(some))))
        for segment, some in asked.items()
    ]


def by_ids(connection: Connection, event_ids: Iterable[str]) -> list[tuple[str, Row]]:
    """The rows of events of any session, each with its session; those that there are."""
    rows = [row for event_id in event_ids for row in fetch(connection, SELECT_NAMED, (id_bytes(event_id),))]
    return [(session, row) for session, *row in rows]


def own_heads(connection: Connection, row: SessionRow) -> dict[str, list[Head]]:
    """What the tables say stands for each state key that the session itself set."""
    return {
        text: heads(connection, row, key) for key, text in fetch(connection, SELECT_OWN_KEYS, (row.number,))
    }


def task_kinds(connection: Connection) -> dict[str, str]:
    """Which kinds of mutation say how far a task is, and what each says."""
    return dict(fetch(connection, SELECT_TASK_KINDS))


def set_task_kind(connection: Connection, kind: str, status: str | None) -> None:
    """Let a kind say how far a task is; None: nothing any more."""
    if status is None:
        connection.execute(DROP_TASK_KIND, (kind,))
    else:
        connection.execute(SET_TASK_KIND, (kind, status))
