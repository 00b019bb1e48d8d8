"""Retention: how long content is kept, as policies say, and what that means for one event.

Pure functions over values: nothing here reads a store or a clock. The rule, in one line: content is
destroyed when now is past both the shortest `max_age` and the longest `min_age` of the policies that match
the event, it is not among the newest `keep_last` of its session, and no hold covers it. So a hold goes
before `keep_last` and `min_age`, and those before `max_age`. Without a `max_age` everything is kept.

That is the target `payload`. A policy with the target `envelope` says how long after it was closed a session
is kept at all; then it goes whole, and what its events are is not asked, but for holds and the `min_age` of
policies about their content. `keep_last` chooses among the events of a session, and does not keep one.

A policy with the target `reading` says how long it is known who read what; `agent` is then the reader. What events
say themselves (`seen`) stays with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

from convlog_sqlite.drafts import check_name, check_session_id
from convlog_sqlite.errors import InvalidEvent
from convlog_sqlite.instants import from_microseconds
from convlog_sqlite.store.candidates import Candidate
from convlog_sqlite.store.removing import ERASURE, FORK, HOLD, MIN_AGE, OPEN_CALL, OPEN_EFFECT, Closed
from convlog_sqlite.store.reserved import Hold, Standing, subjects_of
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.vocabulary import SENSITIVITIES, STORE_SESSION, TYPES

PAYLOAD: Final = "payload"
ENVELOPE: Final = "envelope"
READING: Final = "reading"
TARGETS: Final = (PAYLOAD, ENVELOPE, READING)
MATCH_KEYS: Final = ("type", "kind", "tool", "sensitivity", "agent", "session", "task", "subject", "tenant")
# What a policy about whole sessions can match, and one about readings: their readers stand under `agent`.
_SESSION_KEYS: Final = ("session", "tenant")
_READING_KEYS: Final = ("session", "tenant", "agent")
# In place of `subject` where a policy is stored: the keyed digest of the name.
SUBJECT_DIGEST: Final = "subject_digest"

_DURATION: Final = re.compile(r"([1-9][0-9]{0,7})([mhdw])", re.ASCII)
_ID: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MICROSECONDS: Final = {"m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}
_LONGEST: Final = 36_500 * _MICROSECONDS["d"]
_DURATION_RULE: Final = "a duration above zero, up to a hundred years, such as 45m, 12h, 30d or 2w"
_MOST_KEPT: Final = 10**9
_KEPT_BY: Final = {
    OPEN_CALL: "a call without a result",
    OPEN_EFFECT: "an effect that is not done",
    FORK: "a session that was forked from it",
    HOLD: "a hold",
    MIN_AGE: "the min_age of a policy on its content",
    ERASURE: "an erasure that is not done",
}


def duration(text: Any, pointer: str) -> int:
    """Microseconds of `45m`, `12h`, `30d` or `2w`. Raises InvalidEvent, for zero too."""
    found = _DURATION.fullmatch(text) if isinstance(text, str) else None
    microseconds = int(found[1]) * _MICROSECONDS[found[2]] if found else 0
    if not 0 < microseconds <= _LONGEST:
        raise InvalidEvent(pointer, _DURATION_RULE)
    return microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How long the content of some events is kept, or closed sessions are. Durations are text: `45m`, `12h`, `30d`, `2w`.

    `match` holds what an event must be, all of it: type, kind, tool, sensitivity, agent, session, task,
    subject (a person's name), tenant; empty, it matches every event. Content may be erased from `max_age`
    on, and not before `min_age`; the newest `keep_last` events of each session are kept whatever their age.
    Age counts from the time at the source, else from the time of recording. `version` is 0 until the policy
    is set, then it counts how often a policy of this id was. A policy that was read back has the keyed
    digest of a subject under `subject_digest`.

    With `target="envelope"` it is about sessions: `match` holds session and tenant only, age counts from the
    `session-closed` that a session ends with, and from `max_age` on the whole session may be removed. With
    `target="reading"` it is about what is known to have been read: `match` holds session, tenant and agent, the
    reader; of each reader in each view the last reading stays, from which it goes on.

    Raises InvalidEvent.
    """

    id: str
    target: str = PAYLOAD
    match: Mapping[str, str] = field(default_factory=dict, hash=False)
    max_age: str | None = None
    min_age: str | None = None
    keep_last: int = 0
    version: int = 0

    def __post_init__(self) -> None:
        if type(self.id) is not str or len(self.id) > 64 or not _ID.fullmatch(self.id):
            raise InvalidEvent("/id", "up to 64 small letters and digits joined by single hyphens")
        if self.target not in TARGETS:
            raise InvalidEvent("/target", "one of " + ", ".join(TARGETS))
        for key in ("max_age", "min_age"):
            if getattr(self, key) is not None:
                duration(getattr(self, key), f"/{key}")
        if self.max_age is None and self.min_age is None:
            raise InvalidEvent("/max_age", "a policy needs max_age or min_age")
        if type(self.keep_last) is not int or not 0 <= self.keep_last <= _MOST_KEPT:
            raise InvalidEvent("/keep_last", "a number of events")
        _check_match(self.match)
        if self.target == ENVELOPE:
            self._check_about(
                _SESSION_KEYS, "a policy about envelopes", "keeps a session or removes it whole"
            )
        if self.target == READING:
            self._check_about(
                _READING_KEYS, "a policy about readings", "keeps the last of each reader anyway"
            )
        object.__setattr__(self, "match", MappingProxyType(dict(self.match)))

    def _check_about(self, keys: Sequence[str], what: str, why: str) -> None:
        for key in self.match:
            if key not in keys:
                raise InvalidEvent(f"/match/{key}", f"{what} matches {', '.join(keys)} only")
        if self.keep_last:
            raise InvalidEvent("/keep_last", f"{what} {why}")

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any], version: int) -> Self:
        """The policy as a `policy-set` mutation holds it."""
        return cls(**stored, version=version)

    def to_dict(self) -> dict[str, Any]:
        """The policy as JSON values, without what it does not say."""
        said: dict[str, Any] = {"id": self.id, "target": self.target, "match": dict(self.match)}
        said |= {"max_age": self.max_age, "min_age": self.min_age}
        said |= {"keep_last": self.keep_last, "version": self.version}
        return {key: item for key, item in said.items() if item or key == "target"}

    def to_stored(self) -> dict[str, Any]:
        """The value of the mutation that sets it."""
        return {key: item for key, item in self.to_dict().items() if key != "version"}

    def keyed(self, digest: Callable[[str], str]) -> Self:
        """The same with the digest of a subject in place of the name."""
        if "subject" not in self.match:
            return self
        match = {key: item for key, item in self.match.items() if key != "subject"}
        return replace(self, match=match | {SUBJECT_DIGEST: digest(self.match["subject"])})

    def matches(self, candidate: Candidate) -> bool:
        """Whether the event is one of those that it is about."""
        return all(
            item in candidate.subjects if key == SUBJECT_DIGEST else getattr(candidate, key) == item
            for key, item in self.match.items()
        )

    def matches_session(self, session: SessionRow) -> bool:
        """Whether the session is one of those that a policy about envelopes is about."""
        names = {"session": session.name, "tenant": session.tenant}
        return self.target == ENVELOPE and all(names[key] == item for key, item in self.match.items())

    def matches_readings(self, session: SessionRow, reader: str) -> bool:
        """Whether readings of a reader in a session are what it is about."""
        names = {"session": session.name, "tenant": session.tenant, "agent": reader}
        return self.target == READING and all(names[key] == item for key, item in self.match.items())

    def __str__(self) -> str:
        return f"{self.id}@{self.version}"


