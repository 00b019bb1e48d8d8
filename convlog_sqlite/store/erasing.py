"""Erasing content: which events, in which order, and what stays. Owns `intent` and its rows, `tombstone`.

The order, so that a crash at any point leaves something to be finished and never a false claim:

    1  the intent is committed: the exact events, by position
    2  their slots, and those of the snapshots that cover them, are overwritten with the record of the erasure,
       synced and read back: the content is gone
    3  one transaction wipes the sealed bytes, drops the snapshots, writes tombstones and the redaction event
    4  the plaintext files are rewritten, the intent is forgotten

The removal of a session is an intent too, and goes the same way, but for step 3: see `emptying`.

Each step may be done again. So: a tombstone stands only where the key is dead on disk, and a dead key has a
tombstone or an intent. Everything here is committed at full durability, whatever the handle's own is.

A keystore restored from an older copy has keys again that tombstones say are gone. Erasures come one after
the other, and none begins before this was looked at. So an older copy, whatever its age, lacks the newest one: a
look at the slots of a few of the newest tombstones tells, and then every slot that any tombstone names is
destroyed again, before anything is read. A copy that was itself made while slots were overwritten may have the
newest and lack others: `verify` looks at all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, Database, fetch, value
from convlog_sqlite.drafts import Draft
from convlog_sqlite.errors import UnderHold, UnknownReference
from convlog_sqlite.events import Erased, Live
from convlog_sqlite.instants import Clock, id_bytes, id_text, new_event_id
from convlog_sqlite.keystore import Keystore, erasure_record
from convlog_sqlite.store import copies, deriving, fences, snapshots
from convlog_sqlite.store.candidates import at_position
from convlog_sqlite.store.committing import Writer
from convlog_sqlite.store.deriving import Reach
from convlog_sqlite.store.preparing import Prepared, prepare
from convlog_sqlite.store.reading import FACETS, SUBJECT_FACET
from convlog_sqlite.store.reserved import Hold, standing, subjects_of
from convlog_sqlite.store.sessions import Sessions, tenant_of
from convlog_sqlite.vocabulary import REASON_NAMES, REASONS, REDACTION_KIND, STORE_SESSION

FIND_ID: Final = """
SELECT v.pos FROM envelope AS v CROSS JOIN session AS s ON s.id = v.session
WHERE v.id = ?1 AND (?2 IS NULL OR s.tenant = (SELECT id FROM name WHERE text = ?2))"""
FIND_SESSION: Final = """
SELECT e.pos FROM event AS e JOIN session AS s ON s.id = e.session
WHERE s.name = ?1 AND (?2 IS NULL OR s.tenant = (SELECT id FROM name WHERE text = ?2))"""
FIND_POSTED: Final = """
SELECT e.pos FROM name AS n CROSS JOIN session AS s
CROSS JOIN posting AS p ON p.session = s.id AND p.facet = ?1 AND p.name = n.id
CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq
WHERE n.text = ?2 AND (?3 IS NULL OR s.tenant = (SELECT id FROM name WHERE text = ?3))"""
DESCRIBE: Final = """
SELECT v.session, s.name, v.id, k.text,
       EXISTS (SELECT 1 FROM tombstone AS t WHERE t.pos = v.pos),
       EXISTS (SELECT 1 FROM intent_event AS i WHERE i.pos = v.pos)
       OR EXISTS (SELECT 1 FROM removal AS r WHERE r.session = v.session)
