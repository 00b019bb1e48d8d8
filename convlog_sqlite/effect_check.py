"""What `verify` asks about effects: does the table say of each what the envelopes say?

Its rule `effect` is broken where the table has an effect that no event proposes, names a last move that is none
of this effect, or another state or worker than that event says. Where an event proposes an effect that the table
does not have, or moves one and the table stands further back, the rule `index` is. Moves that an import brought count only where the effect could go that way, so an
imported event may stand beside a table that does not follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.instants import id_bytes
from convlog_sqlite.store.effects import STATE_NAMES
from convlog_sqlite.store.reader import Reader

SELECT_STOOD: Final = """
SELECT x.pos, x.session, x.last FROM envelope AS v CROSS JOIN effect AS x ON x.pos = v.pos WHERE v.id = ?"""
WALK_EFFECTS: Final = """
SELECT x.pos, x.session, x.state, v.session, v.seq, p.id, p.session, v.bytes, n.text, x.last FROM effect AS x
LEFT JOIN envelope AS v ON v.pos = x.last LEFT JOIN envelope AS p ON p.pos = x.pos
LEFT JOIN name AS n ON n.id = x.worker
WHERE x.pos > ? AND NOT EXISTS (SELECT 1 FROM removal AS r WHERE r.session = x.session) ORDER BY x.pos LIMIT 500"""


def misses(connection: Connection, event_id: bytes, pos: int, session: int, said: Mapping[str, Any]) -> bool:
    """Whether the table does not know of what an envelope says of an effect."""
    move, is_import = said["effect"], "source" in said
    is_proposal = move["state"] == "proposed"
    rows = fetch(connection, SELECT_STOOD, (event_id if is_proposal else id_bytes(move["id"]),))
    if not rows:
        return is_proposal or not is_import
    ((proposed, where, last),) = rows
    return where != session or (proposed != pos if is_proposal else last < pos and not is_import)


def wrong_rows(reader: Reader) -> Iterator[tuple[int, int | None, str]]:
    """(session number, seq, what is wrong) for each row of the table that no envelope bears out."""
    after = 0
    while True:
        with reader.database.read() as connection:
            rows = fetch(connection, WALK_EFFECTS, (after,))
        if not rows:
            return
        for row in rows:
            pos, session, state, last_session, last_seq, effect_id, *_ = row
            if effect_id is None or session != row[6] or session != last_session:
                yield session, last_seq, f"an effect stands at position {pos}, where no event proposes it"
            elif not _is_borne_out(row):
                yield (
                    session,
                    last_seq,
                    f"the last move of the effect at position {pos} does not say {STATE_NAMES[state]}",
                )
        after = rows[-1][0]


def _is_borne_out(row: tuple[Any, ...]) -> bool:
    """Whether the last move of an effect says the state and worker that the table has."""
    pos, _, state, _, _, effect_id, _, envelope, worker, last = row
    try:
        said = strictjson.load(envelope)
        move, agent = said["effect"], said["agent"]
        if move["state"] != STATE_NAMES[state]:
            return False
        if state == 1:
            return worker is None and pos == last
        is_worker = (
            worker == agent if state == 2 else (worker is None) == (move.get("outcome") == "withdrawn")
        )
        return is_worker and id_bytes(move["id"]) == bytes(effect_id)
    except (ValueError, TypeError, KeyError):  # a changed envelope may be anything
        return False
