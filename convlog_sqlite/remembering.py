"""Remembering: the governed way from the history of a session to memory.

    proposal = session.propose_memory([found], "Tokens live for 15 minutes.", scope="store", key="jwt", by="backend")
    approval = session.approve(proposal, agent="alice")
    session.promote(by="backend", approved_by=approval)

A promotion is a mutation like any other; whether it is taken is decided inside the append (`store.promoting`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, Self, TypedDict

from convlog_sqlite.coordination import identity
from convlog_sqlite.drafts import ABSENT, Absent, Draft, check_name, is_event_id
from convlog_sqlite.errors import InvalidEvent, PayloadUnreadable, PromotionRefused, UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.instants import from_microseconds
from convlog_sqlite.store import points
from convlog_sqlite.store.memories import Meta, check_scope, place_of
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.vocabulary import (
    PROMOTED_KIND,
    PROPOSED_KIND,
    RETRACTED_KIND,
    ROLE_ADDRESS,
    memory_key,
)

_TASK: Final = "task:"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that became memory, as it stands when it is asked for.

    `id` is that of the `memory-promoted` event, `claim` what it says: None where its content cannot be read, which
    `redacted` or `unreadable` explains, or is `withheld` from the reader. `status` is stands, conflicting (with the claims `conflicts`), superseded,
    consolidated or retracted (by the event `ended_by`), expired, or erased. `by` is the claimant, `approved_by` the
    acceptance. `evidence` are the events it was derived from: {"event"}, with `redacted` where that was erased.
    `expires` and `ts` are RFC 3339.
    """

    id: str
    session: str
    seq: int
    ts: str
    scope: str
    key: str
    status: str
    by: str
    claim: Any = None
    approved_by: str | None = None
    evidence: Sequence[Mapping[str, Any]] = ()
    supersedes: Sequence[str] = ()
    conflicts: Sequence[str] = ()
    ended_by: str | None = None
    expires: str | None = None
    tenant: str | None = None
    sensitivity: str = "internal"
    purposes: Sequence[str] = ()
    subjects: Sequence[str] = ()
    redacted: Mapping[str, str] | None = None
    unreadable: str | None = None
    withheld: bool = False
    _shown: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> Self:
        """The claim that the projection `memory` shows."""
        names = {key.name for key in fields(cls)} - {"id"}
        given = {key: item for key, item in shown.items() if key in names}
        return cls(id=shown["event"], _shown=shown, **given)

    def to_dict(self) -> dict[str, Any]:
        """The claim as JSON values, as the projection `memory` shows it, without what it does not say."""
        return dict(self._shown)

    def __repr__(self) -> str:
        return f"<claim {self.scope} {self.key}, {self.status}>"  # never content: reprs end up in logs


class PromotedKeys(TypedDict, total=False):
    """What `promote` takes besides."""

    scope: str | None
    key: str | None
    purposes: Sequence[str]
    expires: datetime | str | None


class ProposedKeys(TypedDict, total=False):
    """What `propose_memory` takes besides."""

    scope: str
    key: str | None
    approver: str | None
    purposes: Sequence[str]
    sensitivity: str | None
    expires: datetime | str | None
    supersedes: Sequence[Event | Claim | str]
    contested: bool