def _check_match(match: Any) -> None:
    if not isinstance(match, Mapping):
        raise InvalidEvent("/match", "an object with some of " + ", ".join(MATCH_KEYS))
    for key, item in match.items():
        pointer = f"/match/{key}"
        if key not in (*MATCH_KEYS, SUBJECT_DIGEST):
            raise InvalidEvent("/match", "has only " + ", ".join(MATCH_KEYS))
        check_name(item, pointer)
        if key in ("type", "sensitivity"):
            words = TYPES if key == "type" else SENSITIVITIES
            if item not in words:
                raise InvalidEvent(pointer, "one of " + ", ".join(words))
        elif key == "session":
            check_session_id(item)
            if item == STORE_SESSION:
                raise InvalidEvent(pointer, "_store is convlog's own and is never erased")
        elif key == SUBJECT_DIGEST and not _DIGEST.fullmatch(item):
            raise InvalidEvent(pointer, "32 hex digits")
    if "subject" in match and SUBJECT_DIGEST in match:
        raise InvalidEvent("/match/subject", "given once, as a name or as a digest")


@dataclass(frozen=True, slots=True)
class Fate:
    """What policies and holds mean for one event at one moment.

    `expiring` is the policy with the shortest max_age, None when nothing erases the event; `keeping` the one
    whose min_age ends later than that, `sparing` the one whose keep_last covers it. `at`, in microseconds,
    is when both ages are over.
    """

    expiring: RetentionPolicy | None = None
    keeping: RetentionPolicy | None = None
    sparing: RetentionPolicy | None = None
    holds: tuple[Hold, ...] = ()
    at: int = 0

    def is_due(self, now: int) -> bool:
        """Whether only a hold can keep the content."""
        return self.expiring is not None and self.sparing is None and now >= self.at


