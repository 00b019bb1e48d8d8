"""Whether a claim becomes memory, decided inside the append: every rule is looked at, and all that refuse are named.

A `memory-proposed` is held to the rules about its evidence, a `memory-promoted` to those again, as they are by then,
and to those about its approval and about the claims that stand. The claim is at least as sensitive as its
evidence, about the same people, and for no purpose that the evidence is not for: what the caller left out of that is
filled in here, where no label or erasure can come in between. The codes are those of `PROMOTION_RULES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from convlog_sqlite.database import fetch
from convlog_sqlite.errors import InvalidEvent, PromotionRefused, StateConflict
from convlog_sqlite.events import Live
from convlog_sqlite.instants import id_text
from convlog_sqlite.store import fences, memories, roles, states
from convlog_sqlite.store.memories import Fact, Meta
from convlog_sqlite.store.places import Place
from convlog_sqlite.store.preparing import Prepared
from convlog_sqlite.store.repeating import holds_the_same
from convlog_sqlite.vocabulary import (
    ACCEPTANCES,
    DEFAULT_SENSITIVITY,
    LINKS,
    MEMORY_KINDS,
    PRIVATE_PURPOSE,
    PROMOTED_KIND,
    PROPOSED_KIND,
    RETRACTED_KIND,
    SENSITIVITIES,
    memory_key,
)

# ?1 the event that was answered  ?2 behind this position
SELECT_REVOKED: Final = """
SELECT v.session, v.seq, v.id FROM event AS e CROSS JOIN name AS n ON n.id = e.performative
CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE e.parent = ?1 AND e.pos > ?2 AND n.text IN ('reject-proposal', 'refuse', 'cancel') ORDER BY e.pos"""
SELECT_USED: Final = """
SELECT v.id FROM link AS l CROSS JOIN envelope AS v ON v.pos = l.pos
CROSS JOIN event AS e ON e.session = v.session AND e.seq = v.seq
WHERE l.target = ? AND l.type = 1 AND e.kind = (SELECT id FROM name WHERE text = 'memory-promoted')"""

_SENSITIVITY_NAMES: Final = {code: name for name, code in SENSITIVITIES.items()}
_RESTRICTED: Final = SENSITIVITIES["restricted"]


def judge(place: Place, prepared: Prepared, keys: dict[str, Any]) -> dict[str, Any]:
    """Hold a claim, a proposed one or a retraction to the rules; its envelope keys, completed.

    Raises PromotionRefused with every rule that refuses, InvalidEvent, StateConflict.
    """
    if keys["kind"] == RETRACTED_KIND:
        return _judge_retraction(place, keys)
    meta = _form(prepared, keys)
    judged = _Judged(place, keys)
    if keys["kind"] == PROMOTED_KIND:
        judged.hold_to_approval(prepared)
        judged.hold_to_what_stands(meta)
    judged.hold_to_evidence()
    if meta.ends is not None and meta.ends <= place.microseconds:
        judged.refuse("expired")
    if judged.broken:
        raise PromotionRefused(list(judged.broken))
    return judged.keys


def _form(prepared: Prepared, keys: dict[str, Any]) -> Meta:
    meta = Meta.of(prepared.payload)
    if keys["kind"] == PROPOSED_KIND:
        if keys.get("performative") != "propose":
            raise InvalidEvent("/performative", "a proposed claim is a proposal: propose")
        if "state_key" in keys:
            raise InvalidEvent("/state_key", "a proposed claim sets no state")
    elif keys.get("state_key") != memory_key(meta.scope, meta.key):
        raise InvalidEvent("/state_key", f"that of the claim: {memory_key(meta.scope, meta.key)}")
    return meta


class _Judged:
    """A claim while it is held to the rules. `broken` are those that refuse it."""

    def __init__(self, place: Place, keys: dict[str, Any]) -> None:
        self._place, self.keys = place, keys
        self._links: dict[str, Sequence[str]] = keys.get("links", {})
        self._proposal: Fact | None = None
        self.broken: dict[tuple[str, str | None], None] = {}

    def refuse(self, rule: str, event: str | None = None) -> None:
        """Write down that a rule refuses the claim, and the event it is about."""
        self.broken[rule, event] = None

    def _find(self, event_id: str) -> Fact | None:
        found = memories.find(self._place.connection, event_id)
        return found if found is not None and found.is_shown_in(self._place.session) else None

    def hold_to_evidence(self) -> None:
        """The rules about what the claim is derived from, which gives it sensitivity, purposes and subjects."""
        named = self._links.get("derived_from", ())
        if not named:
            self.refuse("evidence-missing")
        facts = []
        for event_id in named:
            fact = self._find(event_id)
            if fact is None:
                self.refuse("evidence-missing", event_id)
            else:
                facts.append(fact)
                self._hold_to_fact(fact)
        self._inherit(facts)

    def _hold_to_fact(self, fact: Fact) -> None:
        place = self._place
        if not fact.is_readable(place.opener):
            self.refuse("evidence-unreadable", fact.id)
        if fact.said.get("kind") in MEMORY_KINDS and not self._is_standing(fact):
            self.refuse("evidence-ended", fact.id)
        elif fact.state_key is not None and fact.id not in self._links.get("supersedes", ()):
            heads = states.heads(place.connection, place.session, fact.state_key)
            if len(heads) > 1 and fact.pos in {head.pos for head in heads}:
                self.refuse("evidence-conflict", fact.id)

    def _is_standing(self, fact: Fact) -> bool:
        """Whether an event is a claim that was promoted, and neither ended nor expired."""
        place = self._place
        if fact.said.get("kind") != PROMOTED_KIND:
            return False
        wide = memories.is_for_all(fact.said)
        ended = memories.ended_by(place.connection, fact, place.session, wide=wide)
        return ended is None and not memories.is_expired(place.opener, fact, place.microseconds)

    def _inherit(self, facts: Sequence[Fact]) -> None:
        connection, keys = self._place.connection, self.keys
        ceiling = memories.ceiling(connection)
        level = SENSITIVITIES[keys.get("sensitivity", DEFAULT_SENSITIVITY)]
        if level > ceiling:
            self.refuse("sensitivity")
        subjects = list(keys.get("subjects", ()))
        for fact in facts if self._proposal is None else [*facts, self._proposal]:
            own, about = memories.says(connection, fact)
            if own > ceiling:
                self.refuse("sensitivity", fact.id)
            if own >= _RESTRICTED or PRIVATE_PURPOSE in fact.said.get("purposes", ()):
                self.refuse("private", fact.id)
            for subject in about:
                if fences.standing_on(connection, subject) is not None:
                    self.refuse("fenced", fact.id)
            level = max(level, own)
            subjects += [subject for subject in about if subject not in subjects]
        purposes = self._purposes(facts)
        said = {key: item for key, item in keys.items() if key not in ("sensitivity", "purposes", "subjects")}
        if _SENSITIVITY_NAMES[level] != DEFAULT_SENSITIVITY:
            said["sensitivity"] = _SENSITIVITY_NAMES[level]
        self.keys = (
            said | ({"purposes": purposes} if purposes else {}) | ({"subjects": subjects} if subjects else {})
        )

    def _purposes(self, facts: Sequence[Fact]) -> list[str]:
        """What the claim may be used for; none: anything."""
        asked = self.keys.get("purposes")
        left: list[str] | None = asked
        for fact in facts:
            allowed = fact.said.get("purposes")
            if allowed is None:
                continue
            if asked is not None and not set(asked) <= set(allowed):
                self.refuse("purpose", fact.id)
            left = list(allowed) if left is None else [purpose for purpose in left if purpose in allowed]
        if left is not None and not left and asked is None:
            self.refuse("purpose")
        return left or []

    def hold_to_approval(self, prepared: Prepared) -> None:
        """The rules about the acceptance that the claim names."""
        named = self._links.get("authorized_by", ())
        approval = self._find(named[0]) if len(named) == 1 else None
        if approval is None or approval.said.get("performative") not in ACCEPTANCES:
            self.refuse("approval-missing", named[0] if named else None)
            return
        if approval.said["agent"] == self.keys["agent"]:
            self.refuse("approval-own", approval.id)
        for (event_id,) in fetch(self._place.connection, SELECT_USED, (approval.pos,)):
            self.refuse("approval-used", id_text(event_id))
        proposal = self._find(approval.said["parent_id"]) if "parent_id" in approval.said else None
        if proposal is None or proposal.said.get("kind") != PROPOSED_KIND:
            self.refuse("approval-other", approval.id)
            return
        self._proposal = proposal
        self._hold_to_proposal(prepared, proposal, approval)
        self._hold_to_revocation(proposal, approval)
        self.keys = self.keys | {"parent_id": proposal.id}

    def _hold_to_proposal(self, prepared: Prepared, proposal: Fact, approval: Fact) -> None:
        payload, salt = proposal.payload(self._place.opener)
        if proposal.going or not isinstance(payload, Live):
            self.refuse("evidence-unreadable", proposal.id)
            return
        proposed = proposal.said.get("links", {})
        purposes, allowed = self.keys.get("purposes"), proposal.said.get("purposes")
        if not (
            proposal.said["agent"] == self.keys["agent"]
            and set(proposed.get("derived_from", ())) == set(self._links.get("derived_from", ()))
            and set(proposed.get("supersedes", ())) == set(self._links.get("supersedes", ()))
            and (allowed is None or purposes is None or set(purposes) <= set(allowed))
            and holds_the_same(prepared, salt, payload.data, proposal.commitment)
        ):
            self.refuse("approval-other", approval.id)
        elif purposes is None and allowed is not None:
            self.keys = self.keys | {"purposes": list(allowed)}

    def _hold_to_revocation(self, proposal: Fact, approval: Fact) -> None:
        place = self._place
        for answered in (proposal, approval):
            for session, seq, event_id in fetch(
                place.connection, SELECT_REVOKED, (answered.pos, approval.pos)
            ):
                if memories.shows(place.session, session, seq):
                    self.refuse("approval-revoked", id_text(event_id))
        wanted, agent = roles.roles_wanted(dict(proposal.said)), approval.said["agent"]
        if wanted and not any(roles.holds(place.connection, place.session, agent, role) for role in wanted):
            self.refuse("approval-revoked", approval.id)

    def hold_to_what_stands(self, meta: Meta) -> None:
        """The rules about other claims: those for the same key, and those that it supersedes."""
        place = self._place
        superseded = list(self._links.get("supersedes", ()))
        for event_id in superseded:
            claim = self._find(event_id)
            if claim is None or not self._can_be_superseded(claim):
                self.refuse("superseded", event_id)
        key = place.number(self.keys["state_key"])
        found = memories.standing(place, meta.scope, key)
        for claim in found if not meta.contested else ():
            if claim.id not in superseded:
                self.refuse("conflict", claim.id)
        if meta.contested and self._proposal is not None:
            superseded.append(self._proposal.id)  # what it was decided on is not what stands: so both do
        self.keys = _tidied(place, self.keys, key, superseded, found)

    def _can_be_superseded(self, claim: Fact) -> bool:
        place = self._place
        if claim.said.get("kind") != PROMOTED_KIND:
            return False
        wide = memories.is_for_all(claim.said)
        return memories.ended_by(place.connection, claim, place.session, wide=wide) is None


def _judge_retraction(place: Place, keys: dict[str, Any]) -> dict[str, Any]:
    superseded = keys.get("links", {}).get("supersedes", ())
    claim = memories.find(place.connection, superseded[0]) if len(superseded) == 1 else None
    where = memories.place_of(keys.get("state_key"))
    if (
        claim is None
        or where is None
        or not claim.is_shown_in(place.session)
        or claim.said.get("kind") != PROMOTED_KIND
        or claim.said.get("state_key") != keys["state_key"]
    ):
        raise InvalidEvent(
            "/links/supersedes", "a retraction names one claim of the session, and has its state key"
        )
    key = place.number(keys["state_key"])
    found = memories.standing(place, where[0], key)
    wide = memories.is_wide(where[0])
    if memories.ended_by(place.connection, claim, place.session, wide=wide) is not None:
        raise StateConflict(keys["state_key"], [other.id for other in found])
    return _tidied(place, keys, key, list(superseded), found)


def _tidied(
    place: Place, keys: dict[str, Any], key: int, superseded: list[str], found: Sequence[Fact]
) -> dict[str, Any]:
    """The keys of a mutation that also supersedes what no longer stands: else `state` would call that a conflict."""
    claims = {claim.pos for claim in found}
    over = [
        id_text(head.id)
        for head in states.heads(place.connection, place.session, key)
        if head.pos not in claims
    ]
    superseded += [event_id for event_id in over if event_id not in superseded]
    if not superseded:
        return keys
    links = {**keys.get("links", {}), "supersedes": superseded}
    return keys | {"links": {link: links[link] for link in LINKS if link in links}}
