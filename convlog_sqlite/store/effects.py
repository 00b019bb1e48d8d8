"""Effects in the outside world: proposed, attempted, committed, compensated. Owns the table `effect`.

An effect is proposed by an event, whose id is the effect's. From there it moves by events of its session
that name it, and only so:

    proposed   to attempted, or to compensated (withdrawn)
    attempted  to committed, or to compensated (undone, not_happened)
    committed  to compensated (undone)

An attempt is a claim: the agent that made it is the worker, its lease says for how long nobody else touches
the effect, and its seq is the fencing number. There is one attempt for each effect. Once that has begun,
nobody can say from here whether the effect took place, so no second one is ever let in: what follows is the
worker's result, or that somebody who found out settles it. A key belongs to one effect in the store (and
tenant) until that effect is compensated: then it may be proposed anew.

An effect that is proposed with the performative `propose` waits for its recipients: it is attempted when one
of them, or a holder of the role it is addressed to, has accepted it and has not rejected it since.

What an import brings is recorded, and moves an effect only where it may move. All of the table can be read
out of the envelopes again, but for the keys, of which there are digests only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from convlog_sqlite import sealing, strictjson
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.errors import (
    EffectClaimed,
    EffectCommitted,
    EffectInDoubt,
    EffectTransitionError,
    InvalidEvent,
    NotAuthorized,
    UnknownReference,
)
from convlog_sqlite.instants import from_microseconds, id_bytes, id_text
from convlog_sqlite.store.reading import Row
from convlog_sqlite.store.roles import roles_wanted
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.vocabulary import ACCEPTANCES, EFFECT_STATES, LINKS

SELECT_EFFECT: Final = """
SELECT x.pos, x.session, x.state, x.last, v.bytes FROM envelope AS v CROSS JOIN effect AS x ON x.pos = v.pos
WHERE v.id = ?"""
SELECT_STANDING: Final = "SELECT pos FROM effect WHERE key = ? AND state <> 4"
SELECT_MOVE: Final = """
SELECT v.id, v.seq, a.text, l.until FROM envelope AS v
CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq CROSS JOIN name AS a ON a.id = e.agent
LEFT JOIN lease AS l ON l.pos = v.pos WHERE v.pos = ?"""
SELECT_ANSWERS: Final = """
SELECT v.id, a.text, k.text FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN name AS a ON a.id = e.agent CROSS JOIN name AS k ON k.id = e.performative
WHERE e.parent = ? AND e.session = ? AND k.text IN ('accept-proposal', 'agree', 'reject-proposal', 'refuse', 'cancel')
ORDER BY e.pos"""
SELECT_PAGE: Final = """
SELECT x.pos, x.state, a.text, l.until, x.last FROM effect AS x LEFT JOIN name AS a ON a.id = x.worker
LEFT JOIN lease AS l ON l.pos = x.last WHERE x.session = ? AND x.state = ? AND x.pos > ? ORDER BY x.pos LIMIT ?"""
SELECT_NEWEST: Final = """
SELECT x.pos, x.state, a.text, l.until, x.last FROM effect AS x LEFT JOIN name AS a ON a.id = x.worker
LEFT JOIN lease AS l ON l.pos = x.last WHERE x.session = ? AND x.state = ? ORDER BY x.pos DESC LIMIT ?"""
SELECT_ONE: Final = """
SELECT x.pos, x.state, a.text, l.until, x.last FROM envelope AS v CROSS JOIN effect AS x ON x.pos = v.pos
LEFT JOIN name AS a ON a.id = x.worker LEFT JOIN lease AS l ON l.pos = x.last
WHERE v.id = ? AND x.session = ?"""
SELECT_ROW: Final = """
SELECT v.seq, v.id, v.bytes, p.slot, p.sealed FROM envelope AS v LEFT JOIN payload AS p ON p.pos = v.pos
WHERE v.pos = ?"""
INSERT_EFFECT: Final = "INSERT INTO effect VALUES (?, ?, NULL, 1, ?, NULL)"
UPDATE_KEY: Final = "UPDATE effect SET key = ? WHERE pos = ?"
UPDATE_EFFECT: Final = "UPDATE effect SET state = ?, last = ?, worker = coalesce(?, worker) WHERE pos = ?"

STATE_NAMES: Final = {code: name for name, code in EFFECT_STATES.items()}
_MOVES: Final = frozenset(
    {
        ("proposed", "attempted", None),
        ("proposed", "compensated", "withdrawn"),
        ("attempted", "committed", None),
        ("attempted", "compensated", "undone"),
        ("attempted", "compensated", "not_happened"),
        ("committed", "compensated", "undone"),
    }
)
_ID_OF_THE_STORE: Final = 7  # the UUID version of ids that were minted here; imported ones are of version 8


class _Effect(NamedTuple):
    pos: int
    session: int
    state: int
    last: int
    envelope: bytes


class _Move(NamedTuple):
    """A move of an effect: the event that made it, and for an attempt how long it is held."""

    id: bytes
    seq: int
    agent: str
    until: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """One effect as the tables have it: `proposed` and `last` are rows of events, `until` is in microseconds."""

    pos: int
    state: str
    worker: str | None
    until: int | None
    proposed: Row
    last: Row


def key_digest(pepper: bytes, tenant: str | None, key: str) -> bytes:
    """The keyed digest of an effect's key: the same in every session of a tenant. 16 bytes."""
    return sealing.keyed_digest(pepper, "convlog/effect/1", tenant or "", key)[:16]


