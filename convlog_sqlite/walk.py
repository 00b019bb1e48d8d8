"""The walk of `verify` over the whole log, in the order of `pos`; and what the index says of an event.

The index tables are held against the envelopes: nothing in them is known from elsewhere. What the walk has
found in order is counted, so that what is in the index too much can be told from a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from convlog_sqlite import effect_check, strictjson, tombstones
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.instants import from_microseconds, id_bytes, id_text, to_microseconds
from convlog_sqlite.store.preparing import flags
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.reading import (
    EFFECT_FACET,
    EFFECT_WORD,
    PROPOSAL_FACET,
    SUBJECT_FACET,
    correlation_digest,
)
from convlog_sqlite.vocabulary import DEFAULT_SENSITIVITY, LINKS, PROPOSALS, SENSITIVITIES, TYPE_NAMES

WALK: Final = """
SELECT v.pos, v.session, v.seq, v.id, v.bytes, v.commitment, v.leaf, v.chain, v.store_chain, p.slot, p.sealed,
       e.pos, e.type, e.agent, e.role, e.task, e.thread, e.tool, e.kind, e.performative, e.state_key,
       e.sensitivity, e.correlation, e.answers, e.parent, e.ts, e.at, e.flags
FROM envelope AS v LEFT JOIN event AS e ON e.session = v.session AND e.seq = v.seq
LEFT JOIN payload AS p ON p.pos = v.pos WHERE v.pos > ? ORDER BY v.pos LIMIT 500"""
# "Payload tables can be dropped and the envelopes still verify."
WALK_BARE: Final = """
SELECT v.pos, v.session, v.seq, v.id, v.bytes, v.commitment, v.leaf, v.chain, v.store_chain, NULL, NULL,
       e.pos, e.type, e.agent, e.role, e.task, e.thread, e.tool, e.kind, e.performative, e.state_key,
       e.sensitivity, e.correlation, e.answers, e.parent, e.ts, e.at, e.flags
