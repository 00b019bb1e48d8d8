"""Drafts to rows: everything an append writes, in one transaction.

Before the transaction the slots are leased, so that their keys are durable first. Inside it: ids, `seq`, `pos`
and the chains are given, references and pairing are checked, the payload is sealed to its place, and the rows
go in together: see `rows`. A draft that is refused takes the whole call with it: nothing was written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from convlog_sqlite import canonical, sealing, strictjson
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.errors import (
    EffectElsewhere,
    IdempotencyConflict,
    InvalidEvent,
    PairingError,
    StoreCorrupt,
    UnknownReference,
)
from convlog_sqlite.events import Corrupt, Event, Live
from convlog_sqlite.instants import Clock, from_microseconds, id_bytes, id_text, new_event_id
from convlog_sqlite.keystore import Keystore
from convlog_sqlite.store import blobs, effects, fences, labels, listening, rules
from convlog_sqlite.store.calls import is_answered
from convlog_sqlite.store.heads import Heads
from convlog_sqlite.store.listening import Heard, Listening, Recall, Recorded
from convlog_sqlite.store.names import Names
from convlog_sqlite.store.places import Place
from convlog_sqlite.store.preparing import Described, Prepared, describe
from convlog_sqlite.store.reading import (
    EFFECT_FACET,
    EFFECT_WORD,
    FACETS,
    PROPOSAL_FACET,
    SELECT_STORE_HEAD,
    SUBJECT_FACET,
    Opener,
)
from convlog_sqlite.store.repeating import INHERITED, holds_the_same, says_the_same
from convlog_sqlite.store.rows import Rows
from convlog_sqlite.store.sessions import SessionRow, Sessions, require_there, tenant_of
from convlog_sqlite.vocabulary import ABOUT_A_PERSON, LABEL_KIND, LINKS, LISTENING_KEY, OF_AN_EFFECT, TYPES

HIGHEST_SLOT: Final = "SELECT coalesce(max(number), -1) FROM slot"
SELECT_SESSION_HEAD: Final = """
SELECT e.seq, v.chain FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ? ORDER BY e.seq DESC LIMIT 1"""
SELECT_CHAIN: Final = """
SELECT v.chain FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos WHERE e.session = ? AND e.seq = ?"""
# An event of a session that was removed has no row in `event`.
SELECT_REFERENCE: Final = """
SELECT v.pos, v.session, v.seq, coalesce(e.type, 0), v.bytes FROM envelope AS v
LEFT JOIN event AS e ON e.session = v.session AND e.seq = v.seq WHERE v.id = ?"""
SELECT_IDEMPOTENT: Final = "SELECT pos FROM idempotency WHERE digest = ?"
SELECT_AT: Final = """
SELECT v.seq, v.id, v.bytes, p.slot, p.sealed, v.commitment, v.session FROM envelope AS v
LEFT JOIN payload AS p ON p.pos = v.pos WHERE v.pos = ?"""
DELETE_OPEN: Final = "DELETE FROM open_call WHERE session = ? AND seq = ? RETURNING 1"


_AGENT_FACET, _TASK_FACET, _THREAD_FACET, _TO_FACET, _KIND_FACET = (
    FACETS[key] for key in ("agent", "task_id", "thread_id", "to", "kind")
)
_TOOL_CALL: Final = TYPES["tool_call"]


class Appended(NamedTuple):
    """The event that stands in the log for a draft; `new` is False when it stood there before."""

    event: Event
    new: bool


class _Reference(NamedTuple):
    """An event that a draft names."""

    pos: int
    session: int
    seq: int
    type: int
    envelope: bytes


class _Resolved(NamedTuple):
    """What an envelope refers to: pos of the parent, seq of the call it answers, positions it supersedes."""

    parent: int | None
    answered: int | None
    superseded: Sequence[int]


_NOTHING_RESOLVED: Final = _Resolved(None, None, ())


@dataclass(frozen=True, slots=True)
class Context:
    """What every batch of an open store needs."""

    store_id: bytes
    keystore: Keystore
    clock: Clock
    names: Names
    sessions: Sessions
    opener: Opener
    recall: Recall
    heads: Heads = field(default_factory=Heads)
    is_bound: bool = False  # to a tenant: then a session's drafts name no event of another tenant


class Batch:
    """Drafts for one session. Made inside a write block; `flush` inserts the rows.

    `slots` are those of the payloads of the events that were added.
    """

    def __init__(self, context: Context, connection: Connection, session: SessionRow) -> None:
        self._context, self._connection, self.session = context, connection, session
        self._slots: Iterator[tuple[int, bytes]] = iter(())
        self._rows = Rows()
        self._fresh_names: dict[str, int] = {}
        self._numbers: dict[tuple[str | None, ...], tuple[int | None, ...]] = {}
        self._here: dict[bytes, tuple[int, int, int, int, bytes]] = {}  # what a _Reference is made of
        self._recorded: dict[bytes, int] = {}
        self.slots: list[int] = []
        self._where = canonical.envelope_place(session.name, session.tenant)
        self._seq, self._chain = context.heads.sessions.get(session.number) or self._session_head()
        self._pos, self._store_chain = context.heads.store or self._store_head()

    def _session_head(self) -> tuple[int, bytes]:
        session = self.session
        # Asked whenever another handle committed: only that can have removed it.
        require_there(self._connection, session.number)
        rows: list[tuple[int, bytes]] = fetch(self._connection, SELECT_SESSION_HEAD, (session.number,))
        if rows:
            return rows[0]
        if session.inherited:
            parent = session.inherited[0]
            return session.base, value(self._connection, SELECT_CHAIN, (parent.number, session.base))
        return session.base, canonical.origin(self._context.store_id, session.name)

    def _store_head(self) -> tuple[int, bytes]:
        rows: list[tuple[int, bytes]] = fetch(self._connection, SELECT_STORE_HEAD)
        return rows[0] if rows else (0, canonical.origin(self._context.store_id))

    def use(self, slots: Iterator[tuple[int, bytes]]) -> None:
        """Seal what is added from now on under these keys."""
        self._slots = slots

    def listening(self, heard: Heard | Recorded | None) -> Listening | None:
        """What is asked of one append, and written down with it; None where neither is anything."""
        mode = self._context.heads.mode(self._connection, self.session)
        if heard is None and mode == listening.OFF:
            return None
        own, stamps = heard if isinstance(heard, Heard) else None, heard is not None
        where = self._connection, self.session, self._seq
        return Listening(*where, mode, own, self._context.recall, stamps, self._intern)

    def add(self, prepared: Prepared, hears: Listening | None = None) -> Appended:
        """Record one draft, held to what its author had heard. Raises Refused before anything of it is kept."""
        digest = None
        if prepared.idempotency_key is not None or prepared.event_id is not None:
            digest = self._idempotency_digest(prepared)
            first = self._first(prepared, digest)
            if first is not None:
                return Appended(first, new=False)
        prepared = prepared if hears is None else hears.stamp(prepared)
        is_label = prepared.envelope.get("kind") == LABEL_KIND
        # A label without content may be what it takes to find and erase the rest.
        if prepared.described.subjects and not (is_label and prepared.payload == b"{}"):
            fences.check(self._connection, self.session.name, prepared.described.subjects)
        labelled = labels.targets(prepared, self.session.number, self._require) if is_label else ()
        nanoseconds = self._context.clock()
        microseconds = nanoseconds // 1000
        event_id = prepared.event_id or new_event_id(nanoseconds)
        keys, described, resolved = prepared.envelope, prepared.described, _NOTHING_RESOLVED
        place = self._place(event_id, microseconds) if prepared.is_ruled else None
        if place is not None and prepared.event_id is None:
            if self._context.is_bound and "parent_id" in keys:
                self._require("parent_id", keys["parent_id"])  # the rules look at it, and say what they see
            keys = rules.judge(place, prepared, keys)
        if described.refers or keys is not prepared.envelope:
            keys, resolved = self._resolve(keys, imported=prepared.event_id is not None)
            if place is None and "effect" in keys:  # its call is an effect
                place = self._place(event_id, microseconds)
                keys = rules.judge_effect(place, keys)
            described = described if keys is prepared.envelope else describe(keys)
        self._seq, self._pos = self._seq + 1, self._pos + 1
        envelope = canonical.join_envelope(
            id_text(event_id), self._seq, from_microseconds(microseconds), self._where, described.rest
        )
        self._seal(prepared, event_id, envelope)
        self._index(prepared.type, described, resolved, microseconds)
        for seq in labelled:
            self._label(seq, described)
        if place is not None:
            rules.record(place, prepared, keys, resolved.superseded)
        if digest is not None and prepared.proposes:
            effects.keep_key(self._connection, self._pos, digest)
        elif digest is not None:
            self._rows.idempotency.append((digest, self._pos))
            self._recorded[digest] = self._pos
        self._here[event_id] = (self._pos, self.session.number, self._seq, prepared.type, envelope)
        if hears is not None:
            hears.wrote(keys["agent"], self._pos, self._seq, event_id)
        if keys.get("state_key") == LISTENING_KEY:
            self._context.heads.modes.pop(self.session.number, None)
        return Appended(Event(envelope, Live(prepared.payload)), new=True)

    @property
    def seq(self) -> int:
        """The seq of the last event that was added."""
        return self._seq

    @property
    def pos(self) -> int:
        """The position of the last event that was added."""
        return self._pos

    def flush(self) -> None:
        """Insert the rows so far. The ids of new names count once the transaction committed: see `committed`."""
        self._rows.insert(self._connection)
        self._context.heads.sessions[self.session.number] = self._seq, self._chain
        self._context.heads.store = self._pos, self._store_chain

    def committed(self) -> None:
        """The transaction committed: remember what it made."""
        self._context.names.remember(self._fresh_names, self._numbers)
        self._context.sessions.remember(self.session)

    def _seal(self, prepared: Prepared, event_id: bytes, envelope: bytes) -> None:
        slot, key = next(self._slots)
        self.slots.append(slot)
        salt = os.urandom(sealing.SALT_BYTES)
        rows, payload, pos = self._rows, prepared.payload, self._pos
        store_id, session, seq = self._context.store_id, self.session, self._seq
        bound_to = sealing.place(store_id, event_id, session.name, seq, slot, 0)
        cipher = self._context.keystore.cipher(slot, key)
        rows.payload.append((pos, slot, sealing.seal(cipher, payload, bound_to, salt)))
        rows.slot.append((slot, pos, 0))
        digests = [blob.digest for blob in prepared.blobs] if prepared.blobs else ()
        commitment = canonical.commitment(salt, payload, digests)
        leaf = canonical.leaf(envelope, commitment)
        self._chain = chain = canonical.link(self._chain, leaf)
        self._store_chain = store_chain = canonical.link(self._store_chain, leaf)
        rows.envelope.append(
            (pos, session.number, seq, event_id, envelope, commitment, leaf, chain, store_chain)
        )
        for blob in prepared.blobs:
            slot, key = next(self._slots)
            rows.slot.append((slot, pos, blob.part))
            blobs.insert(self._connection, blob, pos, slot, key, (store_id, event_id, session.name, seq))

    def _place(self, event_id: bytes, microseconds: int) -> Place:
        """Where the next event will stand, for the rules: they look at what stands in the tables."""
        self.flush()
        place = self._pos + 1, self._seq + 1, event_id, microseconds
        return Place(self._connection, self.session, *place, self._intern, self._context.opener)

    def _label(self, seq: int, said: Described) -> None:
        session, rows = self.session.number, self._rows
        rows.subject.extend((session, SUBJECT_FACET, self._intern(text), seq) for text in said.subjects)
        rows.label.append((session, seq, said.sensitivity, said.flags & ABOUT_A_PERSON))

    def _index(self, event_type: int, said: Described, refers: _Resolved, microseconds: int) -> None:
        rows, session, seq = self._rows, self.session.number, self._seq
        known, intern = self._context.names.known, self._intern
        numbers = self._context.names.together.get(said.names) or self._numbers.get(said.names)
        if numbers is None:
            numbers = tuple(
                [None if text is None else known.get(text) or intern(text) for text in said.names]
            )
            self._numbers[said.names] = numbers
        agent, task, thread = numbers[0], numbers[2], numbers[3]
        at = microseconds if said.at is None else said.at
        rows.event.append(
            (
                session, seq, self._pos, event_type, *numbers[:7], said.correlation, numbers[7],
                said.sensitivity, refers.parent, refers.answered, microseconds, at, said.flags,
            )
        )  # fmt: skip
        if event_type == _TOOL_CALL:
            rows.open_call[seq] = (session, seq)
        posting = rows.posting
        posting.append((session, _AGENT_FACET, agent, seq))
        if task is not None:
            posting.append((session, _TASK_FACET, task, seq))
        if thread is not None:
            posting.append((session, _THREAD_FACET, thread, seq))
        for text in said.recipients:
            posting.append((session, _TO_FACET, known.get(text) or intern(text), seq))
        for text in said.subjects:
            posting.append((session, SUBJECT_FACET, known.get(text) or intern(text), seq))
        if numbers[5] is not None:
            posting.append((session, _KIND_FACET, numbers[5], seq))
        if said.decides:
            posting.append((session, PROPOSAL_FACET, numbers[6], seq))
        if said.flags & OF_AN_EFFECT:
            posting.append((session, EFFECT_FACET, known.get(EFFECT_WORD) or intern(EFFECT_WORD), seq))
        for text in said.purposes:
            rows.purpose.append((session, seq, known.get(text) or intern(text)))

    def _intern(self, text: str) -> int:
        return self._context.names.intern(self._connection, text, self._fresh_names)

    def _resolve(self, keys: dict[str, Any], *, imported: bool) -> tuple[dict[str, Any], _Resolved]:
        """Check every reference; the envelope keys, completed for a result from its call, and what was found.

        A parent may be in another session: what made an agent open this one. A link leads to an event of the
        session itself, or of what it was forked from; only what is imported may say otherwise.
        """
        answered, superseded = None, []
        if "call_id" in keys:
            keys = dict(keys)
            answered = self._pair(keys, self._require("call_id", keys["call_id"]), imported=imported)
        find = self._require if imported else self._require_here
        parent = self._require("parent_id", keys["parent_id"]).pos if "parent_id" in keys else None
        for number, link_type in enumerate(LINKS, 1):
            for target in keys.get("links", {}).get(link_type, ()):
                found = find(f"links/{link_type}", target)
                self._rows.link.append((self._pos + 1, number, found.pos))
                if link_type == "supersedes":
                    superseded.append(found.pos)
        return keys, _Resolved(parent, answered, superseded)

    def _pair(self, keys: dict[str, Any], call: _Reference, *, imported: bool) -> int:
        call_id = keys["call_id"]
        if call.type != _TOOL_CALL:
            raise PairingError(call_id, "is not a tool_call")
        if not self._shows(call):
            raise PairingError(call_id, "belongs to another session")
        said: dict[str, Any] = strictjson.load(call.envelope)
        if not self._take_open(call, said):
            raise PairingError(call_id, "has a result already")
        keys.setdefault("parent_id", call_id)
        for key in INHERITED:
            if key in said:
                keys.setdefault(key, said[key])
        if "effect" in said and keys["status"] == "ok" and "effect" not in keys and not imported:
            self.flush()
            move = effects.result_move(self._connection, call_id)
            keys |= {} if move is None else {"effect": move}
        return call.seq

    def _take_open(self, call: _Reference, said: dict[str, Any]) -> bool:
        """Whether a call waits for its result; if so, it does no longer. Raises EffectElsewhere."""
        if call.session != self.session.number:  # a fork answers it for its own branch
            if "effect" in said:
                raise EffectElsewhere(said["id"], said["session"])
            self.flush()
            return not is_answered(self._connection, self.session, call.seq)
        if self._rows.open_call.pop(call.seq, None) is not None:
            return True
        return bool(fetch(self._connection, DELETE_OPEN, (call.session, call.seq)))

    def _shows(self, found: _Reference) -> bool:
        """Whether an event is one of the session, or of what it was forked from, up to there."""
        return found.session == self.session.number or any(
            found.session == part.number and found.seq <= part.upto for part in self.session.inherited
        )

    def _require_here(self, pointer: str, event_id: str) -> _Reference:
        found = self._require(pointer, event_id)
        if not self._shows(found):
            raise InvalidEvent(f"/{pointer}", f"{event_id} is an event of another session")
        return found

    def _require(self, pointer: str, event_id: str) -> _Reference:
        wanted = id_bytes(event_id)
        if wanted in self._here:
            return _Reference(*self._here[wanted])
        rows = fetch(self._connection, SELECT_REFERENCE, (wanted,))
        if not rows or not rows[0][4] or not self._reaches(rows[0][1]):
            raise UnknownReference(pointer, event_id)
        return _Reference(*rows[0])

    def _reaches(self, session: int) -> bool:
        """Whether drafts may name events of a session, by its number."""
        if not self._context.is_bound or session == self.session.number:
            return True
        return tenant_of(self._connection, session) == self.session.tenant

    def _idempotency_digest(self, prepared: Prepared) -> bytes | None:
        if prepared.idempotency_key is None:
            return None
        if prepared.proposes:
            pepper = self._context.keystore.pepper
            return effects.key_digest(pepper, self.session.tenant, prepared.idempotency_key)
        digest = sealing.keyed_digest(
            self._context.keystore.pepper,
            "convlog/idempotency/1",
            self.session.name,
            prepared.idempotency_key,
        )
        return digest[:16]

    def _first(self, prepared: Prepared, digest: bytes | None) -> Event | None:
        """The event that stands in the log for this draft already, if any."""
        if prepared.event_id is not None:
            if prepared.event_id in self._here:
                return Event(self._here[prepared.event_id][4], Live(prepared.payload))
            rows = fetch(self._connection, SELECT_REFERENCE, (prepared.event_id,))
            if rows:
                if not self._reaches(rows[0][1]):
                    raise UnknownReference("id", id_text(prepared.event_id))
                require_there(self._connection, rows[0][1])
                return Event(rows[0][4], Live(prepared.payload))
        if digest is None:
            return None
        if prepared.proposes:
            pos = effects.standing_for(self._connection, digest)
        else:
            pos = self._recorded.get(digest) or value(self._connection, SELECT_IDEMPOTENT, (digest,))
        return None if pos is None else self._repeated(prepared, pos)

    def _repeated(self, prepared: Prepared, pos: int) -> Event:
        """The event at `pos`, whose idempotency key `prepared` has. Raises IdempotencyConflict."""
        self.flush()
        rows = fetch(self._connection, SELECT_AT, (pos,))
        if not rows:
            raise StoreCorrupt("idempotency", f"it names position {pos}, where nothing stands")
        row = rows[0]
        require_there(self._connection, row[6])
        session = Event(row[2], Corrupt()).session  # of an effect it may be another one
        payload, salt = self._context.opener.payload_and_salt(session, row[:5])
        first = Event(row[2], payload)
        same = says_the_same(prepared, first.envelope)
        # What is erased or unreadable cannot be compared: the key outlives the content.
        if isinstance(payload, Live):
            same = same and holds_the_same(prepared, salt, payload.data, row[5])
            if not same:
                raise IdempotencyConflict(first.id)
        return first
