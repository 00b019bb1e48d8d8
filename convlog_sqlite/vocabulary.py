"""The closed word lists of the log, and the names and codes that stored bytes rest on.

A code that stands here is written into files: codes are only ever added, never changed or used again.
"""

from __future__ import annotations

from typing import Final

FORMAT_VERSION: Final = 1
STORE_SESSION: Final = "_store"
STORE_AGENT: Final = "convlog"

TYPES: Final = {"message": 1, "tool_call": 2, "tool_result": 3, "mutation": 4}
TYPE_NAMES: Final = {code: name for name, code in TYPES.items()}

# FIPA SC00037J, the communicative acts.
PERFORMATIVES: Final = frozenset(
    {
        "accept-proposal", "agree", "cancel", "cfp", "confirm", "disconfirm", "failure", "inform",
        "inform-if", "inform-ref", "not-understood", "propagate", "propose", "proxy", "query-if",
        "query-ref", "refuse", "reject-proposal", "request", "request-when", "request-whenever", "subscribe",
    }
)  # fmt: skip

# Those that accept what another agent proposed.
ACCEPTANCES: Final = frozenset({"accept-proposal", "agree"})

DECISIONS: Final = ACCEPTANCES | {"reject-proposal", "refuse"}

# What proposes or decides is rare and looked for: it has an index of its own.
PROPOSALS: Final = DECISIONS | {"propose"}

# In place of the purpose of a view: it asks for none.
ANY_PURPOSE: Final = "*"

# What an envelope says that a view may keep back, as bits of one number.
ABOUT_A_PERSON, UNLABELLED, FOR_SOME_PURPOSES, OF_AN_EFFECT = 1, 2, 4, 8

STATUSES: Final = frozenset({"ok", "error", "denied", "interrupted"})
LINKS: Final = ("authorized_by", "evidence", "supersedes", "derived_from")
EFFECT_STATES: Final = {"proposed": 1, "attempted": 2, "committed": 3, "compensated": 4}
EFFECT_OUTCOMES: Final = ("withdrawn", "undone", "not_happened")
EFFECT_KINDS: Final = {f"effect-{state}": state for state in EFFECT_STATES}
EFFECT_LEASE: Final = 60.0  # seconds, unless the caller says for how long the tool may take

SENSITIVITIES: Final = {"public": 1, "internal": 2, "confidential": 3, "restricted": 4}
DEFAULT_SENSITIVITY: Final = "internal"

REASONS: Final = {
    "subject_request": 1,
    "secret_leak": 2,
    "retention": 3,
    "legal_order": 4,
    "user_delete": 5,
    "operator": 6,
    "test": 7,
}
REASON_NAMES: Final = {code: name for name, code in REASONS.items()}
REDACTION_KIND: Final = "redaction"
CLOSED_KIND: Final = "session-closed"
REMOVED_KIND: Final = "session-removed"
LABEL_KIND: Final = "event-labelled"
FENCE_KIND: Final = "subject-fenced"
LIFTED_KIND: Final = "fence-lifted"
KEYS_KIND: Final = "keys-rotated"
PROPOSED_KIND: Final = "memory-proposed"
PROMOTED_KIND: Final = "memory-promoted"
RETRACTED_KIND: Final = "memory-retracted"
CEILING_KIND: Final = "memory-ceiling-set"
JOINED_KIND: Final = "agent-joined"
LEFT_KIND: Final = "agent-left"
EXPIRED_KIND: Final = "readings-expired"
# What a session asks of participants, and the mutation that says so.
LISTENING_KINDS: Final = {
    "require": "listening-required",
    "warn": "listening-warned",
    "off": "listening-off",
}
LISTENING_KEY: Final = "session/listening"
RESTORED_KIND: Final = "store-restored"
RESTORED_THREAD: Final = "restored"  # by which the newest is found

