"""What goes with what is erased: claims derived from it, what is derived from those, and what says the same.

A claim says what its evidence said, so it goes with any of it. The proposal of a claim says what the claim says: each
goes with the other when it is redacted, whether or not what is derived is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch, value

HAS_CLAIMS: Final = "SELECT EXISTS (SELECT 1 FROM name WHERE text IN ('memory-proposed', 'memory-promoted'))"
# ?1 positions: a list in JSON
SELECT_DERIVED: Final = """
SELECT l.pos FROM json_each(?1) AS j CROSS JOIN link AS l ON l.target = j.value AND l.type = 4
CROSS JOIN envelope AS v ON v.pos = l.pos CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq
WHERE e.kind IN (SELECT id FROM name WHERE text IN ('memory-proposed', 'memory-promoted'))"""
# Of a claim its proposal, of a proposal its claim.
SELECT_SAME: Final = """
SELECT p.pos FROM json_each(?1) AS j CROSS JOIN envelope AS v ON v.pos = j.value
CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq CROSS JOIN envelope AS p ON p.pos = e.parent CROSS JOIN event AS q ON q.session = p.session AND q.seq = p.seq
WHERE e.kind = (SELECT id FROM name WHERE text = 'memory-promoted')
AND q.kind = (SELECT id FROM name WHERE text = 'memory-proposed')
UNION ALL
SELECT c.pos FROM json_each(?1) AS j CROSS JOIN envelope AS v ON v.pos = j.value
CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq CROSS JOIN event AS c ON c.parent = e.pos
WHERE e.kind = (SELECT id FROM name WHERE text = 'memory-proposed')
AND c.kind = (SELECT id FROM name WHERE text = 'memory-promoted')"""

IS_GONE: Final = """
SELECT EXISTS (SELECT 1 FROM tombstone WHERE pos = ?1) OR EXISTS (SELECT 1 FROM intent_event WHERE pos = ?1)"""

_AT_ONCE: Final = 10_000  # positions in one statement


@dataclass(frozen=True, slots=True)
class Reach:
    """Positions that go with those asked for: `derived` are erased with them, `kept` are derived and stay."""

    derived: frozenset[int]
    kept: frozenset[int]


NOTHING: Final = Reach(frozenset(), frozenset())


def reach(
    connection: Connection, positions: Iterable[int], *, keep: bool = False, same: bool = True
) -> Reach:
    """What goes with events that are erased. With `keep`, claims derived from them stay.

    Without `same`, what says the same goes only where it is derived too: a policy may let a proposal go before
    its claim.
    """
    if not value(connection, HAS_CLAIMS):
        return NOTHING
    asked = frozenset(positions)
    also = (SELECT_SAME,) if same else ()
    whole = _closed(connection, asked, (SELECT_DERIVED, *also))
    going = _closed(connection, asked, also) if keep else whole
    kept = frozenset(pos for pos in whole - going if not value(connection, IS_GONE, (pos,)))
    return Reach(going - asked, kept)


def _closed(connection: Connection, asked: frozenset[int], statements: tuple[str, ...]) -> frozenset[int]:
    found, new = set(asked), sorted(asked)
    while new:
        some, new = strictjson.dump(new[:_AT_ONCE]).decode(), new[_AT_ONCE:]
        for statement in statements:
            reached = {pos for (pos,) in fetch(connection, statement, (some,))} - found
            found |= reached
            new += sorted(reached)
    return frozenset(found)
