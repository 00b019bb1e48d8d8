"""The slice itself: which events of a session a view shows, by index scans over envelope columns.

A view is compiled to probes. Each walks one index in the order of seq: the postings of a recipient, task, thread,
effect state, proposing performative, kind or author, or where a select names none of these the events themselves;
what else it asks for, and every ceiling, is tested on the narrow rows on the way. The answers are merged. A probe
looks at a bounded number of rows; where one stopped short, what lies behind the place is not known, and the answer
says where to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.reading import SELECT_HEAD, Row
from convlog_sqlite.store.sessions import Segment, SessionRow

# ?1 session  ?2 after seq  ?3 before seq  ?4 limit  ?5 types (bits)  ?6 a step of an effect
# ?7 highest sensitivity  ?8 flags that keep an event back  ?9 purpose  and where postings are walked ?10 facet  ?11 name
LAST_EVENTS: Final = """
SELECT n.seq, n.pos FROM event AS n WHERE n.session = ?1 AND n.seq > ?2 AND n.seq < ?3
AND (?5 = 0 OR ?5 >> n.type & 1) AND (?6 = 0 OR n.flags & 8) AND n.sensitivity <= ?7
AND (NOT n.flags & ?8 OR NOT n.flags & ?8 & 1
    AND (NOT n.flags & ?8 & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
    AND (NOT n.flags & ?8 & 4 OR EXISTS (SELECT 1 FROM purpose AS q
         WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?9)))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
    AND (b.sensitivity > ?7 OR ?8 & b.person))
ORDER BY n.seq DESC LIMIT ?4"""
FIRST_EVENTS: Final = """
SELECT n.seq, n.pos FROM event AS n WHERE n.session = ?1 AND n.seq > ?2 AND n.seq < ?3
AND (?5 = 0 OR ?5 >> n.type & 1) AND (?6 = 0 OR n.flags & 8) AND n.sensitivity <= ?7
AND (NOT n.flags & ?8 OR NOT n.flags & ?8 & 1
    AND (NOT n.flags & ?8 & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
    AND (NOT n.flags & ?8 & 4 OR EXISTS (SELECT 1 FROM purpose AS q
         WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?9)))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
    AND (b.sensitivity > ?7 OR ?8 & b.person))
ORDER BY n.seq LIMIT ?4"""
LAST_POSTED: Final = """
SELECT n.seq, n.pos FROM posting AS i CROSS JOIN event AS n ON n.session = i.session AND n.seq = i.seq
WHERE i.session = ?1 AND i.facet = ?10 AND i.name = ?11 AND i.seq > ?2 AND i.seq < ?3
AND (?5 = 0 OR ?5 >> n.type & 1) AND (?6 = 0 OR n.flags & 8) AND n.sensitivity <= ?7
AND (NOT n.flags & ?8 OR NOT n.flags & ?8 & 1
    AND (NOT n.flags & ?8 & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
    AND (NOT n.flags & ?8 & 4 OR EXISTS (SELECT 1 FROM purpose AS q
         WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?9)))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
    AND (b.sensitivity > ?7 OR ?8 & b.person))
ORDER BY i.seq DESC LIMIT ?4"""
FIRST_POSTED: Final = """
SELECT n.seq, n.pos FROM posting AS i CROSS JOIN event AS n ON n.session = i.session AND n.seq = i.seq
WHERE i.session = ?1 AND i.facet = ?10 AND i.name = ?11 AND i.seq > ?2 AND i.seq < ?3
AND (?5 = 0 OR ?5 >> n.type & 1) AND (?6 = 0 OR n.flags & 8) AND n.sensitivity <= ?7
AND (NOT n.flags & ?8 OR NOT n.flags & ?8 & 1
    AND (NOT n.flags & ?8 & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
    AND (NOT n.flags & ?8 & 4 OR EXISTS (SELECT 1 FROM purpose AS q
         WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?9)))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
    AND (b.sensitivity > ?7 OR ?8 & b.person))
ORDER BY i.seq LIMIT ?4"""
# The same, and behind the last parameter: agents, roles, tasks, threads, kinds, performatives, recipients (lists),
# tool, correlation, recipient. Apart, because to have them in a statement takes as long as the rest of it.
LAST_EVENTS_TESTED: Final = """
SELECT n.seq, n.pos FROM event AS n WHERE n.session = ?1 AND n.seq > ?2 AND n.seq < ?3
AND (?5 = 0 OR ?5 >> n.type & 1) AND (?6 = 0 OR n.flags & 8) AND n.sensitivity <= ?7
AND (NOT n.flags & ?8 OR NOT n.flags & ?8 & 1
    AND (NOT n.flags & ?8 & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
    AND (NOT n.flags & ?8 & 4 OR EXISTS (SELECT 1 FROM purpose AS q
         WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?9)))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
    AND (b.sensitivity > ?7 OR ?8 & b.person))
