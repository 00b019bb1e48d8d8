"""What stands in the reserved session `_store`: holds, retention policies and changes of keys, folds over its mutations.

No table holds this state. It is read inside the transaction that decides by it, so that a hold that was
placed before an erasure was decided always counts. A mutation that cannot be read stops the decision:
what it held is unknown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.events import Event
from convlog_sqlite.store.candidates import Candidate
from convlog_sqlite.store.reading import Opener, Row
from convlog_sqlite.vocabulary import KEYS_KIND, STORE_SESSION

SELECT_SETTINGS: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed FROM session AS s
CROSS JOIN event AS e ON e.session = s.id CROSS JOIN name AS k ON k.id = e.kind
CROSS JOIN envelope AS v ON v.pos = e.pos LEFT JOIN payload AS p ON p.pos = v.pos
WHERE s.name = ? AND k.text IN ('policy-set', 'policy-removed', 'hold-placed', 'hold-released', 'keys-rotated')
ORDER BY e.seq"""
NEWEST_KEYS: Final = """
SELECT v.bytes FROM session AS s JOIN name AS n ON n.text = ?2
CROSS JOIN posting AS p ON p.session = s.id AND p.facet = 3 AND p.name = n.id
CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE s.name = ?1 ORDER BY p.seq DESC LIMIT 1"""
COUNT_SET: Final = """
SELECT count(*) FROM session AS s CROSS JOIN name AS k ON k.text = ?2
CROSS JOIN event AS e ON e.session = s.id AND e.state_key = k.id WHERE s.name = ?1"""
SELECT_OF_KIND: Final = """
SELECT e.seq, v.id, v.bytes, p.slot, p.sealed FROM session AS s CROSS JOIN name AS k ON k.text = ?2
CROSS JOIN posting AS i ON i.session = s.id AND i.facet = 6 AND i.name = k.id
CROSS JOIN event AS e ON e.session = i.session AND e.seq = i.seq
CROSS JOIN envelope AS v ON v.pos = e.pos LEFT JOIN payload AS p ON p.pos = v.pos WHERE s.name = ?1 ORDER BY e.seq"""

KEYS_THREAD: Final = "keys"  # by which the newest change is found
KEYS_KEY: Final = "store/keystore"
_CHANGE: Final = "keystore/{generation}/{change}/{act}"
_FORGETS: Final = "/replace-lost"
HOLD_KEY: Final = "hold/{id}"
POLICY_KEY: Final = "policy/{id}"


@dataclass(frozen=True, slots=True)
class Hold:
    """Content that must not be erased until the hold is released. `id` is that of the event that placed it.

    `scope` is event, session, task, agent or subject, and `name` says which; a subject stands there as its
    keyed digest. It covers what is there and what is still to come; of a fork, also what it shares with the
    session that it was forked from. `at` is RFC 3339.
    """

    id: str
    scope: str
    name: str
    reason: str
    by: str
    at: str

    def covers(self, candidate: Candidate) -> bool:
        """Whether the event is held."""
        if self.scope == "subject":
            return self.name in candidate.subjects
        if self.scope == "session":
            return candidate.is_shown_in(self.name)
        found: str | None = getattr(candidate, "id" if self.scope == "event" else self.scope)
        return found == self.name

    def to_dict(self) -> dict[str, str]:
        """The hold as JSON values."""
        return asdict(self)


@dataclass(slots=True)
class Standing:
    """Holds and policies by id as they stand; `versions` counts how often each policy was set, ever."""

    holds: dict[str, Hold] = field(default_factory=dict)
    policies: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Take in the next mutation. Raises PayloadUnreadable."""
        said = event.require_payload()["value"]
        if event.kind == "hold-placed":
            by, at = event.agent, event.ts
            self.holds[event.id] = Hold(event.id, said["scope"], said["name"], said["reason"], by, at)
        elif event.kind == "hold-released":
            self.holds.pop(said["hold"], None)
        elif event.kind == "policy-set":
            self.versions[said["id"]] = self.versions.get(said["id"], 0) + 1
            self.policies[said["id"]] = said
        else:
            self.policies.pop(said["id"], None)


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """What the log knows of its keystore: the generation, and the last change to its header that it was told of.

    It stands in the envelope of the newest `keys-rotated`, so that it can be read with whatever keystore is there.
    """

    generation: int = 1
    change: int = 0

    def to_text(self, act: str) -> str:
        """As the envelope's correlation id has it."""
        return _CHANGE.format(generation=self.generation, change=self.change, act=act)


def known_keys(connection: Connection) -> KnownKeys:
    """What this snapshot of the log knows of the keystore."""
    for (envelope,) in fetch(connection, NEWEST_KEYS, (STORE_SESSION, KEYS_THREAD)):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a changed envelope may say anything
            _, generation, change, _ = strictjson.load(envelope)["correlation_id"].split("/")
            known = KnownKeys(int(generation), int(change))
            if 0 < known.generation < 1 << 62 and 0 <= known.change < 1 << 31:  # what a header can hold
                return known
    return KnownKeys()


def standing(connection: Connection, opener: Opener) -> Standing:
    """The holds and policies as this snapshot has them. Raises PayloadUnreadable."""
    found = Standing()
    events = opener.events(STORE_SESSION, fetch(connection, SELECT_SETTINGS, (STORE_SESSION,)))
    # What was decided under a keystore that is lost for good can never be read, nor can what it was about.
    lost = [n for n, event in enumerate(events) if (event.correlation_id or "").endswith(_FORGETS)]
    for event in events[lost[-1] + 1 if lost else 0 :]:
        if event.kind != KEYS_KIND:
            found.take(event)
    return found


def times_set(connection: Connection, state_key: str) -> int:
    """How often a piece of the store's own state was set, ever."""
    count: int = value(connection, COUNT_SET, (STORE_SESSION, state_key))
    return count


def defined(connection: Connection, kind: str) -> list[Row]:
    """The rows of every mutation of a kind, in order."""
    return fetch(connection, SELECT_OF_KIND, (STORE_SESSION, kind))


def subjects_of(holds: Iterable[Hold]) -> frozenset[str]:
    """The digests of the people that holds are about."""
    return frozenset(hold.name for hold in holds if hold.scope == "subject")
