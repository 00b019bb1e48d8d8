"""What stands in the log decides whether a draft is taken: the rules of state, inside the append transaction.

A draft that sets a piece of state, moves an effect or answers a proposal is judged here, once its references
are resolved and before it has its bytes. A rule may refuse it (then nothing of it is written), or say more
in its envelope. What an import brings happened elsewhere: it is recorded as it is, and never refused here.

Owns the table `lease`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from convlog_sqlite.instants import id_text
from convlog_sqlite.store import branches, claims, effects, promoting, roles, states
from convlog_sqlite.store.places import Place
from convlog_sqlite.store.preparing import Prepared
from convlog_sqlite.vocabulary import ACCEPTANCES, LINKS, MEMORY_KINDS

INSERT_LEASE: Final = "INSERT INTO lease VALUES (?, ?)"


def judge(place: Place, prepared: Prepared, keys: dict[str, Any]) -> dict[str, Any]:
    """Hold a draft to what stands in the log; its envelope keys, completed. Raises Refused."""
    connection, session, kind = place.connection, place.session, keys.get("kind")
    if "effect" in keys:
        branches.require_own_effect(connection, session, keys)
        keys = judge_effect(place, keys)
    if keys.get("performative") in ACCEPTANCES and "parent_id" in keys:
        roles.require_approver(connection, session, keys)
    if kind == roles.GRANTED and "state_key" in keys:
        roles.require_other(keys)
    if kind in MEMORY_KINDS:
        keys = promoting.judge(place, prepared, keys)
    expect = prepared.expect
    if kind == claims.CLAIMED and "state_key" in keys:
        key = place.number(keys["state_key"])
        claims.require_free(connection, session, key, keys, place.microseconds)
        return _superseding(place, keys, expect)
    return keys if expect is None else _superseding(place, keys, expect)


def judge_effect(place: Place, keys: dict[str, Any]) -> dict[str, Any]:
    """Hold the move of an effect to what stands in the log, and to nothing else. Raises Refused."""
    return effects.judge(place.connection, place.session, place.event_id, place.microseconds, keys)


def record(place: Place, prepared: Prepared, keys: Mapping[str, Any], superseded: Collection[int]) -> None:
    """Write down what a judged or imported draft changes, once it has its place. `superseded` are positions."""
    if prepared.lease is not None:
        until = place.microseconds + round(prepared.lease * 1_000_000)
        place.connection.execute(INSERT_LEASE, (place.pos, until))
    if "effect" in keys:
        agent = place.number(keys["agent"])
        effects.record(place.connection, place.session.number, place.pos, agent, keys)
    if "state_key" in keys:
        key = place.number(keys["state_key"])
        new = states.Head(place.pos, place.event_id, place.number(keys["agent"]))
        before = states.heads(place.connection, place.session, key)
        states.record(place.connection, place.session.number, key, before, new, superseded)


def _superseding(place: Place, keys: dict[str, Any], expect: tuple[str, ...] | None) -> dict[str, Any]:
    """The keys of a mutation that supersedes what stands, which must be what it `expect`s, if it does."""
    found = states.heads(place.connection, place.session, place.number(keys["state_key"]))
    if expect is not None:
        states.require(keys["state_key"], found, expect)
    if not found:
        return keys
    links = dict(keys.get("links", {}))
    superseded = [id_text(head.id) for head in found]
    links["supersedes"] = superseded + [
        item for item in links.get("supersedes", ()) if item not in superseded
    ]
    return keys | {"links": {link: links[link] for link in LINKS if link in links}}