class Remembering(ABC):
    """The part of a session that makes memory of history. `Session` is one."""

    id: str
    _reader: Reader

    @abstractmethod
    def append(self, draft: Draft) -> Event: ...
    @abstractmethod
    def content(self, event: Event) -> Any: ...
    @abstractmethod
    def _claims(self, scope: str | None, *, whole: bool) -> list[Claim]: ...

    def propose_memory(
        self,
        events: Sequence[Event | str],
        claim: Any,
        *,
        scope: str = "session",
        key: str | None = None,
        by: str,
        approver: str | None = None,
        purposes: Sequence[str] = (),
        sensitivity: str | None = None,
        expires: datetime | str | None = None,
        supersedes: Sequence[Event | Claim | str] = (),
        contested: bool = False,
    ) -> Event:
        """Propose that a claim, any JSON value, becomes memory: what events of this session are evidence of.

        It is for another agent to accept (`approve`), with `approver` for a holder of that role; `promote` then
        makes it memory. `scope` is store (all sessions of the tenant), session, task:<id> or agent:<name>. Claims of
        one scope with one `key` are about the same thing, and one of them stands; the default is the key of the
        first event where that is a claim, else its id. `supersedes` names the claims that it takes the place of; with
        those among the events too, it consolidates them. With `contested` it will stand beside what stands for the
        key, as a conflict that everybody sees. It has at least the sensitivity of its evidence, the same subjects, and
        no purpose that the evidence has not; `expires` is an instant.

        Raises PromotionRefused with every rule about evidence that refuses it, InvalidEvent, StoreError.
        """
        if not isinstance(contested, bool):
            raise InvalidEvent("/contested", "true or false")
        evidence = _ids(events, "/events")
        meta = Meta(scope, self._key(key, evidence), _instant(expires), contested)
        links = {"derived_from": evidence, "supersedes": _ids(supersedes, "/supersedes")}
        return self.append(
            _draft(
                PROPOSED_KIND,
                by,
                claim,
                meta,
                links,
                performative="propose",
                to=() if approver is None else (ROLE_ADDRESS + _name(approver, "/approver"),),
                purposes=purposes,
                sensitivity=sensitivity,
            )
        )

    def promote(
        self,
        events: Sequence[Event | str] = (),
        claim: Any = ABSENT,
        *,
        scope: str | None = None,
        key: str | None = None,
        by: str,
        approved_by: Event | str | None,
        purposes: Sequence[str] = (),
        expires: datetime | str | None = None,
    ) -> Event:
        """Make memory of a claim that another agent accepted; the `memory-promoted` event.

        `approved_by` is the acceptance of what `propose_memory` recorded. What is not given here is as it was
        proposed; what is given must be what was proposed, but for `purposes`, which may be fewer. Everything is
        held to the rules again as it is now, in the transaction that records it.

        Raises PromotionRefused, whose `rules` are all that refuse it, InvalidEvent, StoreError.
        """
        approval = None if approved_by is None else identity(approved_by)
        proposal = self._proposal(approval)
        proposed = Meta("session", "") if proposal is None else self._meta(proposal)
        links = {} if proposal is None else proposal.links
        evidence = _ids(events, "/events") or list(links.get("derived_from", ()))
        meta = Meta(
            proposed.scope if scope is None else scope,
            key or proposed.key or self._key(None, evidence),
            proposed.expires if expires is None else _instant(expires),
            proposed.contested,
        )
        if isinstance(claim, Absent):
            claim = self._proposed(proposal, approval)
        given = {"derived_from": evidence, "authorized_by": [approval] if approval else []}
        given["supersedes"] = list(links.get("supersedes", ()))
        return self.append(
            _draft(
                PROMOTED_KIND,
                by,
                claim,
                meta,
                given,
                state_key=memory_key(meta.scope, meta.key),
                parent_id=None if proposal is None else proposal.id,
                purposes=purposes,
            )
        )

    def retract(self, claim: Event | Claim | str, *, by: str) -> Event:
        """Let a claim of this session be memory no more; the `memory-retracted` event, which has no content.

        Raises UnknownReference, StateConflict when it stands no more, InvalidEvent for what is no claim of the session.
        """
        return self.append(retraction(self._reader.event(_id(claim)), by))

    def memory(self, scope: str | None = None, *, whole: bool = False) -> list[Claim]:
        """The claims that stand as this session sees them (of one scope), those in conflict too, oldest first.

        They are its own, and those that other sessions of the tenant promoted for `store` or an agent. With `whole`
        also what was superseded, retracted or erased, or has expired. Raises InvalidEvent for what is no scope.
        """
        if scope is not None:
            check_scope(scope, "/scope")
        return self._claims(scope, whole=whole)

    def _key(self, key: str | None, evidence: Sequence[str]) -> str:
        if key is not None or not evidence:
            return (
                _name(key, "/key") if key is not None else "-"
            )  # without evidence it is refused in any case
        with suppress(UnknownReference):
            found = self._reader.event(evidence[0])
            place = place_of(found.state_key) if found.kind == PROMOTED_KIND else None
            return evidence[0] if place is None else place[1]
        return evidence[0]

    def _proposal(self, approval: str | None) -> Event | None:
        """What an event accepts, if that is a proposed claim."""
        with suppress(UnknownReference):
            parent = None if approval is None else self._reader.event(approval).parent_id
            proposal = None if parent is None else self._reader.event(parent)
            return proposal if proposal is not None and proposal.kind == PROPOSED_KIND else None
        return None

    def _meta(self, proposal: Event) -> Meta:
        meta = proposal.meta or {}
        expires, contested = meta.get("expires"), bool(meta.get("contested", False))
        return Meta(str(meta.get("scope", "session")), str(meta.get("key", "")), expires, contested)

    def _proposed(self, proposal: Event | None, approval: str | None) -> Any:
        if proposal is None:
            raise PromotionRefused([("approval-missing", approval)])
        try:
            return self.content(proposal)
        except PayloadUnreadable:
            raise PromotionRefused([("evidence-unreadable", proposal.id)]) from None


def retraction(claim: Event, by: str) -> Draft:
    """The mutation that takes a claim out of memory."""
    return Draft(
        type="mutation",
        agent=by,
        kind=RETRACTED_KIND,
        state_key=claim.state_key,
        task_id=claim.task_id,
        links={"supersedes": [claim.id]},
    )


def _draft(
    kind: str, by: str, claim: Any, meta: Meta, links: Mapping[str, Sequence[str]], **keys: Any
) -> Draft:
    check_scope(meta.scope, "/scope")
    check_name(memory_key(scope := meta.scope, meta.key), "/key")
    named = {link: list(ids) for link, ids in links.items() if ids}
    task = scope.removeprefix(_TASK) if scope.startswith(_TASK) else None
    if task is not None:
        check_name(task, "/scope")
    said = {"value": claim, "meta": meta.to_meta(), "links": named, "task_id": task}
    return Draft(type="mutation", agent=by, kind=kind, **said, **keys)


def _id(event: Event | Claim | str) -> str:
    return event if isinstance(event, str) else event.id


def _ids(events: Sequence[Event | Claim | str], pointer: str) -> list[str]:
    if isinstance(events, str | Event | Claim):
        raise InvalidEvent(pointer, "a list of events, or of their ids")
    found = list(dict.fromkeys(_id(event) for event in events))
    for number, event_id in enumerate(found):
        if not is_event_id(event_id):
            raise InvalidEvent(f"{pointer}/{number}", "an event, or its whole id")
    return found


def _name(name: str, pointer: str) -> str:
    check_name(name, pointer)
    return name


def _instant(expires: datetime | str | None) -> str | None:
    if expires is None:
        return None
    microseconds = points.instant(expires)
    if microseconds is None:
        raise InvalidEvent("/expires", "an instant: an aware datetime, or RFC 3339")
    return from_microseconds(microseconds)