FROM envelope AS v JOIN session AS s ON s.id = v.session
LEFT JOIN event AS e ON e.session = v.session AND e.seq = v.seq LEFT JOIN name AS k ON k.id = e.kind
WHERE v.pos = ?"""
INSERT_INTENT: Final = "INSERT INTO intent VALUES (?, ?, ?, ?, ?, ?, ?, 1)"
INSERT_INTENT_EVENT: Final = "INSERT INTO intent_event VALUES (?, ?)"
SELECT_INTENTS: Final = """
SELECT i.id, i.session, s.name, i.agent, i.reason, i.scope, i.at, i.detail, i.state, r.session IS NOT NULL
FROM intent AS i JOIN session AS s ON s.id = i.session LEFT JOIN removal AS r ON r.intent = i.id
ORDER BY i.at, i.id"""
SELECT_INTENT_EVENTS: Final = """
SELECT i.pos, v.id, p.slot FROM intent_event AS i CROSS JOIN envelope AS v ON v.pos = i.pos
LEFT JOIN payload AS p ON p.pos = i.pos WHERE i.intent = ? ORDER BY i.pos"""
SELECT_BLOB_SLOTS: Final = """
SELECT b.pos, b.part, b.slot FROM intent_event AS i CROSS JOIN blob AS b ON b.pos = i.pos WHERE i.intent = ?"""
SELECT_INTENT_CONTENT: Final = """
SELECT s.name, v.seq, v.id, v.bytes, p.slot, p.sealed FROM intent_event AS i CROSS JOIN envelope AS v ON v.pos = i.pos
CROSS JOIN session AS s ON s.id = v.session LEFT JOIN payload AS p ON p.pos = i.pos WHERE i.intent = ? LIMIT ?"""
SELECT_INTENT_POSITIONS: Final = """
SELECT v.id, v.pos FROM intent_event AS i CROSS JOIN envelope AS v ON v.pos = i.pos WHERE i.intent = ?"""
ANY_INTENT: Final = "SELECT EXISTS (SELECT 1 FROM intent)"
WIPE_PAYLOAD: Final = "UPDATE payload SET sealed = zeroblob(length(sealed)) WHERE pos = ?"
EMPTY_PAYLOAD: Final = "UPDATE payload SET sealed = x'' WHERE pos = ?"
WIPE_CHUNKS: Final = (
    "UPDATE chunk SET sealed = zeroblob(length(sealed)) WHERE id BETWEEN ?1 * 65536 AND ?1 * 65536 + 65535"
)
DELETE_CHUNKS: Final = "DELETE FROM chunk WHERE id BETWEEN ?1 * 65536 AND ?1 * 65536 + 65535"
DELETE_BLOB: Final = "DELETE FROM blob WHERE pos = ? AND part = ?"
INSERT_TOMBSTONE: Final = "INSERT INTO tombstone (pos, slot, redaction, at, reason) VALUES (?, ?, ?, ?, ?)"
SELECT_TOMBSTONE: Final = "SELECT 1 FROM tombstone WHERE pos = ?"
WIPED: Final = "UPDATE intent SET state = 2 WHERE id = ?"
INSERT_INTENT_COPY: Final = "INSERT INTO intent_copy VALUES (?, ?)"
SELECT_INTENT_COPIES: Final = "SELECT path FROM intent_copy WHERE intent = ? ORDER BY path"
DELETE_INTENT_COPY: Final = "DELETE FROM intent_copy WHERE intent = ? AND path = ?"
NEWEST_SLOTS: Final = "SELECT slot FROM tombstone ORDER BY redaction DESC LIMIT 64"
SELECT_BURIED: Final = """
SELECT s.number, v.id, t.at, t.reason FROM slot AS s CROSS JOIN tombstone AS t ON t.pos = s.pos
LEFT JOIN envelope AS v ON v.pos = t.redaction"""
DELETE_PLACE: Final = "DELETE FROM intent_copy WHERE path = ?"
FORGET_EVENTS: Final = "DELETE FROM intent_event WHERE intent = ?"
FORGET_INTENT: Final = "DELETE FROM intent WHERE id = ?"

DECIDED: Final = 1  # the state of an intent until the content is gone from the store


@dataclass(frozen=True, slots=True)
class Scope:
    """What to erase: `kind` is event, session, task, agent or subject. Subjects are digests by now.

    With a `tenant`, what is in its sessions, and nothing else.
    """

    kind: str
    names: tuple[str, ...]
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """A redaction of events of one session, or its removal, that is decided. `id` will be that of its event."""

    id: bytes
    number: int
    session: str
    agent: str
    reason: int
    scope: str
    at: int
    detail: str
    state: int
    removes: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What a redaction found: positions to erase by session, and how many were erased already or protected.

    Of those to erase, `derived` by session are claims that go with their evidence; `kept` are claims that stay.
    """

    positions: dict[tuple[int, str], list[int]]
    matched: int
    already: int
    protected: int
    derived: Mapping[int, int]
    kept: int