AND (?10 IS NULL OR n.agent IN (SELECT value FROM json_each(?10)))
AND (?11 IS NULL OR n.role IN (SELECT value FROM json_each(?11)))
AND (?12 IS NULL OR n.task IN (SELECT value FROM json_each(?12)))
AND (?13 IS NULL OR n.thread IN (SELECT value FROM json_each(?13)))
AND (?14 IS NULL OR n.kind IN (SELECT value FROM json_each(?14)))
AND (?15 IS NULL OR n.performative IN (SELECT value FROM json_each(?15)))
AND (?16 IS NULL OR EXISTS (SELECT 1 FROM json_each(?16) AS j CROSS JOIN posting AS p
     ON p.session = n.session AND p.facet = 4 AND p.name = j.value AND p.seq = n.seq))
AND (?17 IS NULL OR n.tool = ?17) AND (?18 IS NULL OR n.correlation = ?18)
AND (?19 IS NULL OR EXISTS (SELECT 1 FROM posting AS p
     WHERE p.session = n.session AND p.facet = 4 AND p.name = ?19 AND p.seq = n.seq))
ORDER BY n.seq DESC LIMIT ?4"""
FIRST_EVENTS_TESTED: Final = """
SELECT n.seq, n.pos FROM event AS n WHERE n.session = ?1 AND n.seq > ?2 AND n.seq < ?3
AND (?5 = 0 OR ?5 >> n.type & 1) AND (?6 = 0 OR n.flags & 8) AND n.sensitivity <= ?7
AND (NOT n.flags & ?8 OR NOT n.flags & ?8 & 1
    AND (NOT n.flags & ?8 & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
    AND (NOT n.flags & ?8 & 4 OR EXISTS (SELECT 1 FROM purpose AS q
         WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?9)))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
    AND (b.sensitivity > ?7 OR ?8 & b.person))
AND (?10 IS NULL OR n.agent IN (SELECT value FROM json_each(?10)))
AND (?11 IS NULL OR n.role IN (SELECT value FROM json_each(?11)))
AND (?12 IS NULL OR n.task IN (SELECT value FROM json_each(?12)))
AND (?13 IS NULL OR n.thread IN (SELECT value FROM json_each(?13)))
AND (?14 IS NULL OR n.kind IN (SELECT value FROM json_each(?14)))
AND (?15 IS NULL OR n.performative IN (SELECT value FROM json_each(?15)))
AND (?16 IS NULL OR EXISTS (SELECT 1 FROM json_each(?16) AS j CROSS JOIN posting AS p
     ON p.session = n.session AND p.facet = 4 AND p.name = j.value AND p.seq = n.seq))
AND (?17 IS NULL OR n.tool = ?17) AND (?18 IS NULL OR n.correlation = ?18)
AND (?19 IS NULL OR EXISTS (SELECT 1 FROM posting AS p
     WHERE p.session = n.session AND p.facet = 4 AND p.name = ?19 AND p.seq = n.seq))
ORDER BY n.seq LIMIT ?4"""
LAST_POSTED_TESTED: Final = """
SELECT n.seq, n.pos FROM posting AS i CROSS JOIN event AS n ON n.session = i.session AND n.seq = i.seq
WHERE i.session = ?1 AND i.facet = ?10 AND i.name = ?11 AND i.seq > ?2 AND i.seq < ?3
AND (?5 = 0 OR ?5 >> n.type & 1) AND (?6 = 0 OR n.flags & 8) AND n.sensitivity <= ?7
AND (NOT n.flags & ?8 OR NOT n.flags & ?8 & 1
    AND (NOT n.flags & ?8 & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
    AND (NOT n.flags & ?8 & 4 OR EXISTS (SELECT 1 FROM purpose AS q
         WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?9)))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
    AND (b.sensitivity > ?7 OR ?8 & b.person))