FROM envelope AS v LEFT JOIN event AS e ON e.session = v.session AND e.seq = v.seq
WHERE v.pos > ? ORDER BY v.pos LIMIT 500"""
TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table'"
SELECT_SESSION_ROWS: Final = """
SELECT s.id, s.name, s.base, n.text, s.tenant FROM session AS s LEFT JOIN name AS n ON n.id = s.tenant WHERE s.id > ?"""
SELECT_NAMES: Final = "SELECT id, text FROM name WHERE id > ? ORDER BY id"
IS_POSTED: Final = "SELECT 1 FROM posting WHERE session = ? AND facet = ? AND name = ? AND seq = ?"
SELECT_PURPOSES: Final = "SELECT name FROM purpose WHERE session = ? AND seq = ?"
IS_LINKED: Final = """
SELECT 1 FROM link WHERE pos = ? AND type = ? AND target = (SELECT pos FROM envelope WHERE id = ?)"""

_INDEXED: Final = ("agent", "role", "task_id", "thread_id", "tool", "kind", "performative", "state_key")
_ADDRESSED: Final = {"to": 4, "subjects": SUBJECT_FACET}


class Row(NamedTuple):
    """One event as the tables have it. The index says its own `index_pos` and all from `type` on."""

    pos: int
    session: int
    seq: int
    id: bytes
    envelope: bytes
    commitment: bytes
    leaf: bytes
    chain: bytes
    store_chain: bytes
    slot: int | None
    sealed: bytes | None
    index_pos: int | None
    type: int
    agent: int | None
    role: int | None
    task: int | None
    thread: int | None
    tool: int | None
    kind: int | None
    performative: int | None
    state_key: int | None
    sensitivity: int
    correlation: int | None
    answers: int | None
    parent: int | None
    ts: int
    at: int
    flags: int


_FIRST_NAME: Final = Row._fields.index("agent")
_BEHIND_NAMES: Final = _FIRST_NAME + len(_INDEXED)


@dataclass(slots=True)
class Walk:
    """What a walk over the whole log has to remember: a few numbers for each session, and the names.

    `addressed` counts the recipients and subjects that are posted as they should be; None once one was not.
    """

    reader: Reader
    wanted: frozenset[str]
    sessions: dict[int, tuple[str, int]] = field(default_factory=dict)
    tenants: dict[int, str | None] = field(default_factory=dict)
    tables: frozenset[str] = frozenset()
    names: dict[Any, str] = field(default_factory=dict)  # by number; in a changed row anything may stand
    numbers: dict[str, int] = field(default_factory=dict)
    addressed: int | None = 0
    removed: dict[int, tombstones.Removal] = field(default_factory=dict)
    heads: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    pos: int = 0
    store_chain: bytes = b""
    locked: bool = False

    def is_wanted(self, session: str | None) -> bool:
        """Whether findings about a session were asked for."""
        return not self.wanted or session in self.wanted


def pages(walk: Walk) -> Iterator[list[Row]]:
    """The events behind `walk.pos`, which the caller moves on, a bounded number at a time."""
    while True:
        with walk.reader.database.read() as connection:
            found = fetch(connection, WALK if "payload" in walk.tables else WALK_BARE, (walk.pos,))
            if not found:
                return
            _learn(walk, connection)
        yield list(map(Row._make, found))


def _learn(walk: Walk, connection: Connection) -> None:
    """Sessions and names only ever grow: read those that are new."""
    for number, name, base, tenant, stands in fetch(
        connection, SELECT_SESSION_ROWS, (max(walk.sessions, default=0),)
    ):
        walk.sessions[number] = name, base
        walk.tenants[number] = "" if tenant is None and stands is not None else tenant  # "": names nobody
    walk.removed = tombstones.removals_in(connection)
    names = fetch(connection, SELECT_NAMES, (next(reversed(walk.names), 0),))
    walk.names.update(names)
    walk.numbers.update((text, number) for number, text in names)


def indexed(walk: Walk, connection: Connection, rows: Sequence[Row]) -> list[bool]:
    """For each event of a page, whether the index says what its envelope says."""
    answers: list[bool] = []
    wanted: list[_Address] = []
    for row in rows:
        addresses = _addresses(walk, connection, row)
        answers.append(addresses is not None)
        wanted.extend(addresses or ())
    # All at once; who is at fault is asked where there is one.
    if len(connection.executemany(IS_POSTED, wanted).fetchall()) < len(wanted):
        answers = [
            addresses is not None
            and all(value(connection, IS_POSTED, address) is not None for address in addresses)
            for addresses in (_addresses(walk, connection, row) for row in rows)
        ]
    whole = all(answers) and walk.addressed is not None
    walk.addressed = (walk.addressed or 0) + len(wanted) if whole else None
    return answers


_Address = tuple[int, int, int | None, int]  # session, facet, number of a name, seq


def _addresses(walk: Walk, connection: Connection, row: Row) -> set[_Address] | None:
    """Where an event must be posted by recipient and subject; None where the index says something else of it."""
    try:
        said = strictjson.load(row.envelope)
        if not isinstance(said, dict) or row.index_pos != row.pos or not _says_the_same(walk, row, said):
            return None
        if "effect" in said and effect_check.misses(connection, row.id, row.pos, row.session, said):
            return None
        if "links" in said and not _is_linked(connection, row, said["links"]):
            return None
        if "purposes" in said and not _has_purposes(walk, connection, row, said["purposes"]):
            return None
        return _posted(walk, row, said)
    except (TypeError, AttributeError, ValueError, LookupError, OverflowError):  # it may be anything
        return None


def _posted(walk: Walk, row: Row, said: dict[str, Any]) -> set[_Address]:
    """Where an event must be posted by what has no column of its own, and by a performative that is looked for."""
    addresses: set[_Address] = {
        (row.session, facet, walk.numbers.get(name), row.seq)
        for key, facet in _ADDRESSED.items()
        if key in said
        for name in said[key]
    }
    if said.get("performative") in PROPOSALS:
        addresses.add((row.session, PROPOSAL_FACET, row.performative, row.seq))
    if "effect" in said:
        addresses.add((row.session, EFFECT_FACET, walk.numbers.get(EFFECT_WORD), row.seq))
    return addresses


def _has_purposes(walk: Walk, connection: Connection, row: Row, purposes: Sequence[str]) -> bool:
    found = {number for (number,) in fetch(connection, SELECT_PURPOSES, (row.session, row.seq))}
    return found == {walk.numbers.get(name) for name in purposes}


def _is_linked(connection: Connection, row: Row, links: dict[str, Any]) -> bool:
    return all(
        value(connection, IS_LINKED, (row.pos, number, id_bytes(target))) is not None
        for number, key in enumerate(LINKS, 1)
        for target in links.get(key, ())
    )


def _says_the_same(walk: Walk, row: Row, said: dict[str, Any]) -> bool:
    get = said.get
    correlation = get("correlation_id")
    return (
        get("id") == id_text(row.id)
        and get("seq") == row.seq
        and get("session") == walk.sessions.get(row.session, ("", 0))[0]
        and get("type") == TYPE_NAMES.get(row.type)
        and flags(said) == row.flags
        and SENSITIVITIES.get(get("sensitivity", DEFAULT_SENSITIVITY)) == row.sensitivity
        and (None if correlation is None else correlation_digest(correlation)) == row.correlation
        and ("call_id" in said) == (row.answers is not None)
        and ("parent_id" in said) == (row.parent is not None)
        and get("tenant") == walk.tenants.get(row.session)
        and said["ts"] == from_microseconds(row.ts)
        and (to_microseconds(said["source"]["at"]) if "at" in get("source", ()) else row.ts) == row.at
        and list(map(get, _INDEXED)) == list(map(walk.names.get, row[_FIRST_NAME:_BEHIND_NAMES]))
    )