def find(connection: Connection, scope: Scope) -> list[int]:
    """The positions of all events in a scope, ascending."""
    found: set[int] = set()
    for name in scope.names:
        if scope.kind == "event":
            rows = fetch(connection, FIND_ID, (id_bytes(name), scope.tenant))
        elif scope.kind == "session":
            rows = fetch(connection, FIND_SESSION, (name, scope.tenant))
        else:
            facet = {"task": FACETS["task_id"], "agent": FACETS["agent"], "subject": SUBJECT_FACET}[
                scope.kind
            ]
            rows = fetch(connection, FIND_POSTED, (facet, name, scope.tenant))
        found.update(pos for (pos,) in rows)
    return sorted(found)


def decide(connection: Connection, positions: Iterable[int], reach: Reach = deriving.NOTHING) -> Decision:
    """Sort positions out, and those that go with them: redaction events and the store's own session are never erased."""
    wanted: dict[tuple[int, str], list[int]] = {}
    derived: dict[int, int] = {}
    matched = already = protected = 0
    for pos in sorted({*positions, *reach.derived}):
        matched += 1
        number, session, _, kind, is_erased, is_intended = fetch(connection, DESCRIBE, (pos,))[0]
        if session == STORE_SESSION or kind == REDACTION_KIND:
            protected += 1
        elif is_erased or is_intended:
            already += 1
        else:
            wanted.setdefault((number, session), []).append(pos)
            if pos in reach.derived:
                derived[number] = derived.get(number, 0) + 1
    return Decision(wanted, matched, already, protected, derived, len(reach.kept))


