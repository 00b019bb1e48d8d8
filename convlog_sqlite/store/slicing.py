"""The slice itself: which events of a session a view shows, by index scans over envelope columns.

A view is compiled to probes. Each walks one index in the order of seq: the postings of a recipient, task, thread,
effect state, proposing performative, kind or author, or where a select names none of these the events themselves;
what else it asks for, and every ceiling, is tested on the narrow rows on the way. The answers are merged. A probe
looks at a bounded number of rows; where one stopped short, what lies behind the place is not known, and the answer
says where to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.store.reading import SELECT_HEAD, Row
from convlog_sqlite.store.sessions import Segment, SessionRow

# ?1 session  ?2 after seq  ?3 before seq  ?4 limit
# ?5 types (bits)  ?6 agents  ?7 roles  ?8 tasks  ?9 threads  ?10 kinds  ?11 performatives  ?12 recipients (lists)
# ?13 a step of an effect  ?14 tool  ?15 correlation  ?16 recipient
# ?17 highest sensitivity  ?18 nothing about a person  ?19 nothing unlabelled  ?20 purpose  ?21 facet  ?22 name
LAST_EVENTS: Final = """
SELECT n.seq, n.pos FROM event AS n
WHERE n.session = ?1 AND n.seq > ?2 AND n.seq < ?3
AND (?5 IS NULL OR (1 << n.type) & ?5) AND (?6 IS NULL OR n.agent IN (SELECT value FROM json_each(?6)))
AND (?7 IS NULL OR n.role IN (SELECT value FROM json_each(?7)))
AND (?8 IS NULL OR n.task IN (SELECT value FROM json_each(?8)))
AND (?9 IS NULL OR n.thread IN (SELECT value FROM json_each(?9)))
AND (?10 IS NULL OR n.kind IN (SELECT value FROM json_each(?10)))
AND (?11 IS NULL OR n.performative IN (SELECT value FROM json_each(?11)))
AND (?12 IS NULL OR EXISTS (SELECT 1 FROM json_each(?12) AS j CROSS JOIN posting AS p
     ON p.session = n.session AND p.facet = 4 AND p.name = j.value AND p.seq = n.seq))
AND (?13 = 0 OR n.flags & 8) AND (?14 IS NULL OR n.tool = ?14) AND (?15 IS NULL OR n.correlation = ?15)
AND (?16 IS NULL OR EXISTS (SELECT 1 FROM posting AS p
     WHERE p.session = n.session AND p.facet = 4 AND p.name = ?16 AND p.seq = n.seq))
AND n.sensitivity <= ?17 AND (?18 = 0 OR NOT n.flags & 1)
AND (?19 = 0 OR NOT n.flags & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
AND (?20 IS NULL OR NOT n.flags & 4 OR EXISTS (SELECT 1 FROM purpose AS q
     WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?20))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
     AND (b.sensitivity > ?17 OR ?18 AND b.person))
ORDER BY n.seq DESC LIMIT ?4"""
FIRST_EVENTS: Final = """
SELECT n.seq, n.pos FROM event AS n
WHERE n.session = ?1 AND n.seq > ?2 AND n.seq < ?3
AND (?5 IS NULL OR (1 << n.type) & ?5) AND (?6 IS NULL OR n.agent IN (SELECT value FROM json_each(?6)))
AND (?7 IS NULL OR n.role IN (SELECT value FROM json_each(?7)))
AND (?8 IS NULL OR n.task IN (SELECT value FROM json_each(?8)))
AND (?9 IS NULL OR n.thread IN (SELECT value FROM json_each(?9)))
AND (?10 IS NULL OR n.kind IN (SELECT value FROM json_each(?10)))
AND (?11 IS NULL OR n.performative IN (SELECT value FROM json_each(?11)))
AND (?12 IS NULL OR EXISTS (SELECT 1 FROM json_each(?12) AS j CROSS JOIN posting AS p
     ON p.session = n.session AND p.facet = 4 AND p.name = j.value AND p.seq = n.seq))
AND (?13 = 0 OR n.flags & 8) AND (?14 IS NULL OR n.tool = ?14) AND (?15 IS NULL OR n.correlation = ?15)
AND (?16 IS NULL OR EXISTS (SELECT 1 FROM posting AS p
     WHERE p.session = n.session AND p.facet = 4 AND p.name = ?16 AND p.seq = n.seq))
AND n.sensitivity <= ?17 AND (?18 = 0 OR NOT n.flags & 1)
AND (?19 = 0 OR NOT n.flags & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
AND (?20 IS NULL OR NOT n.flags & 4 OR EXISTS (SELECT 1 FROM purpose AS q
     WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?20))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
     AND (b.sensitivity > ?17 OR ?18 AND b.person))