def standing_for(connection: Connection, key: bytes) -> int | None:
    """The position of the effect that a key belongs to, or None while it is free."""
    found: int | None = value(connection, SELECT_STANDING, (key,))
    return found


def result_move(connection: Connection, call_id: str) -> dict[str, str] | None:
    """What the good result of a call moves, if that call is an effect that is not done."""
    for row in fetch(connection, SELECT_EFFECT, (id_bytes(call_id),)):
        if _Effect(*row).state < EFFECT_STATES["committed"]:
            return {"id": call_id, "state": "committed"}
    return None


def judge(
    connection: Connection, session: SessionRow, event_id: bytes, microseconds: int, keys: dict[str, Any]
) -> dict[str, Any]:
    """Hold a move to what stands; the envelope keys, completed.

    Raises InvalidEvent, UnknownReference, EffectTransitionError, EffectClaimed, EffectCommitted, EffectInDoubt,
    NotAuthorized.
    """
    said = keys["effect"]
    if said["state"] == "proposed":
        return keys | {"effect": {"id": id_text(event_id), "state": "proposed"}}
    _check_form(keys, said)
    found = _find(connection, session, said["id"])
    if said["state"] == "attempted":
        _require_untried(connection, found, said["id"], keys["agent"], microseconds)
        return _authorized(connection, found, said["id"], keys)
    if not is_move(found.state, said):
        wanted = said["state"] + (f" ({said['outcome']})" if "outcome" in said else "")
        raise EffectTransitionError(said["id"], STATE_NAMES[found.state], wanted)
    if found.state == EFFECT_STATES["attempted"]:
        _require_no_other(_move(connection, found.last), said["id"], keys["agent"], microseconds)
    return keys


def is_move(state: int, said: Mapping[str, str]) -> bool:
    """Whether an effect may go from a state to what an envelope's `effect` says."""
    return (STATE_NAMES[state], said["state"], said.get("outcome")) in _MOVES


def record(connection: Connection, session: int, pos: int, agent: int, keys: Mapping[str, Any]) -> None:
    """Write down what an event, judged or imported, does to an effect."""
    said = keys["effect"]
    if said["state"] == "proposed":
        connection.execute(INSERT_EFFECT, (pos, session, pos))
        return
    for row in fetch(connection, SELECT_EFFECT, (id_bytes(said["id"]),)):
        found = _Effect(*row)
        if found.session == session and is_move(found.state, said):
            worker = agent if said["state"] == "attempted" else None
            connection.execute(UPDATE_EFFECT, (EFFECT_STATES[said["state"]], pos, worker, found.pos))


def keep_key(connection: Connection, pos: int, key: bytes) -> None:
    """Let a key belong to the effect that was proposed at `pos`."""
    connection.execute(UPDATE_KEY, (key, pos))


def page(connection: Connection, session: int, state: str, after: int, limit: int) -> list[Standing]:
    """Effects of a session that are in a state, by position, behind position `after`."""
    rows = fetch(connection, SELECT_PAGE, (session, EFFECT_STATES[state], after, limit))
    return [_standing(connection, row) for row in rows]


def newest(connection: Connection, session: int, state: str, limit: int) -> list[Standing]:
    """The effects of a session that were proposed last, of those in a state, by position."""
    rows = fetch(connection, SELECT_NEWEST, (session, EFFECT_STATES[state], limit))
    return [_standing(connection, row) for row in reversed(rows)]


