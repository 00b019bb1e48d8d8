"""Verbs of agents that work together: who has a task, who may decide, who asked and was answered.

Each is one draft, recorded like any other; what may be refused is decided inside the append (`store.claims`,
`store.roles`). In one process this is discipline: who appends says who it is.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from convlog_sqlite.drafts import Draft, check_name
from convlog_sqlite.errors import NoReply
from convlog_sqlite.events import Event
from convlog_sqlite.follow import Waiter
from convlog_sqlite.store import tracing
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.vocabulary import ROLE_ADDRESS, dependency_key, role_key

Recorded = TypeVar("Recorded")


def identity(event: Event | str) -> str:
    """The id of an event, or the id itself."""
    return event.id if isinstance(event, Event) else event


class Coordinating(ABC, Generic[Recorded]):
    """The verbs, over one `append`. They give what it gives: an Event, or an awaitable of one."""

    @abstractmethod
    def append(self, draft: Draft) -> Recorded:
        """Record one draft."""

    def claim(self, task_id: str, *, agent: str, lease: float | None = None) -> Recorded:
        """Take a task, for `lease` seconds (None: until it is given back, done or failed).

        One agent has it at a time, whoever is first; the claim's `seq` is the fencing number to hand on with
        the work. Claiming again renews it. Raises StateConflict, whose `holder` has the task.
        """
        return self.append(
            Draft(type="mutation", agent=agent, kind="task-claimed", task_id=task_id, lease=lease)
        )

    def release(self, task_id: str, *, agent: str) -> Recorded:
        """Give a task back, for others to claim."""
        return self.append(Draft(type="mutation", agent=agent, kind="task-released", task_id=task_id))

    def depends(self, task_id: str, on: str, *, agent: str) -> Recorded:
        """Say that a task waits for another."""
        check_name(on, "/on")
        key = dependency_key(task_id, on)
        return self.append(
            Draft(type="mutation", agent=agent, kind="task-depends", task_id=task_id, state_key=key)
        )

    def grant_role(self, grantee: str, role: str, *, agent: str) -> Recorded:
        """Let an agent hold a role in this session from now on. Raises NotAuthorized: nobody grants to itself."""
        return self.append(role_draft("role-granted", grantee, role, agent))

    def revoke_role(self, holder: str, role: str, *, agent: str) -> Recorded:
        """Let an agent no longer hold a role in this session, though the store may grant it."""
        return self.append(role_draft("role-revoked", holder, role, agent))

    def request(self, body: str, *, agent: str, to: str, task_id: str | None = None) -> Recorded:
        """Ask another agent for something; `reply_to` waits for what it says."""
        return self.append(
            Draft(type="message", agent=agent, to=(to,), performative="request", body=body, task_id=task_id)
        )

    def propose(self, body: str, *, agent: str, approver: str, task_id: str | None = None) -> Recorded:
        """Propose something that a holder of the role `approver` is to accept."""
        check_name(approver, "/approver")
        to = (ROLE_ADDRESS + approver,)
        return self.append(
            Draft(type="message", agent=agent, performative="propose", to=to, body=body, task_id=task_id)
        )

    def approve(self, proposal: Event | str, body: str = "approved", *, agent: str) -> Recorded:
        """Accept a proposal. Raises NotAuthorized for its own maker, and for who lacks the role it asks for."""
        return self._answer("accept-proposal", proposal, body, agent)

    def reject(self, proposal: Event | str, body: str = "rejected", *, agent: str) -> Recorded:
        """Reject a proposal."""
        return self._answer("reject-proposal", proposal, body, agent)

    def _answer(self, performative: str, proposal: Event | str, body: str, agent: str) -> Recorded:
        to: Sequence[str] = (proposal.agent,) if isinstance(proposal, Event) else ()
        parent_id = identity(proposal)
        return self.append(
            Draft(
                type="message", agent=agent, performative=performative, parent_id=parent_id, to=to, body=body
            )
        )


def role_draft(kind: str, holder: str, role: str, agent: str) -> Draft:
    """The mutation that grants or revokes a role."""
    check_name(holder, "/to/0")
    check_name(role, "/role")
    value: Mapping[str, Any] = {"agent": holder, "role": role}
    key = role_key(holder, role)
    return Draft(type="mutation", agent=agent, kind=kind, to=(holder,), state_key=key, value=value)


def reply(
    reader: Reader, waiter: Waiter, request: str, timeout: float | None, performatives: Collection[str]
) -> Event:
    """Wait for an event of another agent whose parent is `request`, one of `performatives` if any are given.

    Raises UnknownReference, and NoReply after `timeout` seconds or when `waiter` is interrupted.
    """
    asked, after = reader.event(request), 0
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        while found := tracing.replies(reader.database, reader.opener, asked.id, after, reader.tenant):
            for after, event in found:  # noqa: B007 where the next look goes on
                if event.agent != asked.agent and (not performatives or event.performative in performatives):
                    return event
        left = None if deadline is None else deadline - time.monotonic()
        if (left is not None and left <= 0) or not waiter.wait(left):
            raise NoReply(asked.id, timeout or 0)
