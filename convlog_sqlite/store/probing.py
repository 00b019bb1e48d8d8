"""Probes: single walks over one index of a session, in the order of seq, which a view is compiled to.

A probe walks the postings of a recipient, task, thread, effect state, proposing performative, kind or author, or the
events themselves; what else is asked, and every ceiling, is tested on the narrow rows on the way. It looks at a bounded
number of rows: where it stopped short, what lies behind the place is not known, and it says where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.store.reading import SELECT_HEAD

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
    """What a view asks of the tables, for one reader.

    `probes` find all of it. Where they are many, as for each task of a reader, most of what is looked for is near
    all the same: `near` finds the same among the nearest events, which are walked once for each select. It is empty
    where that is no gain.
    """

    probes: Sequence[Probe]
    near: Sequence[Probe]
    ceiling: Ceiling


Place = tuple[int, int]  # seq and pos of an event
Found = tuple[list[Place], int | None]  # and where the probe stopped short


def last_of(
    connection: Connection,
    session: int,
    asked: Compiled,
    probe: Probe,
    window: tuple[int, int],
    limit: int,
    scan: int,
) -> Found:
    """The last of what one probe finds in a window, and the seq behind which it did not look; None where it saw all."""
    after, end = window
    found: list[Place] = []
    for look in _looks(scan, limit):
        if not probe.walk or end - look <= after + 1:
            floor = end - look if end - look > after + 1 else None
        else:
            floor = value(connection, FLOOR, (session, after, end, *probe.walk, look - 1))
        start = after if floor is None else floor - 1
        found += walked(LAST_WALKS, connection, session, asked, probe, (start, end), limit - len(found))
        if len(found) >= limit or floor is None:
            return found, None
        end = floor
    return found, end


def first_of(
    connection: Connection,
    session: int,
    asked: Compiled,
    probe: Probe,
    window: tuple[int, int],
    limit: int,
    scan: int,
) -> Found:
    """The first of what one probe finds in a window, and the seq in front of which it did not look, as above."""
    start, before = window
    found: list[Place] = []
    for look in _looks(scan, limit):
        if start + look >= before - 1:
            roof = None
        elif not probe.walk:
            head = value(connection, SELECT_HEAD, (session,)) or start
            roof = start + look if start + look < head else None
        else:
            roof = value(connection, ROOF, (session, start, before, *probe.walk, look - 1))
        end = before if roof is None else roof + 1
        found += walked(FIRST_WALKS, connection, session, asked, probe, (start, end), limit - len(found))
        if len(found) >= limit or roof is None:
            return found, None
        start = roof
    return found, start


# By whether postings are walked, and whether there is more to test.
LAST_WALKS: Final = {
    (False, False): LAST_EVENTS,
    (False, True): LAST_EVENTS_TESTED,
    (True, False): LAST_POSTED,
    (True, True): LAST_POSTED_TESTED,
}
FIRST_WALKS: Final = {
    (False, False): FIRST_EVENTS,
    (False, True): FIRST_EVENTS_TESTED,
    (True, False): FIRST_POSTED,
    (True, True): FIRST_POSTED_TESTED,
}


def walked(
    statements: Mapping[tuple[bool, bool], str],
    connection: Connection,
    session: int,
    asked: Compiled,
    probe: Probe,
    window: tuple[int, int],
    limit: int,
) -> list[Place]:
    """What a probe finds in a window, at most `limit` of it."""
    sql = statements[bool(probe.walk), probe.tests != NO_TESTS]
    return fetch(connection, sql, _place(session, window, limit, asked.ceiling, probe))


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