def one(connection: Connection, session: int, effect_id: str) -> Standing:
    """One effect of a session. Raises UnknownReference."""
    for row in fetch(connection, SELECT_ONE, (id_bytes(effect_id), session)):
        return _standing(connection, row)
    raise UnknownReference("effect/id", effect_id)


def _standing(connection: Connection, row: Sequence[Any]) -> Standing:
    pos, state, worker, until, last = row
    ((proposed,), (moved,)) = (fetch(connection, SELECT_ROW, (place,)) for place in (pos, last))
    return Standing(pos, STATE_NAMES[state], worker, until, proposed, moved)


def _check_form(keys: Mapping[str, Any], said: Mapping[str, str]) -> None:
    """A move is a mutation of the kind that says so, or the good result of the call that proposed the effect."""
    if keys["type"] == "mutation":
        kind = f"effect-{said['state']}"
        if keys["kind"] != kind:
            raise InvalidEvent(
                "/kind", f"{kind} is the kind of a mutation that makes an effect {said['state']}"
            )
        return
    if keys["type"] != "tool_result":
        raise InvalidEvent("/effect", "an effect is moved by a mutation, or by the result of its call")
    if said["state"] != "committed" or keys["status"] != "ok":
        raise InvalidEvent(
            "/effect/state", "a result with the status ok commits an effect, and does nothing else"
        )
    if keys["call_id"] != said["id"]:
        raise InvalidEvent("/effect/id", "a result commits the effect that its own call proposed")


def _find(connection: Connection, session: SessionRow, effect_id: str) -> _Effect:
    for row in fetch(connection, SELECT_EFFECT, (id_bytes(effect_id),)):
        found = _Effect(*row)
        if found.session == session.number:
            return found
    raise UnknownReference("effect/id", effect_id)


def _move(connection: Connection, pos: int) -> _Move:
    (row,) = fetch(connection, SELECT_MOVE, (pos,))
    return _Move(*row)


def _require_untried(
    connection: Connection, found: _Effect, effect_id: str, agent: str, microseconds: int
) -> None:
    state = STATE_NAMES[found.state]
    if state == "attempted":
        claim = _move(connection, found.last)
        _require_no_other(claim, effect_id, agent, microseconds)
        raise EffectInDoubt(effect_id, claim.agent, id_text(claim.id))
    if state == "committed":
        raise EffectCommitted(effect_id, id_text(_move(connection, found.last).id))
    if state == "compensated":
        raise EffectTransitionError(effect_id, state, "attempted")


def _require_no_other(claim: _Move, effect_id: str, agent: str, microseconds: int) -> None:
    if claim.agent != agent and claim.until is not None and claim.until > microseconds:
        raise EffectClaimed(effect_id, claim.agent, from_microseconds(claim.until), claim.seq)


def _authorized(
    connection: Connection, found: _Effect, effect_id: str, keys: dict[str, Any]
) -> dict[str, Any]:
    """The keys of an attempt, with the acceptance that it needs, if it needs one. Raises NotAuthorized."""
    proposal = strictjson.load(found.envelope)
    if proposal.get("performative") != "propose" or not proposal.get("to"):
        return keys
    accepted = _acceptances(connection, found, proposal)
    links = dict(keys.get("links", {}))
    named = links.get("authorized_by", ())
    if named and not set(named) & set(accepted):
        raise NotAuthorized(keys["agent"], f"what authorized_by names does not accept the effect {effect_id}")
    if not accepted:
        whom = ", ".join(proposal["to"])
        raise NotAuthorized(
            keys["agent"], f"{effect_id} waits to be accepted by {whom} (convlog approve {effect_id})"
        )
    links["authorized_by"] = list(named) or accepted[-1:]
    return keys | {"links": {link: links[link] for link in LINKS if link in links}}


def _acceptances(connection: Connection, found: _Effect, proposal: Mapping[str, Any]) -> list[str]:
    """The ids of the acceptances that count: by whom it was put to, in its session, not taken back.

    Who has a role there was judged when it was accepted.
    """
    standing: dict[str, str] = {}
    for event_id, agent, performative in fetch(connection, SELECT_ANSWERS, (found.pos, found.session)):
        standing.pop(agent, None)
        is_asked = agent in proposal["to"] or roles_wanted(dict(proposal))
        is_judged = event_id[6] >> 4 == _ID_OF_THE_STORE
        if performative in ACCEPTANCES and is_asked and is_judged and agent != proposal["agent"]:
            standing[agent] = id_text(event_id)
    return list(standing.values())