class Eraser:
    """Erases in one store, at full durability. One at a time: the caller holds the erasure lock."""

    def __init__(
        self,
        database: Database,
        keystore: Keystore,
        store_id: bytes,
        clock: Clock,
        writer: Writer | None = None,
    ) -> None:
        """`writer` is that of the open handle, where `database` is its own: it knows the ends of the chains."""
        self._database, self._keystore, self._clock = database, keystore, clock
        self._writer = writer or Writer(database, keystore, store_id, clock)

    @property
    def writer(self) -> Writer:
        """What records its redactions, in the same database."""
        return self._writer

    def look(self, scope: Scope, override: Sequence[str] = (), *, keep_derived: bool = False) -> Decision:
        """What a redaction of `scope` would erase now. Raises what `intend` raises."""
        with self._database.read() as connection:
            positions = find(connection, scope)
            reach = deriving.reach(connection, positions, keep=keep_derived)
            decision = decide(connection, positions, reach)
            self._check_holds(connection, decision, override)
            return decision

    def intend(
        self,
        scope: Scope,
        agent: str,
        reason: str,
        override: Sequence[str] = (),
        fence: Prepared | None = None,
        *,
        keep_derived: bool = False,
    ) -> tuple[Decision, list[Intent]]:
        """Fix the exact events and commit the intent to erase them: one for each session concerned.

        What is derived from them goes in the same intents, or with `keep_derived` stays, which the redaction says.
        `fence` is the event that fences the subject of the scope, recorded in the same transaction unless a fence
        stands. Raises UnderHold, and UnknownReference for a hold to override that does not stand.
        """
        nanoseconds = self._clock()
        with self._fencing(), self._database.write() as connection:
            asked = find(connection, scope)
            reach = deriving.reach(connection, asked, keep=keep_derived)
            decision = decide(connection, asked, reach)
            overridden = self._check_holds(connection, decision, override)
            for (number, _), positions in decision.positions.items():
                holds = sorted(overridden.get(number, ()))
                detail: dict[str, Any] = {"overridden": holds} if holds else {}
                detail |= {"derived": decision.derived[number]} if number in decision.derived else {}
                detail |= {"derived_kept": decision.kept} if decision.kept else {}
                intent_id = insert_intent(connection, number, agent, reason, scope.kind, nanoseconds, detail)
                insert_events(connection, intent_id, positions)
            if fence is not None and fences.standing_on(connection, scope.names[0]) is None:
                self._writer.record_inside(connection, STORE_SESSION, fence)
        return decision, self.pending()

    @contextmanager
    def _fencing(self) -> Iterator[None]:
        """Recorded or rolled back, the ends of the chains are not what the writer remembers."""
        try:
            yield
        finally:
            self._writer.forget_heads()

    def _check_holds(
        self, connection: Connection, decision: Decision, override: Sequence[str]
    ) -> dict[int, set[str]]:
        """The overridden holds by session. Raises UnderHold when others stand in the way."""
        holds = standing(connection, self._writer.opener).holds
        for hold_id in override:
            if hold_id not in holds:
                raise UnknownReference("hold", hold_id)
        overridden: dict[int, set[str]] = {}
        in_the_way: set[str] = set()
        count = 0
        for number, hold_ids in _held(connection, decision, list(holds.values())):
            overridden.setdefault(number, set()).update(hold_ids.intersection(override))
            in_the_way |= hold_ids.difference(override)
            count += bool(hold_ids.difference(override))
        if in_the_way:
            raise UnderHold(sorted(in_the_way), count)
        return overridden

    def pending(self) -> list[Intent]:
        """What is decided and not done everywhere, oldest first."""
        with self._database.read() as connection:
            return [Intent(*row) for row in fetch(connection, SELECT_INTENTS)]

    def is_of(self, intent: Intent, tenant: str | None) -> bool:
        """Whether an intent is about a session of a tenant; None: of any."""
        with self._database.read() as connection:
            return tenant is None or tenant_of(connection, intent.number) == tenant

    def contents(self, intent: Intent, limit: int) -> Iterator[tuple[str, bytes, list[bytes]]]:
        """What is about to be erased, of at most `limit` events: id, payload, and every key, blobs' too."""
        with self._database.read() as connection:
            rows = fetch(connection, SELECT_INTENT_CONTENT, (intent.id, limit))
            parts = fetch(connection, SELECT_BLOB_SLOTS, (intent.id,))
            positions = dict(fetch(connection, SELECT_INTENT_POSITIONS, (intent.id,)))
        for session, *row in rows:
            slots = [row[3]] + [slot for pos, _, slot in parts if pos == positions[row[1]]]
            answers = self._keystore.read([slot for slot in slots if slot is not None])
            (payload,) = self._writer.opener.payloads(session, [tuple(row)])
            if isinstance(payload, Live):
                keys = [answer for answer in answers if isinstance(answer, bytes)]
                yield id_text(row[1]), payload.data, keys

    def erase(self, intent: Intent) -> int:
        """Steps 2 and 3: when this returns, the content is gone from the store. How many events it was."""
        with self._database.read() as connection:
            events = fetch(connection, SELECT_INTENT_EVENTS, (intent.id,))
            parts = fetch(connection, SELECT_BLOB_SLOTS, (intent.id,))
            derived = snapshots.covering(connection, intent.id)
        if intent.state == DECIDED:
            slots = [slot for _, _, slot in events if slot is not None] + [slot for _, _, slot in parts]
            slots += [slot for _, slot in derived]
            record = erasure_record(intent.id, intent.at // 1000, intent.reason)
            self._keystore.destroy(dict.fromkeys(slots, record))
            self._wipe(intent, events, parts)
        return len(events)

    def _wipe(self, intent: Intent, events: Sequence[Any], parts: Sequence[Any]) -> None:
        event = self._redaction_event(intent, [event_id for _, event_id, _ in events])
        with self._database.write() as connection:
            # The same ones whose keys are gone: while an erasure is decided, no snapshot is kept.
            snapshots.drop(connection, [number for number, _ in snapshots.covering(connection, intent.id)])
            wipe_sealed(connection, [(pos,) for pos, _, _ in events], parts)
            redaction = self._writer.record_inside(connection, intent.session, event)
            bury(connection, intent, redaction, [(pos, slot) for pos, _, slot in events])
            wiped(connection, intent)
        self._writer.forget_heads()

    def _redaction_event(self, intent: Intent, event_ids: Sequence[bytes]) -> Prepared:
        content = {
            "reason": REASON_NAMES[intent.reason],
            "scope": intent.scope,
            **strictjson.load(intent.detail.encode()),
            "events": len(event_ids),
            "digest": hashlib.sha256(b"".join(sorted(event_ids))).hexdigest(),
        }
        draft = Draft(type="mutation", agent=intent.agent, kind=REDACTION_KIND, value=content)
        return prepare(draft, self._keystore.pepper, intent.id)

    def copies_of(self, intent: Intent) -> list[str]:
        """The places, as registered, whose files are still to be rewritten."""
        with self._database.read() as connection:
            return [path for (path,) in fetch(connection, SELECT_INTENT_COPIES, (intent.id,))]

    def settle(self, intent: Intent, rewritten: Sequence[str]) -> None:
        """Step 4: these places no longer hold the content. The intent is forgotten with the last of them."""
        with self._database.write() as connection:
            connection.executemany(DELETE_INTENT_COPY, [(intent.id, path) for path in rewritten])
            if not fetch(connection, SELECT_INTENT_COPIES, (intent.id,)):
                connection.execute(FORGET_EVENTS, (intent.id,))
                connection.execute(FORGET_INTENT, (intent.id,))

    def forget_place(self, path: str) -> None:
        """A place where files were is none any more: what waited for it alone is done."""
        with self._database.write() as connection:
            copies.unregister(connection, path)
            connection.execute(DELETE_PLACE, (path,))
        for intent in self.pending():
            if intent.state != DECIDED:
                self.settle(intent, ())

    def destroy_again(self) -> None:
        """Destroy what tombstones name and the keystore, restored from an older copy, has keys for."""
        with self._database.read() as connection:
            rows = fetch(connection, SELECT_BURIED)
        answers = self._keystore.read([slot for slot, *_ in rows])
        records = {
            slot: erasure_record(redaction or bytes(16), at // 1000, reason)
            for (slot, redaction, at, reason), answer in zip(rows, answers, strict=True)
            if not isinstance(answer, Erased)
        }
        self._keystore.destroy(records)


def insert_intent(
    connection: Connection,
    session: int,
    agent: str,
    reason: str,
    scope: str,
    nanoseconds: int,
    detail: Mapping[str, Any],
) -> bytes:
    """Write down that events of a session are to be erased; `detail` goes into the redaction event. Its id."""
    intent_id = new_event_id(nanoseconds)
    row = (intent_id, session, agent, REASONS[reason], scope, nanoseconds // 1000, json.dumps(detail))
    connection.execute(INSERT_INTENT, row)
    return intent_id


def insert_events(connection: Connection, intent_id: bytes, positions: Iterable[int]) -> None:
    """Write down which events an intent is about."""
    connection.executemany(INSERT_INTENT_EVENT, [(intent_id, pos) for pos in positions])


def wipe_sealed(
    connection: Connection, positions: Sequence[tuple[int]], parts: Iterable[tuple[int, int, int]]
) -> None:
    """Wipe the sealed bytes of events, and of the blobs `parts`: (pos, part, slot)."""
    for pos, part, slot in parts:
        for sql in (WIPE_CHUNKS, DELETE_CHUNKS):
            connection.execute(sql, (slot,))
        connection.execute(DELETE_BLOB, (pos, part))
    connection.executemany(WIPE_PAYLOAD, positions)
    connection.executemany(EMPTY_PAYLOAD, positions)


def bury(
    connection: Connection, intent: Intent, record: int, events: Iterable[tuple[int, int | None]]
) -> None:
    """Write the tombstones of events, (pos, slot) of each; `record` is the position of the event that says so."""
    rows = [(pos, slot or 0, record, intent.at, intent.reason) for pos, slot in events]
    new = [row for row in rows if value(connection, SELECT_TOMBSTONE, (row[0],)) is None]
    connection.executemany(INSERT_TOMBSTONE, new)


def wiped(connection: Connection, intent: Intent) -> None:
    """The content is gone from the store: what is left are the plaintext files."""
    places = [(intent.id, path) for path in copies.paths(connection)]
    connection.executemany(INSERT_INTENT_COPY, places)
    connection.execute(WIPED, (intent.id,))


def _held(
    connection: Connection, decision: Decision, holds: Sequence[Hold]
) -> Iterator[tuple[int, set[str]]]:
    """Session and holds of each event that is held."""
    if not holds:
        return
    sessions = {row.number: row for row in Sessions().all(connection)}
    digests = subjects_of(holds)
    for (number, _), positions in decision.positions.items():
        for pos in positions:
            candidate = at_position(connection, sessions, pos, digests)
            hold_ids = {hold.id for hold in holds if hold.covers(candidate)}
            if hold_ids:
                yield number, hold_ids


def has_intents(connection: Connection) -> bool:
    """Whether an erasure is decided and not done."""
    return bool(value(connection, ANY_INTENT))


def newest_slots(connection: Connection) -> list[int]:
    """The slots that the newest tombstones name, few enough to be looked at whenever a store is opened."""
    return [slot for (slot,) in fetch(connection, NEWEST_SLOTS)]
