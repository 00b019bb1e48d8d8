"""Claims in the tables: which there are for a key, which of them stand, and what they and their evidence say.

A claim is a mutation `memory-promoted`. It stands until another claim supersedes it, a `memory-retracted` takes it
back, it expires, or its content is erased. Its payload holds the claim as `value`, and in `meta` its scope, key and
expiry; its `state_key` is made of scope and key, `links.derived_from` names the evidence and
`links.authorized_by` the acceptance of the `memory-proposed` that its parent is.

Claims of the scopes `store` and `agent:<name>` are those of all sessions of a tenant; those of `session` and
`task:<id>` belong to their session.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.drafts import check_name
from convlog_sqlite.errors import InvalidEvent
from convlog_sqlite.events import Erased, Live, Payload
from convlog_sqlite.instants import id_bytes, id_text, to_microseconds
from convlog_sqlite.store.places import Place
from convlog_sqlite.store.reading import Opener
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.vocabulary import (
    CEILING_KIND,
    DEFAULT_SENSITIVITY,
    LAST_SEQ,
    MEMORY_CEILING,
    SENSITIVITIES,
    STORE_SESSION,
    memory_key,
    unescaped,
)

SELECT_FACT: Final = """
SELECT v.pos, v.session, s.name, v.seq, v.id, v.bytes, p.slot, p.sealed, e.state_key,
       EXISTS (SELECT 1 FROM intent_event AS i WHERE i.pos = v.pos), v.commitment
FROM envelope AS v CROSS JOIN session AS s ON s.id = v.session
CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq
LEFT JOIN payload AS p ON p.pos = v.pos WHERE v.id = ?"""
SELECT_LABELS: Final = """
SELECT w.bytes FROM link AS l CROSS JOIN envelope AS w ON w.pos = l.pos
CROSS JOIN event AS m ON m.session = w.session AND m.seq = w.seq
WHERE l.target = ? AND l.type = 2 AND m.kind = (SELECT id FROM name WHERE text = 'event-labelled')"""
# What ends a claim: another that supersedes it, or its retraction.
SELECT_ENDED: Final = """
SELECT v.session, v.seq, v.id FROM link AS l CROSS JOIN envelope AS v ON v.pos = l.pos
CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq
WHERE l.target = ? AND l.type = 3
AND e.kind IN (SELECT id FROM name WHERE text IN ('memory-promoted', 'memory-retracted')) ORDER BY l.pos"""
# ?1 session  ?2 state key  ?3 last seq
SELECT_CLAIMS: Final = """
SELECT v.id FROM event AS e INDEXED BY event_state CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ?1 AND e.state_key = ?2 AND e.seq <= ?3
AND e.kind = (SELECT id FROM name WHERE text = 'memory-promoted') ORDER BY e.seq"""
# ?1 any session of the tenant  ?2 state key
SELECT_CLAIMS_OF_TENANT: Final = """
SELECT v.id FROM session AS s CROSS JOIN event AS e INDEXED BY event_state ON e.session = s.id AND e.state_key = ?2
CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE s.tenant IS (SELECT tenant FROM session WHERE id = ?1)
AND e.kind = (SELECT id FROM name WHERE text = 'memory-promoted') ORDER BY v.pos"""
SELECT_SESSIONS_WITH_CLAIMS: Final = """
SELECT s.name FROM session AS s
WHERE (?1 IS NULL OR s.tenant = (SELECT id FROM name WHERE text = ?1)) AND EXISTS (
    SELECT 1 FROM posting AS p WHERE p.session = s.id AND p.facet = 6
    AND p.name = (SELECT id FROM name WHERE text = 'memory-promoted'))