AND (?12 IS NULL OR n.agent IN (SELECT value FROM json_each(?12)))
AND (?13 IS NULL OR n.role IN (SELECT value FROM json_each(?13)))
AND (?14 IS NULL OR n.task IN (SELECT value FROM json_each(?14)))
AND (?15 IS NULL OR n.thread IN (SELECT value FROM json_each(?15)))
AND (?16 IS NULL OR n.kind IN (SELECT value FROM json_each(?16)))
AND (?17 IS NULL OR n.performative IN (SELECT value FROM json_each(?17)))
AND (?18 IS NULL OR EXISTS (SELECT 1 FROM json_each(?18) AS j CROSS JOIN posting AS p
     ON p.session = n.session AND p.facet = 4 AND p.name = j.value AND p.seq = n.seq))
AND (?19 IS NULL OR n.tool = ?19) AND (?20 IS NULL OR n.correlation = ?20)
AND (?21 IS NULL OR EXISTS (SELECT 1 FROM posting AS p
     WHERE p.session = n.session AND p.facet = 4 AND p.name = ?21 AND p.seq = n.seq))
ORDER BY i.seq DESC LIMIT ?4"""
FIRST_POSTED_TESTED: Final = """
SELECT n.seq, n.pos FROM posting AS i CROSS JOIN event AS n ON n.session = i.session AND n.seq = i.seq
WHERE i.session = ?1 AND i.facet = ?10 AND i.name = ?11 AND i.seq > ?2 AND i.seq < ?3
AND (?5 = 0 OR ?5 >> n.type & 1) AND (?6 = 0 OR n.flags & 8) AND n.sensitivity <= ?7
AND (NOT n.flags & ?8 OR NOT n.flags & ?8 & 1
    AND (NOT n.flags & ?8 & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
    AND (NOT n.flags & ?8 & 4 OR EXISTS (SELECT 1 FROM purpose AS q
         WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?9)))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
    AND (b.sensitivity > ?7 OR ?8 & b.person))
AND (?12 IS NULL OR n.agent IN (SELECT value FROM json_each(?12)))
AND (?13 IS NULL OR n.role IN (SELECT value FROM json_each(?13)))
AND (?14 IS NULL OR n.task IN (SELECT value FROM json_each(?14)))
AND (?15 IS NULL OR n.thread IN (SELECT value FROM json_each(?15)))
AND (?16 IS NULL OR n.kind IN (SELECT value FROM json_each(?16)))
AND (?17 IS NULL OR n.performative IN (SELECT value FROM json_each(?17)))
AND (?18 IS NULL OR EXISTS (SELECT 1 FROM json_each(?18) AS j CROSS JOIN posting AS p
     ON p.session = n.session AND p.facet = 4 AND p.name = j.value AND p.seq = n.seq))
AND (?19 IS NULL OR n.tool = ?19) AND (?20 IS NULL OR n.correlation = ?20)
AND (?21 IS NULL OR EXISTS (SELECT 1 FROM posting AS p
     WHERE p.session = n.session AND p.facet = 4 AND p.name = ?21 AND p.seq = n.seq))