@dataclass(frozen=True, slots=True)
class Rules:
    """The policies and holds of a store, and the moment they are held against, in microseconds."""

    policies: Sequence[RetentionPolicy]
    holds: Sequence[Hold]
    now: int

    @classmethod
    def of(cls, found: Standing, now: int) -> Self:
        """What stands in the store."""
        return cls(policies_of(found), list(found.holds.values()), now)

    @property
    def subjects(self) -> frozenset[str]:
        """The digests that policies and holds name."""
        return subjects_of(self.holds) | {
            policy.match[SUBJECT_DIGEST] for policy in self.policies if SUBJECT_DIGEST in policy.match
        }

    @property
    def counts(self) -> frozenset[int]:
        """How many of the newest events are spared, by any policy."""
        return frozenset(policy.keep_last for policy in self.policies if policy.keep_last)

    def fate(self, candidate: Candidate, newest: Mapping[int, int]) -> Fate:
        """What becomes of an event; `newest` gives for each of `counts` the first seq that is spared."""
        holds = tuple(hold for hold in self.holds if hold.covers(candidate))
        matching = self._about(candidate)
        ageing = [(duration(p.max_age, "/max_age"), p.id, p) for p in matching if p.max_age]
        if not ageing or candidate.protected:
            return Fate(holds=holds)
        longest, _, expiring = min(ageing, key=lambda one: one[:2])
        keeping = None
        for policy in matching:
            if policy.min_age and (age := duration(policy.min_age, "/min_age")) > longest:
                longest, keeping = age, policy
        spared = [p for p in matching if p.keep_last and candidate.seq >= newest[p.keep_last]]
        sparing = max(spared, key=lambda policy: policy.keep_last, default=None)
        return Fate(expiring, keeping, sparing, holds, candidate.at + longest)

    def _about(self, candidate: Candidate) -> list[RetentionPolicy]:
        return [one for one in self.policies if one.target == PAYLOAD and one.matches(candidate)]

    @property
    def asks_events(self) -> bool:
        """Whether a single event can keep its session."""
        return bool(self.holds) or any(one.target == PAYLOAD and one.min_age for one in self.policies)

    def removal(self, closed: Closed) -> tuple[str, int] | None:
        """(policy id and version) by which a closed session is due, else None."""
        found = self._session_fate(closed.session, closed.at)
        return None if found is None or self.now < found[1] else (found[0].id, found[0].version)

    def _session_fate(self, session: SessionRow, closed_at: int) -> tuple[RetentionPolicy, int] | None:
        """The policy that removes a session, and when: after the shortest max_age and the longest min_age."""
        found = _age([policy for policy in self.policies if policy.matches_session(session)])
        return None if found is None else (found[0], closed_at + found[1])

    def lapse(self, session: SessionRow, reader: str) -> tuple[tuple[str, int], int, bool] | None:
        """(policy id and version, the moment before which they go, held) of readings, else None."""
        found = _age([policy for policy in self.policies if policy.matches_readings(session, reader)])
        if found is None:
            return None
        policy, age = found
        names = {"session": session.name, "agent": reader}
        held = any(names.get(hold.scope) == hold.name for hold in self.holds)
        return (policy.id, policy.version), self.now - age, held

    def keeps(self, candidate: Candidate) -> str | None:
        """Why an event keeps its session from being removed, or None."""
        if any(hold.covers(candidate) for hold in self.holds):
            return HOLD
        ages = [duration(one.min_age, "/min_age") for one in self._about(candidate) if one.min_age]
        is_kept = bool(ages) and not candidate.erased and self.now < candidate.at + max(ages)
        return MIN_AGE if is_kept else None

    def explain_session(self, session: SessionRow, closed: Closed | None, why: str | None) -> str | None:
        """In one line: when a session is removed. `why` is what keeps it; None where no policy is about it."""
        found = self._session_fate(session, 0 if closed is None else closed.at)
        if found is None:
            return None
        policy, at = found
        reason = f"max_age {policy.max_age} of policy {policy}"
        if closed is None:
            return f"its session is removed once it is closed, after {reason}"
        if self.now < at:
            return (
                f"its session is closed, and removed when retention is applied after {_instant(at)}: {reason}"
            )
        if why is not None:
            return f"its session is due to be removed, and kept by {_KEPT_BY[why]}: {reason}"
        return f"its session is removed when retention is next applied: due since {_instant(at)}: {reason}"

    def due(self, candidate: Candidate, newest: Mapping[int, int]) -> tuple[tuple[str, int], bool] | None:
        """(policy id and version, held) of an event that is due and not erased, else None."""
        if candidate.erased:
            return None
        fate = self.fate(candidate, newest)
        if fate.expiring is None or not fate.is_due(self.now):
            return None
        return (fate.expiring.id, fate.expiring.version), bool(fate.holds)

    def explain(self, candidate: Candidate, newest: Mapping[int, int]) -> str:
        """In one line: what will happen to the content of an event, when, and why."""
        if candidate.protected:
            return "kept: redactions and the session _store are never erased"
        if candidate.erased:
            return "erased already"
        fate = self.fate(candidate, newest)
        if fate.expiring is None:
            return "kept: no policy with a max_age matches it" + _under(fate.holds, "; and it is")
        reason = f"max_age {fate.expiring.max_age} of policy {fate.expiring}"
        if fate.keeping is not None:
            reason += f", kept longer by min_age {fate.keeping.min_age} of policy {fate.keeping}"
        when = _instant(fate.at)
        if fate.sparing is not None:
            newest_ones = f"the newest {fate.sparing.keep_last} of its session (policy {fate.sparing})"
            held = _under(fate.holds, "; and it is")
            return f"kept while it is among {newest_ones}, else until {when}: {reason}{held}"
        if fate.holds:
            return "kept while it is" + _under(fate.holds, "") + f", else until {when}: {reason}"
        if fate.is_due(self.now):
            return f"erased when retention is next applied: due since {when}: {reason}"
        return f"kept until {when}, then erased when retention is next applied: {reason}"


def _age(matching: Sequence[RetentionPolicy]) -> tuple[RetentionPolicy, int] | None:
    """The policy with the shortest max_age, and the age at which it takes effect: not before the longest min_age."""
    ageing = [(duration(p.max_age, "/max_age"), p.id, p) for p in matching if p.max_age]
    if not ageing:
        return None
    shortest, _, expiring = min(ageing, key=lambda one: one[:2])
    return expiring, max([shortest, *(duration(p.min_age, "/min_age") for p in matching if p.min_age)])


def policies_of(found: Standing) -> list[RetentionPolicy]:
    """The policies that stand, by id."""
    stored = sorted(found.policies.items())
    return [RetentionPolicy.from_stored(value, found.versions[policy_id]) for policy_id, value in stored]


def _under(holds: Sequence[Hold], lead: str) -> str:
    return f"{lead} under hold {', '.join(hold.id for hold in holds)}" if holds else ""


def _instant(microseconds: int) -> str:
    try:
        return from_microseconds(microseconds)
    except OverflowError:
        return "after the year 9999"