AND NOT EXISTS (SELECT 1 FROM removal AS r WHERE r.session = s.id) ORDER BY s.name"""
SELECT_CEILING: Final = """
SELECT e.sensitivity FROM session AS s CROSS JOIN name AS n ON n.text = ?2
CROSS JOIN posting AS p ON p.session = s.id AND p.facet = 6 AND p.name = n.id
CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq
WHERE s.name = ?1 ORDER BY p.seq DESC LIMIT 1"""

SCOPE_RULE: Final = "store, session, task:<id> or agent:<name>"
_WIDE: Final = ("store", "agent:")
_NAMES_A_THING: Final = ("task:", "agent:")
_META_KEYS: Final = frozenset({"scope", "key", "expires", "contested"})


@dataclass(frozen=True, slots=True)
class Meta:
    """What a claim says of itself beside the claim. `expires` is RFC 3339, or None."""

    scope: str
    key: str
    expires: str | None = None
    contested: bool = False

    @classmethod
    def of(cls, payload: bytes) -> Meta:
        """That of a claim's payload. Raises InvalidEvent where it is no claim's."""
        said = strictjson.load(payload)
        if "value" not in said:
            raise InvalidEvent("/value", "the claim, which is needed")
        meta = said.get("meta", {})
        for key in meta.keys() - _META_KEYS:
            raise InvalidEvent(f"/meta/{strictjson.escape(key)}", "unknown key")
        check_scope(meta.get("scope"), "/meta/scope")
        if not isinstance(meta.get("key"), str) or not meta["key"]:
            raise InvalidEvent("/meta/key", "the key of the claim in its scope, which is needed")
        check_name(memory_key(meta["scope"], meta["key"]), "/meta/key")
        if not isinstance(meta.get("contested", False), bool):
            raise InvalidEvent("/meta/contested", "true or false")
        found = cls(meta["scope"], meta["key"], meta.get("expires"), meta.get("contested", False))
        if found.expires is not None and found.ends is None:
            raise InvalidEvent("/meta/expires", "RFC 3339 in UTC with microseconds")
        return found

    @property
    def ends(self) -> int | None:
        """When it expires, in microseconds; None: never."""
        return expiry({"expires": self.expires})

    def to_meta(self) -> dict[str, Any]:
        """The `meta` of a payload."""
        said: dict[str, Any] = {"scope": self.scope, "key": self.key}
        if self.expires is not None:
            said["expires"] = self.expires
        return said | ({"contested": True} if self.contested else {})


def check_scope(scope: Any, pointer: str) -> None:
    """Refuse what is no scope."""
    if not isinstance(scope, str) or not (
        scope in ("store", "session")
        or any(scope.startswith(prefix) and scope != prefix for prefix in _NAMES_A_THING)
    ):
        raise InvalidEvent(pointer, SCOPE_RULE)


def is_wide(scope: str) -> bool:
    """Whether claims of a scope are those of all sessions of a tenant."""
    return scope.startswith(_WIDE)


def place_of(state_key: str | None) -> tuple[str, str] | None:
    """The scope and key of the claim that sets a state key; None where it is no claim's."""
    parts = (state_key or "").split("/")
    if len(parts) != 3 or parts[0] != "memory":
        return None
    return unescaped(parts[1]), unescaped(parts[2])


def is_for_all(claim: Mapping[str, Any]) -> bool:
    """Whether a claim, by its envelope, is one of all sessions of a tenant."""
    place = place_of(claim.get("state_key"))
    return place is not None and is_wide(place[0])


