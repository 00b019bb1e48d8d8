"""What is known of effects, and the events that move them. `acting` makes them happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from convlog_sqlite.drafts import ABSENT, Attachment, Draft
from convlog_sqlite.events import Event
from convlog_sqlite.instants import from_microseconds
from convlog_sqlite.store.effects import Standing
from convlog_sqlite.store.reader import Reader


class CallKeys(TypedDict, total=False):
    """What the tool_call that proposes an effect may say besides."""

    role: str
    to: Sequence[str]
    performative: str
    thread_id: str
    task_id: str
    parent_id: str
    links: Mapping[str, Sequence[str]]
    correlation_id: str
    traceparent: str
    model: str
    sensitivity: str
    purposes: Sequence[str]
    subjects: Sequence[str]
    attachments: Sequence[Attachment]
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect as it stands. `proposed` is the event that proposed it, `last` the one that moved it last.

    `state` is proposed, attempted, committed or compensated. `worker` is who attempted it; `until` (RFC 3339)
    is when its claim runs out or ran out, and `is_held` whether it held when this was read.
    """

    id: str
    state: str
    worker: str | None
    until: str | None
    is_held: bool
    proposed: Event
    last: Event

    @property
    def outcome(self) -> str | None:
        """Of a compensated effect: withdrawn, undone or not_happened."""
        return (self.last.effect or {}).get("outcome")

    @property
    def fence(self) -> int | None:
        """Of an attempted effect: the fencing number, which is the seq of its attempt."""
        return self.last.seq if self.state == "attempted" else None

    def to_dict(self) -> dict[str, Any]:
        """The effect as JSON values, without content."""
        said = {
            "id": self.id,
            "session": self.proposed.session,
            "state": self.state,
            "outcome": self.outcome,
            "tool": self.proposed.tool,
            "agent": self.proposed.agent,
            "worker": self.worker,
            "fence": self.fence,
            "until": self.until,
            "is_held": self.is_held,
            "last": self.last.id,
            "at": self.last.ts,
        }
        return {key: item for key, item in said.items() if item is not None}


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an effect gave. `event` commits it; `is_replay` says that it took place before, and was not repeated.

    `result` is None where the content of `event` cannot be read any more: see `event.answer`.
    """

    effect: str
    event: Event
    result: Any
    is_replay: bool


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of an effect: `outcome` is committed, undone, not_happened or withdrawn.

    `result` is what the tool gave, where that was found out.
    """

    outcome: str
    result: Any = ABSENT


Reconciler = Callable[[Effect], Settlement | str | None]
"""Looks outside what became of an effect in doubt; None when it cannot tell."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The effects of a session as a worker finds them that starts again; each list in the order of proposal.

    `never_tried` may be attempted. `in_doubt` were attempted, and nothing says whether they took place. `held`
    are being attempted by others right now. `done` are those proposed last, of the committed and the
    compensated. `settled` are those that the reconciler settled just now. `is_whole` is False when there are
    more than the limit in doubt, held or never tried.
    """

    in_doubt: list[Effect] = field(default_factory=list)
    never_tried: list[Effect] = field(default_factory=list)
    held: list[Effect] = field(default_factory=list)
    done: list[Effect] = field(default_factory=list)
    settled: list[Effect] = field(default_factory=list)
    is_whole: bool = True


def opened(reader: Reader, session: str, found: Sequence[Standing]) -> list[Effect]:
    """The effects of a session that stand in these rows."""
    opener, now = reader.opener, reader.clock() // 1000
    proposed = opener.events(session, [one.proposed for one in found])
    last = opener.events(session, [one.last for one in found])
    return [
        Effect(
            proposal.id,
            one.state,
            one.worker,
            None if one.until is None else from_microseconds(one.until),
            one.until is not None and one.until > now,
            proposal,
            moved,
        )
        for one, proposal, moved in zip(found, proposed, last, strict=True)
    ]


def move_draft(
    proposal: Event,
    agent: str,
    state: str,
    *,
    outcome: str | None = None,
    lease: float | None = None,
    value: Any = ABSENT,
) -> Draft:
    """The mutation that moves an effect."""
    effect = {"id": proposal.id, "state": state}
    return Draft(
        type="mutation",
        agent=agent,
        kind=f"effect-{state}",
        effect=effect if outcome is None else effect | {"outcome": outcome},
        parent_id=proposal.id,
        task_id=proposal.task_id,
        thread_id=proposal.thread_id,
        lease=lease,
        value=value,
    )


def is_in_doubt(effect: Effect, agent: str) -> bool:
    """Whether an attempted effect may have happened, as `agent` finds it: its own attempts too."""
    return effect.worker == agent or not effect.is_held