ORDER BY i.seq LIMIT ?4"""
# The ?6-th posting from here: ?1 session  ?2 after  ?3 before  ?4 facet  ?5 name
FLOOR: Final = """
SELECT seq FROM posting WHERE session = ?1 AND facet = ?4 AND name = ?5 AND seq > ?2 AND seq < ?3
ORDER BY seq DESC LIMIT 1 OFFSET ?6"""
ROOF: Final = """
SELECT seq FROM posting WHERE session = ?1 AND facet = ?4 AND name = ?5 AND seq > ?2 AND seq < ?3
ORDER BY seq LIMIT 1 OFFSET ?6"""

# Of events by position, those below the ceilings: ?1 positions, ?2 to ?4 are ?7 to ?9 above.
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

_FIRST_LOOK: Final = 64  # rows
_FURTHER: Final = 16  # times as many


class Ceiling(NamedTuple):
    """What keeps an event back whatever selects it: its sensitivity, and what its flags say.

    `flags` are those of ABOUT_A_PERSON, UNLABELLED and FOR_SOME_PURPOSES that do; `purpose` is the number of the
    name for which the last does not, 0 for none.
    """

    sensitivity: int
    flags: int
    purpose: int


class Tests(NamedTuple):
    """What else to test on the way: lists of numbers in JSON, and single numbers; None: not asked for."""

    agents: str | None = None
    roles: str | None = None
    tasks: str | None = None
    threads: str | None = None
    kinds: str | None = None
    performatives: str | None = None
    recipients: str | None = None
    tool: int | None = None
    correlation: int | None = None
    to: int | None = None


NO_TESTS: Final = Tests()


class Probe(NamedTuple):
    """One walk: over the postings `walk` (facet and name), or the events themselves. `types` are bits, 0 for all."""

    types: int
    effects: int
    walk: tuple[int, int] | tuple[()]
    tests: Tests


class Compiled(NamedTuple):
    """What a view asks of the tables, for one reader."""

    probes: Sequence[Probe]
    ceiling: Ceiling


Place = tuple[int, int]  # seq and pos of an event
_Found = tuple[list[Place], int | None]  # and where the probe stopped short


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
        end = min(end, head + 1)
        wanted, places, stops = limit - len(found), list[Place](), [start]
        for probe in asked.probes:
            # What lies in front of as many as are wanted cannot be among the last of them.
            low = start if len(places) < wanted else places[-wanted][0] - 1
            more, stop = _last(connection, part.number, asked, probe, (low, end), wanted, scan)
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
        wanted, places, stops = limit - len(found), list[Place](), [end]
        for probe in asked.probes:
            high = end if len(places) < wanted else places[wanted - 1][0] + 1
            more, stop = _first(connection, part.number, asked, probe, (start, high), wanted, scan)
            places = sorted({*places, *more})
            stops += [] if stop is None else [stop]
        stopped = min(stops)
        found += [(part, place) for place in places[:wanted] if place[0] <= stopped]
        if len(stops) > 1 and len(found) < limit:
            return Sliced(found, stopped)
    return Sliced(found, None)


def _last(
    connection: Connection,
    session: int,
    asked: Compiled,
    probe: Probe,
    window: tuple[int, int],
    limit: int,
    scan: int,
) -> _Found:
    after, end = window
    found: list[Place] = []
    sql = _LAST[bool(probe.walk), probe.tests != NO_TESTS]
    for look in _looks(scan, limit):
        if not probe.walk or end - look <= after + 1:
            floor = end - look if end - look > after + 1 else None
        else:
            floor = value(connection, FLOOR, (session, after, end, *probe.walk, look - 1))
        start = after if floor is None else floor - 1
        found += fetch(
            connection, sql, _place(session, (start, end), limit - len(found), asked.ceiling, probe)
        )
        if len(found) >= limit or floor is None:
            return found, None
        end = floor
    return found, end


def _first(
    connection: Connection,
    session: int,
    asked: Compiled,
    probe: Probe,
    window: tuple[int, int],
    limit: int,
    scan: int,
) -> _Found:
    start, before = window
    found: list[Place] = []
    sql = _FIRST[bool(probe.walk), probe.tests != NO_TESTS]
    for look in _looks(scan, limit):
        if start + look >= before - 1:
            roof = None
        elif not probe.walk:
            head = value(connection, SELECT_HEAD, (session,)) or start
            roof = start + look if start + look < head else None
        else:
            roof = value(connection, ROOF, (session, start, before, *probe.walk, look - 1))
        end = before if roof is None else roof + 1
        found += fetch(
            connection, sql, _place(session, (start, end), limit - len(found), asked.ceiling, probe)
        )
        if len(found) >= limit or roof is None:
            return found, None
        start = roof
    return found, start


# By whether postings are walked, and whether there is more to test.
_LAST: Final = {
    (False, False): LAST_EVENTS,
    (False, True): LAST_EVENTS_TESTED,
    (True, False): LAST_POSTED,
    (True, True): LAST_POSTED_TESTED,
}
_FIRST: Final = {
    (False, False): FIRST_EVENTS,
    (False, True): FIRST_EVENTS_TESTED,
    (True, False): FIRST_POSTED,
    (True, True): FIRST_POSTED_TESTED,
}


def _place(
    session: int, window: tuple[int, int], limit: int, ceiling: Ceiling, probe: Probe
) -> tuple[int | str | None, ...]:
    """The parameters of a walk."""
    asked = (session, *window, limit, probe.types, probe.effects, *ceiling, *probe.walk)
    return asked if probe.tests == NO_TESTS else (*asked, *probe.tests)


def _looks(scan: int, limit: int) -> Iterator[int]:
    """How many rows to look at, and then how many more: most walks find what they want near by."""
    look = max(_FIRST_LOOK, 2 * limit)
    while scan > 0:
        yield min(look, scan)
        scan -= look
        look *= _FURTHER


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