ORDER BY n.seq LIMIT ?4"""
LAST_POSTED: Final = """
SELECT n.seq, n.pos FROM posting AS i CROSS JOIN event AS n ON n.session = i.session AND n.seq = i.seq
WHERE i.session = ?1 AND i.facet = ?21 AND i.name = ?22 AND i.seq > ?2 AND i.seq < ?3
AND (?5 IS NULL OR (1 << n.type) & ?5) AND (?6 IS NULL OR n.agent IN (SELECT value FROM json_each(?6)))
AND (?7 IS NULL OR n.role IN (SELECT value FROM json_each(?7)))
AND (?8 IS NULL OR n.task IN (SELECT value FROM json_each(?8)))
AND (?9 IS NULL OR n.thread IN (SELECT value FROM json_each(?9)))
AND (?10 IS NULL OR n.kind IN (SELECT value FROM json_each(?10)))
AND (?11 IS NULL OR n.performative IN (SELECT value FROM json_each(?11)))
AND (?12 IS NULL OR EXISTS (SELECT 1 FROM json_each(?12) AS j CROSS JOIN posting AS p
     ON p.session = n.session AND p.facet = 4 AND p.name = j.value AND p.seq = n.seq))
AND (?13 = 0 OR n.flags & 8) AND (?14 IS NULL OR n.tool = ?14) AND (?15 IS NULL OR n.correlation = ?15)
AND (?16 IS NULL OR EXISTS (SELECT 1 FROM posting AS p
     WHERE p.session = n.session AND p.facet = 4 AND p.name = ?16 AND p.seq = n.seq))
AND n.sensitivity <= ?17 AND (?18 = 0 OR NOT n.flags & 1)
AND (?19 = 0 OR NOT n.flags & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
AND (?20 IS NULL OR NOT n.flags & 4 OR EXISTS (SELECT 1 FROM purpose AS q
     WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?20))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
     AND (b.sensitivity > ?17 OR ?18 AND b.person))
ORDER BY i.seq DESC LIMIT ?4"""
FIRST_POSTED: Final = """
SELECT n.seq, n.pos FROM posting AS i CROSS JOIN event AS n ON n.session = i.session AND n.seq = i.seq
WHERE i.session = ?1 AND i.facet = ?21 AND i.name = ?22 AND i.seq > ?2 AND i.seq < ?3
AND (?5 IS NULL OR (1 << n.type) & ?5) AND (?6 IS NULL OR n.agent IN (SELECT value FROM json_each(?6)))
AND (?7 IS NULL OR n.role IN (SELECT value FROM json_each(?7)))
AND (?8 IS NULL OR n.task IN (SELECT value FROM json_each(?8)))
AND (?9 IS NULL OR n.thread IN (SELECT value FROM json_each(?9)))
AND (?10 IS NULL OR n.kind IN (SELECT value FROM json_each(?10)))
AND (?11 IS NULL OR n.performative IN (SELECT value FROM json_each(?11)))
AND (?12 IS NULL OR EXISTS (SELECT 1 FROM json_each(?12) AS j CROSS JOIN posting AS p
     ON p.session = n.session AND p.facet = 4 AND p.name = j.value AND p.seq = n.seq))
AND (?13 = 0 OR n.flags & 8) AND (?14 IS NULL OR n.tool = ?14) AND (?15 IS NULL OR n.correlation = ?15)
AND (?16 IS NULL OR EXISTS (SELECT 1 FROM posting AS p
     WHERE p.session = n.session AND p.facet = 4 AND p.name = ?16 AND p.seq = n.seq))
AND n.sensitivity <= ?17 AND (?18 = 0 OR NOT n.flags & 1)
AND (?19 = 0 OR NOT n.flags & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
AND (?20 IS NULL OR NOT n.flags & 4 OR EXISTS (SELECT 1 FROM purpose AS q
     WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?20))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
     AND (b.sensitivity > ?17 OR ?18 AND b.person))
ORDER BY i.seq LIMIT ?4"""
# The ?6-th posting from here: ?1 session  ?2 after  ?3 before  ?4 facet  ?5 name
FLOOR: Final = """
SELECT seq FROM posting WHERE session = ?1 AND facet = ?4 AND name = ?5 AND seq > ?2 AND seq < ?3
ORDER BY seq DESC LIMIT 1 OFFSET ?6"""
ROOF: Final = """
SELECT seq FROM posting WHERE session = ?1 AND facet = ?4 AND name = ?5 AND seq > ?2 AND seq < ?3
ORDER BY seq LIMIT 1 OFFSET ?6"""

# Of events by position, those below the ceilings: ?1 positions, ?2 to ?5 are ?17 to ?20 above.
BELOW_CEILINGS: Final = """
SELECT v.session, v.seq, v.pos FROM json_each(?1) AS j CROSS JOIN envelope AS v ON v.pos = j.value
CROSS JOIN event AS n ON n.session = v.session AND n.seq = v.seq
WHERE n.sensitivity <= ?2 AND (?3 = 0 OR NOT n.flags & 1)
AND (?4 = 0 OR NOT n.flags & 2 OR EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq))
AND (?5 IS NULL OR NOT n.flags & 4 OR EXISTS (SELECT 1 FROM purpose AS q
     WHERE q.session = n.session AND q.seq = n.seq AND q.name = ?5))
