"""Whether a draft that comes again, under a key that was used before, says what was recorded then."""

from __future__ import annotations

from typing import Any, Final

from convlog_sqlite import canonical, strictjson
from convlog_sqlite.store.claims import CLAIMED
from convlog_sqlite.store.preparing import Prepared

# What a result takes from its call unless it says otherwise.
INHERITED: Final = ("tool", "task_id", "thread_id", "correlation_id")
_SAYS_WHO: Final = {
    "agent", "role", "model", "parent_id", "correlation_id", "traceparent", "thread_id", "effect"
}  # fmt: skip
_STORE_GIVEN: Final = frozenset({"v", "id", "seq", "ts", "session", "tenant", "seen"})


def says_the_same(prepared: Prepared, recorded: dict[str, Any]) -> bool:
    """Whether a draft's envelope says what was recorded, but for what the store gave or filled in."""
    said = {key: item for key, item in prepared.envelope.items() if key not in _STORE_GIVEN}
    if prepared.expect is not None or said.get("kind") == CLAIMED:
        said, recorded = _without_superseded(said), _without_superseded(recorded)
    filled_in = {"parent_id", "effect", *INHERITED} if "call_id" in said else set()
    if "seen" in recorded:
        filled_in |= {"parent_id", "role"}  # a participant's
    if "effect" in said:
        filled_in |= {"links"}  # the acceptance that an attempt needs
    if prepared.proposes:  # the same effect, whoever proposes it again: a worker that takes over
        filled_in |= _SAYS_WHO
        said = {key: item for key, item in said.items() if key not in _SAYS_WHO}
    others = set(recorded) - set(said) - filled_in - _STORE_GIVEN
    return not others and all(recorded.get(key) == item for key, item in said.items())


def _without_superseded(envelope: dict[str, Any]) -> dict[str, Any]:
    """An envelope without what the log found that it supersedes."""
    links = {key: ids for key, ids in envelope.get("links", {}).items() if key != "supersedes"}
    rest = {key: item for key, item in envelope.items() if key != "links"}
    return rest | {"links": links} if links else rest


def holds_the_same(prepared: Prepared, salt: bytes, payload: bytes, commitment: bytes) -> bool:
    """Whether a draft's content is what was recorded. Blobs are compared through the commitment."""
    said, recorded = strictjson.load(prepared.payload), strictjson.load(payload)
    for mine, theirs in zip(said.get("attachments", ()), recorded.get("attachments", ()), strict=False):
        mine["blob"] = theirs["blob"]  # random at each append
    digests = [blob.digest for blob in prepared.blobs]
    return strictjson.same(said, recorded) and canonical.commitment(salt, payload, digests) == commitment
