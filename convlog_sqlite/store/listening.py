"""Listening: what the author of an append had heard, decided and written down inside the append.

A participant's events carry `seen`: how far it had read the session, through which view. A session may ask that
participants hear the others first: then an append of one that was to see an event of another and has not heard it
is refused (`require`), or says in `seen.stale` which the oldest of those is (`warn`). What a session asks is a
mutation on the state key `session/listening`, known by its kind alone; so is whether an agent takes part.

What reports on something done is never refused, for it is true whatever others wrote meanwhile: results, effects
that were committed or compensated, joining and leaving. Nor is what an import brings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.errors import StaleContext
from convlog_sqlite.events import Event, Live
from convlog_sqlite.instants import id_text
from convlog_sqlite.store import readings
from convlog_sqlite.store.names import SELECT_NAME
from convlog_sqlite.store.preparing import Prepared, describe
from convlog_sqlite.store.readings import Noted, Reading
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.vocabulary import (
    JOINED_KIND,
    LABEL_KIND,
    LEFT_KIND,
    LISTENING_KEY,
    LISTENING_KINDS,
    REDACTION_KIND,
    TYPES,
    agent_key,
)

SELECT_NEWEST: Final = """
SELECT k.text, v.id, v.bytes FROM name AS s CROSS JOIN event AS e ON e.session = ?1 AND e.state_key = s.id
CROSS JOIN name AS k ON k.id = e.kind CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE s.text = ?2 AND e.seq <= ?3 ORDER BY e.seq DESC LIMIT 1"""
# ?1 session  ?2 after seq  ?3 up to seq  ?4 the agent that was to see it
SELECT_OTHERS: Final = """
SELECT e.seq, v.id FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.session = ?1 AND e.seq > ?2 AND e.seq <= ?3 AND e.agent <> ?4 ORDER BY e.seq LIMIT 1"""
SELECT_LAST_OWN: Final = """
SELECT p.seq, v.id FROM posting AS p CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq
CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE p.session = ?1 AND p.facet = 1 AND p.name = ?2 AND p.seq > ?3 ORDER BY p.seq DESC LIMIT 1"""
SELECT_ID: Final = """
SELECT v.id FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos WHERE e.session = ? AND e.seq = ?"""

OFF: Final = LISTENING_KINDS["off"]
_WHOLE: Final = "everything@0"
_REQUIRED: Final = LISTENING_KINDS["require"]
# Said of an agent or the session, not decided on what others wrote.
_ALWAYS_TAKEN: Final = frozenset(
    {JOINED_KIND, LEFT_KIND, LABEL_KIND, REDACTION_KIND, *LISTENING_KINDS.values()}
)
_REPORTS: Final = ("committed", "compensated")


class Watch(Protocol):
    """What an agent is to see of a session."""

    def oldest(
        self, connection: Connection, session: SessionRow, after: int, upto: int, agent: int
    ) -> tuple[int, str] | None:
        """(seq, id) of the oldest event of others that it shows between seq `after`, exclusive, and `upto`."""


class Everything:
    """All of it."""

    def oldest(
        self, connection: Connection, session: SessionRow, after: int, upto: int, agent: int
    ) -> tuple[int, str] | None:
        """See Watch."""
        for part in reversed(session.line):
            place = part.number, max(after, part.after), min(upto, part.upto), agent
            for seq, event_id in fetch(connection, SELECT_OTHERS, place):
                return seq, id_text(event_id)
        return None


@dataclass(slots=True, eq=False)
class Heard:
    """What the author of an append had heard. `view` is labelled with its version; `seen` is the seq it had read up to.

    `reading` is the reading that it acts on, None where nothing recorded says what it had seen; `pending` are
    those to be written with the append. Behind `seen` nobody else wrote up to seq `clear`. `parent` is the event
    that caused this one, where it names none. Once the append is committed, `cleared` is the seq up to which
    nobody else wrote that it was to hear.
    """

    agent: str
    view: str
    seen: int
    reading: Noted | None
    pending: Sequence[Noted]
    clear: int
    parent: str | None
    watch: Watch
    cleared: int = 0

    @property
    def role(self) -> str | None:
        """The role in which it read what it acts on."""
        return None if self.reading is None else self.reading.reading.role


class Recorded:
    """In place of a Heard: what the log knows of what the author had heard, whoever it is."""


RECORDED: Final = Recorded()
# What the authors of an append had heard; None: it says nothing of it.
Hears = Heard | Recorded | None

# What the log knows that an agent had heard, None where it knows of no reading of it in the session.
Recall = Callable[[Connection, SessionRow, str], "Heard | None"]


@dataclass(frozen=True, slots=True)
class Part:
    """The newest word on an agent's part in a session, or on what the session asks: the mutation that says it.

    `role` and `view` are those of an agent, the view with its version.
    """

    kind: str
    id: str
    role: str | None
    view: str

    @property
    def is_there(self) -> bool:
        """Whether the agent has joined, and not left."""
        return self.kind == JOINED_KIND


def part_of(connection: Connection, session: SessionRow, state_key: str) -> Part | None:
    """The newest mutation on a state key of a session, or of what it was forked from."""
    for place in session.line:
        for kind, event_id, envelope in fetch(
            connection, SELECT_NEWEST, (place.number, state_key, place.upto)
        ):
            said = Event(envelope, Live(b"{}"))
            seen = said.seen or {}
            return Part(kind, id_text(event_id), said.role, str(seen.get("view") or _WHOLE))
    return None


def mode_of(connection: Connection, session: SessionRow) -> str:
    """The kind of mutation that says what a session asks of participants."""
    found = part_of(connection, session, LISTENING_KEY)
    return OFF if found is None or found.kind not in LISTENING_KINDS.values() else found.kind


def takes_part(connection: Connection, session: SessionRow, agent: str) -> bool:
    """Whether an agent has joined, and not left."""
    found = part_of(connection, session, agent_key(agent))
    return found is not None and found.is_there


def last_own(connection: Connection, session: SessionRow, agent: str) -> tuple[int, str] | None:
    """(seq, id) of the newest event of an agent in the session itself."""
    for (number,) in fetch(connection, SELECT_NAME, (agent,)):
        for seq, event_id in fetch(connection, SELECT_LAST_OWN, (session.number, number, session.base)):
            return seq, id_text(event_id)
    return None


def recall(
    connection: Connection, session: SessionRow, agent: str, watch: Callable[[Reading], Watch]
) -> Heard | None:
    """What the log knows that an agent had heard: its furthest reading. `watch` says what it is to see."""
    ((reader,),) = fetch(connection, SELECT_NAME, (agent,)) or [(None,)]
    found = readings.furthest(connection, session.number, reader)
    if found is None:
        return None
    parent = last_own(connection, session, agent)
    if found.last > (0 if parent is None else parent[0]):
        ids = fetch(connection, SELECT_ID, (session.segment_of(found.last).number, found.last))
        parent = (found.last, id_text(ids[0][0])) if ids else parent
    noted = Noted(found, 0, found.number, is_settled=True)
    event_id = None if parent is None else parent[1]
    return Heard(agent, found.label, found.upto, noted, (), found.upto, event_id, watch(found))


@dataclass(slots=True)
class Listening:
    """The rule of listening, for one append of one session. `head` is the last seq before it.

    `heard` is what its author says, `recall` finds what the log knows of any author. `stamps` says whether events
    get `seen` in a session that asks for nothing. `intern` gives the number of a name.
    """

    connection: Connection
    session: SessionRow
    head: int
    mode: str
    heard: Heard | None
    recall: Recall
    stamps: bool
    intern: Callable[[str], int]
    _known: dict[str, Heard | None] = field(default_factory=dict)
    _stale: dict[str, tuple[int, str] | None] = field(default_factory=dict)
    _written: dict[str, list[int]] = field(default_factory=dict)
    _last: dict[str, tuple[int, str]] = field(default_factory=dict)

    def stamp(self, prepared: Prepared) -> Prepared:
        """A draft that says what its author had seen. Raises StaleContext."""
        if prepared.event_id is not None:
            return prepared
        keys = prepared.envelope
        agent = keys["agent"]
        heard = self._heard(agent)
        missed = None
        if self.mode != OFF and not _is_always_taken(keys):
            missed = self._missed(agent, heard)
            if missed is not None and self.mode == _REQUIRED and not _is_report(prepared):
                raise StaleContext(agent, 0 if heard is None else heard.seen, *missed)
        if heard is None:
            return prepared
        seen: dict[str, Any] = {"seq": heard.seen, "view": heard.view}
        if missed is not None:
            seen["stale"] = missed[0]
        said = keys | {"seen": seen}
        if "role" not in keys and heard.role is not None:
            said["role"] = heard.role
        parent = self._last[agent][1] if agent in self._last else heard.parent
        if parent is not None and "parent_id" not in keys and "call_id" not in keys:
            said["parent_id"] = parent
        return replace(prepared, envelope=said, described=describe(said))

    def wrote(self, agent: str, pos: int, seq: int, event_id: bytes) -> None:
        """Take note of an event that was added; the next of its author in this append follows on it."""
        if self._known.get(agent) is not None:
            self._written.setdefault(agent, []).append(pos)
            self._last[agent] = seq, id_text(event_id)

    def record(self) -> None:
        """Write the readings that the append was made on."""
        for agent, heard in self._known.items():
            if heard is None:
                continue
            for noted in heard.pending:
                readings.write(self.connection, self.session.number, noted, self.intern)
            if heard.reading is not None and agent in self._written:
                number = readings.write(self.connection, self.session.number, heard.reading, self.intern)
                readings.inform(self.connection, number, self._written[agent])
            if agent in self._last and (self.head <= heard.clear or self._stale.get(agent, ()) is None):
                heard.cleared = self._last[agent][0]

    def _heard(self, agent: str) -> Heard | None:
        if self.heard is not None and agent == self.heard.agent:
            self._known[agent] = self.heard
        elif agent not in self._known:
            # Of who takes no part nobody asks anything, and an event says nothing that was not asked for.
            is_wanted = self.stamps or takes_part(self.connection, self.session, agent)
            self._known[agent] = self.recall(self.connection, self.session, agent) if is_wanted else None
        return self._known[agent]

    def _missed(self, agent: str, heard: Heard | None) -> tuple[int, str] | None:
        """(seq, id) of the oldest event of others that a participant was to see and has not heard."""
        clear = 0 if heard is None else heard.clear
        if self.head <= clear:
            return None
        if agent not in self._stale:
            asked = heard is not None or takes_part(self.connection, self.session, agent)
            watch = Everything() if heard is None else heard.watch
            place = self.session, clear, self.head, self.intern(agent)
            self._stale[agent] = watch.oldest(self.connection, *place) if asked else None
        return self._stale[agent]


def _is_always_taken(keys: dict[str, Any]) -> bool:
    return keys.get("kind") in _ALWAYS_TAKEN


def _is_report(prepared: Prepared) -> bool:
    """Whether it says what was done, so that it is true whatever others wrote meanwhile."""
    effect = prepared.envelope.get("effect")
    return prepared.type == TYPES["tool_result"] or (effect is not None and effect["state"] in _REPORTS)