AND NOT EXISTS (SELECT 1 FROM label AS b WHERE b.session = n.session AND b.seq = n.seq
     AND (b.sensitivity > ?2 OR ?3 AND b.person))"""
# The targets of links of some types, at most ?3 of them for each event.
SELECT_LINKED: Final = """
SELECT DISTINCT l.target FROM json_each(?1) AS j CROSS JOIN link AS l ON l.pos = j.value
AND l.type IN (SELECT value FROM json_each(?2)) LIMIT ?3"""
SELECT_ROWS: Final = """
SELECT v.seq, v.id, v.bytes, p.slot, p.sealed FROM json_each(?1) AS j CROSS JOIN envelope AS v ON v.pos = j.value
LEFT JOIN payload AS p ON p.pos = v.pos"""

_FIRST_LOOK: Final = 256  # rows looked at before the rest of the bound: most tails need no more


class Ceiling(NamedTuple):
    """What keeps an event back whatever selects it. `purpose` is a name's number, 0 for none, None for any."""

    sensitivity: int
    no_people: bool
    no_unlabelled: bool
    purpose: int | None


class Probe(NamedTuple):
    """One walk: what to test on the way, as numbers and JSON lists of numbers, and the posting to walk, if any."""

    types: int | None = None
    agents: str | None = None
    roles: str | None = None
    tasks: str | None = None
    threads: str | None = None
    kinds: str | None = None
    performatives: str | None = None
    recipients: str | None = None
    effects: int = 0
    tool: int | None = None
    correlation: int | None = None
    to: int | None = None
    facet: int | None = None
    name: int | None = None


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
        answers = [
            _last(connection, part.number, asked, probe, (start, end), limit, scan) for probe in asked.probes
        ]
        stopped = max((stop for _, stop in answers if stop is not None), default=None)
        places = _merged(answers, start if stopped is None else stopped, end)
        found[:0] = [(part, place) for place in places[-(limit - len(found)) :]] if limit else []
        if stopped is not None and len(found) < limit:
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
        answers = [
            _first(connection, part.number, asked, probe, (start, end), limit, scan) for probe in asked.probes
        ]
        stopped = min((stop for _, stop in answers if stop is not None), default=None)
        places = _merged(answers, start, end if stopped is None else stopped)
        found += [(part, place) for place in places[: limit - len(found)]]
        if stopped is not None and len(found) < limit:
            return Sliced(found, stopped)
    return Sliced(found, None)


def _merged(answers: Iterable[_Found], lowest: int, highest: int) -> list[Place]:
    """What any of the probes found, each event once, ascending, where all of them are known to have looked."""
    return sorted({place for places, _ in answers for place in places if lowest <= place[0] <= highest})


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
    sql = LAST_EVENTS if probe.facet is None else LAST_POSTED
    for look in _looks(scan, limit):
        if probe.facet is None:
            floor = end - look if end - look > after + 1 else None
        else:
            floor = value(connection, FLOOR, (session, after, end, probe.facet, probe.name, look - 1))
        start = after if floor is None else floor - 1
        place = _place(session, (start, end), limit - len(found), asked.ceiling, probe)
        found += fetch(connection, sql, place)
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
    sql = FIRST_EVENTS if probe.facet is None else FIRST_POSTED
    for look in _looks(scan, limit):
        if probe.facet is None:
            head = value(connection, SELECT_HEAD, (session,)) or start
            roof = start + look if start + look < min(before - 1, head) else None
        else:
            roof = value(connection, ROOF, (session, start, before, probe.facet, probe.name, look - 1))
        end = before if roof is None else roof + 1
        place = _place(session, (start, end), limit - len(found), asked.ceiling, probe)
        found += fetch(connection, sql, place)
        if len(found) >= limit or roof is None:
            return found, None
        start = roof
    return found, start


def _place(
    session: int, window: tuple[int, int], limit: int, ceiling: Ceiling, probe: Probe
) -> tuple[int | str | None, ...]:
    """The parameters of a walk; what to walk is only asked for where that is a posting."""
    asked = (session, *window, limit, *probe[:-2], *ceiling)
    return asked if probe.facet is None else (*asked, *probe[-2:])


def _looks(scan: int, limit: int) -> Iterable[int]:
    """How many rows to look at, and then how many more."""
    near = min(scan, max(_FIRST_LOOK, 2 * limit))
    return (near, scan - near) if scan > near else (near,)


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