# What each kind of mutation that convlog itself writes or folds means. Any other kebab-case kind is
# allowed and kept. `tilldone-*` and `effect-*` are families.
KINDS: Final = {
    "session-opened": "the session exists from here on",
    "session-closed": "nothing more is expected in the session",
    "agent-joined": "an agent takes part",
    "agent-spawned": "an agent was started by another",
    "agent-left": "an agent no longer takes part",
    "role-granted": "an agent holds a role",
    "role-revoked": "an agent no longer holds a role",
    "skill-activated": "an agent loaded a skill",
    "task-created": "a task exists",
    "task-assigned": "a task was given to an agent",
    "task-claimed": "an agent took a task",
    "task-released": "an agent gave a task back",
    "task-started": "work on a task began",
    "task-blocked": "a task waits for something",
    "task-done": "a task is finished",
    "task-failed": "a task ended without its result",
    "task-depends": "a task waits for another",
    "tilldone-*": "a step of a tilldone list",
    "plan-set": "the plan is now this",
    "decision-made": "something was decided",
    "state-set": "a piece of state has a new value",
    "context-compacted": "a harness replaced older context by a summary",
    "effect-*": "a step of an effect in the outside world",
    "listening-*": "what the session asks of participants that have not heard the others: required, warned or off",
    "redaction": "content was erased",
    "event-labelled": "an event is about more people, or more sensitive, than it says",
    "memory-proposed": "a claim is to become memory, once another agent accepts it",
    "memory-promoted": "a claim became memory",
    "memory-retracted": "a claim left memory",
    "memory-ceiling-set": "how sensitive evidence may be that claims are made of",
    "view-defined": "a view has a new definition",
    "policy-set": "a retention policy has a new version",
    "policy-removed": "a retention policy ended",
    "hold-placed": "content must not be erased",
    "hold-released": "a hold ended",
    "readings-expired": "retention removed what is known of older readings",
    "session-removed": "retention removed a closed session, whole",
    "subject-fenced": "nothing more is to be recorded about a person",
    "fence-lifted": "a fence ended",
    "store-restored": "the database was put back from a backup",
    "keys-rotated": "the keystore changed: rotate, rekey, import or replace-lost",
}

# The key of a piece of state that a task mutation sets, unless the caller gives one.
TASK_STATE_KEY: Final = "task/{task_id}"

# What a proposal is addressed to when it takes a holder of the role to accept it.
ROLE_ADDRESS: Final = "role:"


def escaped(name: str) -> str:
    """A name as one part of a state key: without a slash of its own."""
    return name.replace("%", "%25").replace("/", "%2F")


def unescaped(part: str) -> str:
    """The name that `escaped` made this part of a state key of."""
    return part.replace("%2F", "/").replace("%25", "%")


def role_key(agent: str, role: str) -> str:
    """The state key of a role that an agent holds."""
    return f"role/{escaped(agent)}/{escaped(role)}"


def agent_key(agent: str) -> str:
    """The state key of an agent's part in a session."""
    return f"agent/{agent}"


def dependency_key(task_id: str, on: str) -> str:
    """The state key of one task's waiting for another."""
    return f"depends/{escaped(task_id)}/{escaped(on)}"


# What is derived from evidence: it says what that said, and goes with it.
CLAIM_KINDS: Final = frozenset({PROPOSED_KIND, PROMOTED_KIND})
MEMORY_KINDS: Final = CLAIM_KINDS | {RETRACTED_KIND}

# An event for this purpose, or a restricted one, is private: no claim is made of it.
PRIVATE_PURPOSE: Final = "private"
MEMORY_CEILING: Final = "confidential"  # unless the store says otherwise

# Everything that can refuse a claim, by its code.
PROMOTION_RULES: Final = {
    "evidence-missing": "no evidence is named, or it is no event of the session",
    "evidence-unreadable": "content of the evidence, or of what was approved, is erased, locked, lost or corrupt, or not for the claimant",
    "evidence-conflict": "agents decided apart on the piece of state that the evidence sets",
    "evidence-ended": "the evidence is a claim that no longer stands, or one that is only proposed",
    "sensitivity": "the evidence, or the claim, is more sensitive than memory may be",
    "private": "the evidence is private: restricted, or for the purpose `private`",
    "purpose": "not all of the evidence may be used for it, or nothing is left that all of it may be used for",
    "fenced": "the evidence is about a person about whom nothing more is to be recorded",
    "approval-missing": "it names no acceptance of a proposed claim",
    "approval-own": "the claimant accepted it",
    "approval-other": "another claim was accepted, or that of another agent",
    "approval-revoked": "it was rejected or cancelled since, or who accepted it no longer holds the role",
    "approval-used": "another claim was promoted by it",
    "conflict": "another claim stands for the key, and is not superseded",
    "superseded": "what it supersedes is no claim that stands",
    "expired": "the claim has expired",
}


def memory_key(scope: str, key: str) -> str:
    """The state key of a claim."""
    return f"memory/{escaped(scope)}/{escaped(key)}"


MAX_NAME: Final = 256  # characters
LAST_SEQ: Final = 2**62
MAX_LEASE: Final = 366 * 86_400  # seconds
MAX_NESTING: Final = 200  # levels of arrays and objects in one payload value
MAX_EVENT: Final = 16 * 1024 * 1024  # bytes of payload in one event, attachments apart
INLINE_LIMIT: Final = 8 * 1024  # bytes of JSON of one value kept in the line
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**64 - 1
