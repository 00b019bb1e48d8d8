"""What `verify` asks about projections: is what is kept of them what the events give?

Every shipped projection is folded from the first event on. Its snapshot, and for `state` the table by which
appends are judged, must say the same; the rule `projection` is broken where one does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from convlog_sqlite import strictjson
from convlog_sqlite.findings import Finding
from convlog_sqlite.instants import id_text
from convlog_sqlite.projections.standing import NAMES, Projections
from convlog_sqlite.store import folding
from convlog_sqlite.store.reader import Reader

RULE = "projection"
_STATE = "state"


def projection_findings(reader: Reader, projections: Projections, session: str) -> Iterator[Finding]:
    """What is wrong with what is kept of the projections of a session."""
    for name in NAMES:
        kept = projections.kept(session, name)
        if kept is None:
            continue
        seq, state = kept
        if not strictjson.same(state, projections.folded(session, name, seq)):
            detail = (
                f"the snapshot of {name!r} is not what the events give; `convlog state --rebuild` mends it"
            )
            yield Finding(RULE, detail, session, seq)
    yield from _heads(reader, projections, session)


def _heads(reader: Reader, projections: Projections, session: str) -> Iterator[Finding]:
    """Whether what appends are judged by is what stands."""
    with reader.database.read() as connection:
        row = reader.row(connection, session)
        if row is None:
            return
        place = folding.place_of(connection, row)
        judged = {
            key: {id_text(head.id) for head in heads}
            for key, heads in folding.own_heads(connection, row).items()
        }
    stands = {
        key: {head[1] for head in heads}
        for key, heads in projections.folded(session, _STATE, place.head).items()
    }
    # What a fork inherited and did not change stands in no row of its own.
    keys = judged.keys() if row.base else judged.keys() | stands.keys()
    for key in sorted(keys):
        if judged.get(key, set()) != stands.get(key, set()):
            yield Finding(
                RULE, f"appends to {key!r} are judged by other values than those that stand", session
            )
