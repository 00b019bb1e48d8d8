"""The slice itself: which events of a session a view shows, by index scans over envelope columns.

A view is compiled to probes, and their answers are merged. Where one stopped short, what lies behind the place is not
known, and the answer says where to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.probing import (
    FIRST_WALKS,
    LAST_WALKS,
    Ceiling,
    Compiled,
    Place,
    first_of,
    last_of,
    walked,
)
from convlog_sqlite.store.reading import SELECT_HEAD, Row
from convlog_sqlite.store.sessions import Segment, SessionRow

# Of events by position, those below the ceilings: ?1 positions, ?2 to ?4 are ?7 to ?9 of a probe.
BELOW_CEILINGS: Final = """
SELECT v.session, v.seq, v.pos FROM json_each(?1) AS j CROSS JOIN envelope AS v ON v.pos = j.value
CROSS JOIN event AS n ON n.session = v.session AND n.seq = v.seq
WHERE n.sensitivity <= ?2
AND (NOT n.flags & ?3 OR NOT n.flags & ?3 & 1
    AND (NOT n.flags & ?3 & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
    AND (NOT n.flags & ?3 & 4 OR EXISTS (SELECT 1 FROM purpose AS q
         WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?4)))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
    AND (b.sensitivity > ?2 OR ?3 & b.person))"""
# The targets of links of some types, at most ?3 of them for each event.
SELECT_LINKED: Final = """
SELECT DISTINCT l.target FROM json_each(?1) AS j CROSS JOIN link AS l ON l.pos = j.value
AND l.type IN (SELECT value FROM json_each(?2)) LIMIT ?3"""
SELECT_ROWS: Final = """
SELECT v.seq, v.id, v.bytes, p.slot, p.sealed FROM json_each(?1) AS j CROSS JOIN envelope AS v ON v.pos = j.value
LEFT JOIN payload AS p ON p.pos = v.pos"""
SELECT_OF_ANOTHER: Final = """
SELECT v.id FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ? AND e.seq = ? AND e.agent <> ?"""

_NEAR: Final = 6  # events that are walked for each that is wanted
_LEAST_NEAR: Final = 64
_MOST_NEAR: Final = 2048
_SPARSE: Final = 8  # times as few as were to be found among those walked first


class Sliced(NamedTuple):
    """Events of one slice, ascending, each with the segment that it stands in. `stopped_at` is as in `reading.Rows`."""

    places: list[tuple[Segment, Place]]
    stopped_at: int | None


def last(
    connection: Connection,
    session: SessionRow,
    asked: Compiled,
    window: tuple[int, int],
    limit: int,
    scan: int,
) -> Sliced:
    """The last `limit` events of the slice in `window`, which is (after, before), both exclusive."""
    found: list[tuple[Segment, Place]] = []
    for part in session.line:
        start, end = max(window[0], part.after), min(window[1], part.upto + 1)
        if end <= start + 1 or len(found) >= limit:
            continue
        head = value(connection, SELECT_HEAD, (part.number,)) or part.after
        wanted, stops = limit - len(found), [start]
        places, end = _nearest_last(connection, part.number, asked, (start, min(end, head + 1)), wanted, scan)
        missing = wanted - len(places)
        for probe in asked.probes if missing > 0 and end > start + 1 else ():
            # What lies in front of as many as are wanted cannot be among the last of them.
            low = start if len(places) < wanted else places[-wanted][0] - 1
            more, stop = last_of(connection, part.number, asked, probe, (low, end), missing, scan)
            places = sorted({*places, *more})
            stops += [] if stop is None else [stop]
        stopped = max(stops)
        places = [place for place in places if place[0] >= stopped]
        found[:0] = [(part, place) for place in places[-wanted:]]
        if len(stops) > 1 and len(found) < limit:
            return Sliced(found, stopped)
    return Sliced(found, None)


def first(
    connection: Connection,
    session: SessionRow,
    asked: Compiled,
    window: tuple[int, int],
    limit: int,
    scan: int,
) -> Sliced:
    """The first `limit` events of the slice in `window`, which is (after, before), both exclusive."""
    found: list[tuple[Segment, Place]] = []
    for part in reversed(session.line):
        start, end = max(window[0], part.after), min(window[1], part.upto + 1)
        if end <= start + 1 or len(found) >= limit:
            continue
        wanted, stops = limit - len(found), [end]
        places, start = _nearest_first(connection, part.number, asked, (start, end), wanted, scan)
        missing = wanted - len(places)
        for probe in asked.probes if missing > 0 and end > start + 1 else ():
            high = end if len(places) < wanted else places[wanted - 1][0] + 1
            more, stop = first_of(connection, part.number, asked, probe, (start, high), missing, scan)
            places = sorted({*places, *more})
            stops += [] if stop is None else [stop]
        stopped = min(stops)
        found += [(part, place) for place in places[:wanted] if place[0] <= stopped]
        if len(stops) > 1 and len(found) < limit:
            return Sliced(found, stopped)
    return Sliced(found, None)


def _nearest_last(
    connection: Connection, session: int, asked: Compiled, window: tuple[int, int], wanted: int, scan: int
) -> tuple[list[Place], int]:
    """What the last events of a window hold, where it is a gain to walk them; and where what is left ends."""
    start, end = window
    places, looked_at = list[Place](), 0
    while asked.near and end > start + 1 and (span := _span(wanted, len(places), looked_at, scan)) > 0:
        split = max(start, end - 1 - span)
        for probe in asked.near:
            low = split if len(places) < wanted else max(split, places[-wanted][0] - 1)
            more = walked(LAST_WALKS, connection, session, asked, probe, (low, end), wanted)
            places = sorted({*places, *more})
        end, looked_at = split + 1, looked_at + span
    return places, end


def _nearest_first(
    connection: Connection, session: int, asked: Compiled, window: tuple[int, int], wanted: int, scan: int
) -> tuple[list[Place], int]:
    """What the first events of a window hold, where it is a gain to walk them; and where what is left begins."""
    start, end = window
    places, looked_at = list[Place](), 0
    while asked.near and end > start + 1 and (span := _span(wanted, len(places), looked_at, scan)) > 0:
        split = min(end, start + 1 + span)
        for probe in asked.near:
            high = split if len(places) < wanted else min(split, places[wanted - 1][0] + 1)
            more = walked(FIRST_WALKS, connection, session, asked, probe, (start, high), wanted)
            places = sorted({*places, *more})
        start, looked_at = split - 1, looked_at + span
    return places, start


def _span(wanted: int, found: int, looked_at: int, scan: int) -> int:
    """How many events to walk next: as many as it takes, going by those that were; none where the indexes lead further."""
    if found >= wanted or found * _NEAR * _SPARSE < looked_at:
        return 0
    span = 3 * (wanted - found) * looked_at // (2 * found) if found else _NEAR * wanted
    return min(max(span, _LEAST_NEAR), min(_MOST_NEAR, scan) - looked_at)


def of_another(connection: Connection, session: int, seq: int, agent: int) -> str | None:
    """The id of an event, where another agent wrote it."""
    return next(
        (id_text(found) for (found,) in fetch(connection, SELECT_OF_ANOTHER, (session, seq, agent))), None
    )


def linked(connection: Connection, positions: Sequence[int], types: Sequence[int], limit: int) -> list[int]:
    """The positions that events name by links of some types, at most `limit`."""
    asked = (strictjson.dump(positions).decode(), strictjson.dump(types).decode(), limit)
    return [pos for (pos,) in fetch(connection, SELECT_LINKED, asked)]


def below(
    connection: Connection, session: SessionRow, positions: Sequence[int], ceiling: Ceiling, upto: int
) -> list[tuple[Segment, Place]]:
    """Those of some events that are the session's, up to seq `upto`, and below the ceiling; by seq."""
    found: list[tuple[Segment, Place]] = []
    asked = (strictjson.dump(positions).decode(), *ceiling)
    for number, seq, pos in fetch(connection, BELOW_CEILINGS, asked):
        segment = session.segment_of(seq)
        if segment.number == number and seq <= upto:
            found.append((segment, (seq, pos)))
    return sorted(found, key=lambda place: place[1])


def rows(connection: Connection, places: Iterable[tuple[Segment, Place]]) -> list[tuple[str, list[Row]]]:
    """The rows of events, by the session that they belong to, in the order given."""
    parts: list[tuple[str, list[int]]] = []
    for segment, (_, pos) in places:
        if not parts or parts[-1][0] != segment.name:
            parts.append((segment.name, []))
        parts[-1][1].append(pos)
    return [
        (name, fetch(connection, SELECT_ROWS, (strictjson.dump(positions).decode(),)))
        for name, positions in parts
    ]
