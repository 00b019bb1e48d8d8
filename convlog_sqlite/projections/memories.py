"""Memory: the claims that were promoted in a session, and what became of each. It holds no content.

A claim `stands`, or is `conflicting` where several stand for its key; it is `superseded` by another,
`consolidated` into one that is derived from it, `retracted`, `expired` by the clock when it is shown, or `erased`. A
claim whose evidence was erased and that was kept shows by which redaction.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

from convlog_sqlite.events import Event
from convlog_sqlite.instants import from_microseconds
from convlog_sqlite.projections.projection import Look, Projection
from convlog_sqlite.store.memories import expiry, place_of
from convlog_sqlite.vocabulary import PROMOTED_KIND, RETRACTED_KIND

STANDS, CONFLICTING = "stands", "conflicting"
_SUPERSEDED, _CONSOLIDATED, _RETRACTED = "superseded", "consolidated", "retracted"
_EXPIRED, _ERASED = "expired", "erased"
STATUSES: Final = (STANDS, CONFLICTING, _SUPERSEDED, _CONSOLIDATED, _RETRACTED, _EXPIRED, _ERASED)


def _fold(state: dict[str, Any], event: Event) -> None:
    said = event.envelope
    links = said.get("links", {})
    is_claim = said["kind"] == PROMOTED_KIND
    for target in links.get("supersedes", ()):
        if target in state["claims"] and target not in state["ended"]:
            how = _CONSOLIDATED if target in links.get("derived_from", ()) else _SUPERSEDED
            state["ended"][target] = [said["id"], how if is_claim else _RETRACTED, said["ts"]]
    if is_claim and place_of(said.get("state_key")) is not None:
        state["claims"][said["id"]] = said["seq"]


def _render(state: dict[str, Any], look: Look) -> list[dict[str, Any]]:
    events = look.events(state["claims"].values())
    claims = {event_id: events[seq] for event_id, seq in state["claims"].items()}
    evidence = look.named(item for claim in claims.values() for item in _evidence(claim))
    shown = [
        _shown(claim, state["ended"].get(event_id), evidence, look) for event_id, claim in claims.items()
    ]
    mark_conflicts(shown, lambda claim: (claim["scope"], claim["key"]))
    return shown


def _evidence(claim: Event) -> list[str]:
    return list(claim.links.get("derived_from", ()))


def _shown(
    claim: Event, ended: list[str] | None, evidence: Mapping[str, Event], look: Look
) -> dict[str, Any]:
    said = claim.envelope
    scope, key = place_of(claim.state_key) or ("", "")
    content = look.shown(claim)
    ends = expiry(claim.meta)
    expires = None if ends is None else from_microseconds(ends)
    status = _status(ended, claim.redacted, expires, from_microseconds(look.now))
    shown: dict[str, Any] = {
        "event": said["id"],
        "session": said["session"],
        "seq": said["seq"],
        "ts": said["ts"],
    }
    shown |= {"scope": scope, "key": key, "status": status, "by": said["agent"]}
    if "value" in content:
        content = {"claim": content["value"]}
    shown |= content | {"evidence": [_grounds(item, evidence) for item in _evidence(claim)]}
    approvals = claim.links.get("authorized_by", ())
    for name, item in (
        ("approved_by", approvals[0] if approvals else None),
        ("supersedes", list(claim.links.get("supersedes", ()))),
        ("ended_by", None if ended is None else ended[0]),
        ("expires", expires),
        ("tenant", said.get("tenant")),
        ("sensitivity", claim.sensitivity),
        ("purposes", said.get("purposes")),
        ("subjects", said.get("subjects")),
    ):
        if item:
            shown[name] = item
    return shown


def _status(
    ended: list[str] | None, redacted: Mapping[str, str] | None, expires: str | None, now: str
) -> str:
    """What came first: being ended, or being erased or expired. A claim that was over is tidied up by the next one."""
    until = now if ended is None else ended[2]
    if redacted is not None and redacted["at"] <= until:
        return _ERASED
    if expires is not None and expires <= until:
        return _EXPIRED
    return STANDS if ended is None else ended[1]


def _grounds(event_id: str, evidence: Mapping[str, Event]) -> dict[str, Any]:
    found = evidence.get(event_id)
    gone = None if found is None else found.redacted
    return {"event": event_id} | ({} if gone is None else {"redacted": gone})


def mark_conflicts(claims: Iterable[dict[str, Any]], about: Callable[[dict[str, Any]], Hashable]) -> None:
    """Mark the claims that stand for the same thing as conflicting, each with the others."""
    standing: dict[Hashable, list[dict[str, Any]]] = {}
    for claim in claims:
        if claim["status"] in (STANDS, CONFLICTING):
            standing.setdefault(about(claim), []).append(claim)
    for found in standing.values():
        for claim in found if len(found) > 1 else ():
            claim["status"] = CONFLICTING
            claim["conflicts"] = [other["event"] for other in found if other is not claim]


MEMORIES: Final = Projection(
    "memory",
    _fold,
    initial={"claims": {}, "ended": {}},
    render=_render,
    kinds=(PROMOTED_KIND, RETRACTED_KIND),
    reads_content=False,
)