def expiry(meta: Any) -> int | None:
    """When a claim with this `meta` expires, in microseconds; None: never, and where it is no time."""
    said = meta.get("expires") if isinstance(meta, Mapping) else None
    try:
        return None if said is None else to_microseconds(said)
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Fact:
    """An event that a claim rests on. `going` says that its erasure is decided; `row` is what opens it."""

    pos: int
    session: int
    name: str
    row: tuple[int, bytes, bytes, int | None, bytes | None]
    state_key: int | None
    going: bool
    commitment: bytes
    said: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The id of the event."""
        return id_text(self.row[1])

    def payload(self, opener: Opener) -> tuple[Payload, bytes]:
        """Its payload answer, and the salt of the commitment."""
        return opener.payload_and_salt(self.name, self.row)

    def is_readable(self, opener: Opener) -> bool:
        """Whether its content is there, and will be."""
        return not self.going and isinstance(self.payload(opener)[0], Live)

    def is_shown_in(self, session: SessionRow) -> bool:
        """Whether it is an event of a session, or one that the session shares."""
        return shows(session, self.session, self.row[0])


def shows(session: SessionRow, number: int, seq: int) -> bool:
    """Whether what stands at a place is an event of a session, or one that it shares."""
    return any(part.number == number and part.after < seq <= part.upto for part in session.line)


def find(connection: Connection, event_id: str) -> Fact | None:
    """An event by its whole id, unless its session was removed."""
    for pos, session, name, *row, key, going, commitment in fetch(
        connection, SELECT_FACT, (id_bytes(event_id),)
    ):
        place = row[0], row[1], row[2], row[3], row[4]
        said = strictjson.load(row[2])
        return Fact(pos, session, name, place, key, bool(going), commitment, said)
    return None


def says(connection: Connection, fact: Fact) -> tuple[int, list[str]]:
    """How sensitive an event is and whom it is about, by itself and its labels."""
    level = SENSITIVITIES[fact.said.get("sensitivity", DEFAULT_SENSITIVITY)]
    subjects = list(fact.said.get("subjects", ()))
    for (envelope,) in fetch(connection, SELECT_LABELS, (fact.pos,)):
        label = json.loads(envelope)
        level = max(level, SENSITIVITIES[label.get("sensitivity", DEFAULT_SENSITIVITY)])
        subjects += [subject for subject in label.get("subjects", ()) if subject not in subjects]
    return level, subjects


def ended_by(connection: Connection, claim: Fact, session: SessionRow, *, wide: bool) -> str | None:
    """What ended a claim, for a session: its retraction, or what supersedes it. None: it was not ended."""
    for number, seq, event_id in fetch(connection, SELECT_ENDED, (claim.pos,)):
        if wide or shows(session, number, seq):
            return id_text(event_id)
    return None


def is_expired(opener: Opener, claim: Fact, microseconds: int) -> bool:
    """Whether a claim expired. What cannot be read is not known to have."""
    payload = claim.payload(opener)[0]
    ends = expiry(strictjson.load(payload.data).get("meta")) if isinstance(payload, Live) else None
    return ends is not None and ends <= microseconds


def is_erased(opener: Opener, claim: Fact) -> bool:
    """Whether the content of a claim is gone, or about to go."""
    return claim.going or isinstance(claim.payload(opener)[0], Erased)


def standing(place: Place, scope: str, key: int) -> list[Fact]:
    """The claims that stand for a state key, as the session sees it, oldest first."""
    found = []
    for event_id in _claims(place, scope, key):
        claim = find(place.connection, event_id)
        if (
            claim is not None
            and ended_by(place.connection, claim, place.session, wide=is_wide(scope)) is None
            and not is_erased(place.opener, claim)
            and not is_expired(place.opener, claim, place.microseconds)
        ):
            found.append(claim)
    return found


def _claims(place: Place, scope: str, key: int) -> Iterator[str]:
    if is_wide(scope):
        rows = fetch(place.connection, SELECT_CLAIMS_OF_TENANT, (place.session.number, key))
        yield from (id_text(event_id) for (event_id,) in rows)
        return
    for part in reversed(place.session.line):
        rows = fetch(place.connection, SELECT_CLAIMS, (part.number, key, min(part.upto, LAST_SEQ)))
        yield from (id_text(event_id) for (event_id,) in rows)


def sessions_with_claims(connection: Connection, tenant: str | None) -> list[str]:
    """The sessions (of a tenant) in which something was promoted, by id."""
    return [name for (name,) in fetch(connection, SELECT_SESSIONS_WITH_CLAIMS, (tenant,))]


def ceiling(connection: Connection) -> int:
    """How sensitive evidence may be, as a code."""
    found: int | None = value(connection, SELECT_CEILING, (STORE_SESSION, CEILING_KIND))
    return SENSITIVITIES[MEMORY_CEILING] if found is None else found
