"""Checking forks, for `verify`: what the tables say of them is what the envelopes say.

The opening of a fork names the event that it was forked at, and its chain goes on from there. A result in a
fork may answer a call that it shares: one that had no result in its branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from convlog_sqlite import canonical, strictjson
from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.errors import StoreCorrupt
from convlog_sqlite.findings import Finding
from convlog_sqlite.instants import id_text
from convlog_sqlite.store.calls import is_answered
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.sessions import SessionRow, Sessions
from convlog_sqlite.vocabulary import TYPES

SELECT_FORK_CHAIN: Final = """
SELECT v.chain FROM fork AS f CROSS JOIN event AS e ON e.session = f.parent AND e.seq = f.base
CROSS JOIN envelope AS v ON v.pos = e.pos WHERE f.session = ?"""
SELECT_FORKED: Final = "SELECT id, base FROM session WHERE base > 0 OR id IN (SELECT session FROM fork)"
SELECT_EVENT: Final = """
SELECT v.id, v.bytes, e.type FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ? AND e.seq = ?"""
SELECT_ANSWERS: Final = """
SELECT seq, answers FROM event WHERE session = ?1 AND answers BETWEEN 0 AND ?2 ORDER BY seq"""

_CALL: Final = TYPES["tool_call"]


def chain_before(reader: Reader, number: int, session: str, base: int) -> tuple[int, bytes]:
    """(seq, chain) that the first event of a session goes on from."""
    if base:
        with reader.database.read() as connection:
            rows = fetch(connection, SELECT_FORK_CHAIN, (number,))
        if rows:
            return base, rows[0][0]
    return base, canonical.origin(reader.store_id, session)


def fork_findings(reader: Reader) -> Iterator[Finding]:
    """What is wrong with the forks of a store."""
    sessions = Sessions()
    with reader.database.read() as connection:
        forked = {number for number, _ in fetch(connection, SELECT_FORKED)}
        names = [name for number, name in sessions.names(connection).items() if number in forked]
    for name in names:
        with reader.database.read() as connection:
            try:
                found = list(_findings(connection, sessions.require(connection, name)))
            except StoreCorrupt as damaged:
                found = [Finding("fork", damaged.rule, name)]
        yield from found


def _findings(connection: Connection, session: SessionRow) -> Iterator[Finding]:
    if not session.inherited or session.inherited[0].upto != session.base:
        yield Finding("fork", "nothing says what it was forked from, or something else", session.name)
        return
    opening = _said(connection, session.number, session.base + 1)
    at = fetch(connection, SELECT_EVENT, (session.inherited[0].number, session.base))
    named = opening.get("links")
    derived = named.get("derived_from") if isinstance(named, dict) else None
    if not at or derived != [id_text(at[0][0])]:
        detail = "it was forked at another event than its opening says"
        yield Finding("fork", detail, session.name, session.base + 1)
    for seq, answers in fetch(connection, SELECT_ANSWERS, (session.number, session.base)):
        call = fetch(connection, SELECT_EVENT, (session.segment_of(answers).number, answers))
        if not call or call[0][2] != _CALL:
            yield Finding("pairing", "the result answers no call before it", session.name, seq)
        elif _said(connection, session.number, seq).get("call_id") != id_text(call[0][0]):
            yield Finding("pairing", "the index says that it answers another call", session.name, seq)
        elif is_answered(connection, session, answers, seq - 1):
            yield Finding("pairing", "the call has two results", session.name, seq)


def _said(connection: Connection, number: int, seq: int) -> dict[str, object]:
    for _, envelope, _ in fetch(connection, SELECT_EVENT, (number, seq)):
        try:
            said = strictjson.load(envelope)
        except ValueError:  # a changed envelope may be anything
            continue
        if isinstance(said, dict):
            return said
    return {}
