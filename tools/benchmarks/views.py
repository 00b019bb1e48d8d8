"""Views: the last events that each shows, beside the plain tail, in a store of two tenants and ten agents.

Of 1,000 events of a session 560 are messages, 150 calls and 150 their results, 80 steps of tasks, 30 decisions with
evidence, 30 proposals and answers; of all of them some are confidential, restricted, about a person, or for a purpose.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.comparing import TAIL_EVENTS, Amounts, Stage
from benchmarks.figures import Recorder, Series
from benchmarks.workload import Workload
from convlog_sqlite import ConversationLog, Draft, Event, Select, Session, View

_TENANTS: Final = ("acme", "globex")
_AGENTS: Final = 10
_TASKS: Final = 200
_READER: Final = "agent-3"
_ROLES: Final = {"agent-0": "orchestrator", "agent-1": "verifier", "agent-2": "auditor"}
_VIEWS: Final[Sequence[tuple[str, str, View | str, str | None]]] = (
    ("everything", _READER, "everything", None),
    ("worker", _READER, "worker", None),
    ("orchestrator", "agent-0", "orchestrator", None),
    ("verifier", "agent-1", "verifier", None),
    ("auditor", "agent-2", "auditor", None),
    ("ceilings", _READER, View(name="low", max_sensitivity="internal", people=False), "audit"),
    ("one agent", _READER, View(name="agent", selects=(Select(agents=("agent-7",)),)), None),
    ("kinds", _READER, View(name="kinds", selects=(Select(kinds=("decision-made", "task-done")),)), None),
)


def measure_views(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """The last 20 events that a view shows, as parsed events, and what listening adds."""
    with tempfile.TemporaryDirectory(prefix="views-", dir=stage.directory) as made:
        recorder.say(f"filling the sessions of two tenants: {stage.events:,} events")
        store = Path(made) / "store"
        ConversationLog.init(store, mirror=False).close()
        for tenant in _TENANTS:
            with ConversationLog.open(store, durability=stage.durability, tenant=tenant) as log:
                _fill(log.session(f"work-{tenant}"), stage.workload, stage.events // len(_TENANTS))
        with ConversationLog.open(store, durability=stage.durability, tenant=_TENANTS[0]) as log:
            session = log.session(f"work-{_TENANTS[0]}")
            _measure_tails(session, stage, amounts, recorder)
            _measure_listening(session, stage, amounts, recorder)


def _fill(session: Session, workload: Workload, events: int) -> None:
    chance = random.Random(workload.seed)
    for agent, role in _ROLES.items():
        session.grant_role(agent, role, agent="ops")
    for number in range(3, _AGENTS):
        session.grant_role(f"agent-{number}", "worker", agent="ops")
    recorded: list[Event] = []
    for start in range(0, events, 500):
        drafts = [_draft(workload, chance, recorded, start + place, place) for place in range(425)]
        recorded = session.append_many(drafts)
        calls = [event for event in recorded if event.type == "tool_call"]
        session.append_many(
            Draft(type="tool_result", agent=call.agent, call_id=call.id, result=workload.message(start).body)
            for call in calls
        )


def _draft(
    workload: Workload, chance: random.Random, before: Sequence[Event], number: int, place: int
) -> Draft:
    message = workload.message(number)
    agent, to = f"agent-{number % _AGENTS}", (f"agent-{chance.randrange(_AGENTS)}",)
    task = f"task-{number % _AGENTS + _AGENTS * chance.randrange(_TASKS // _AGENTS)}"
    kept: dict[str, Any] = {
        "sensitivity": chance.choices((None, "confidential", "restricted"), (90, 7, 3))[0],
        "subjects": chance.choices(((), ("Ada",)), (95, 5))[0],
        "purposes": chance.choices(((), ("audit", "billing")), (97, 3))[0],
    }
    said = {key: item for key, item in kept.items() if item}
    if place < 280:
        return Draft(type="message", agent=agent, to=to, task_id=task, body=message.body, **said)
    if place < 355:
        return Draft(type="tool_call", agent=agent, tool="grep", args={"pattern": message.body}, task_id=task)
    if place < 395:
        kind = chance.choice(("task-assigned", "task-started", "task-done"))
        return Draft(type="mutation", agent="agent-0", kind=kind, task_id=task, to=to)
    if place < 410:
        evidence = [chance.choice(before).id] if before else []
        key = f"key-{chance.randrange(100)}"
        links = {"evidence": evidence} if evidence else None
        return Draft(
            type="mutation", agent=agent, kind="decision-made", state_key=key, value=message.body, links=links
        )
    performative = chance.choice(("propose", "refuse"))
    return Draft(type="message", agent=agent, to=to, performative=performative, body=message.body, **said)


def _measure_tails(session: Session, stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    slices = [session.through(view, reader=reader, purpose=purpose) for _, reader, view, purpose in _VIEWS]
    series = [Series("no view"), *(Series(label) for label, *_ in _VIEWS)]
    calls = [session, *slices]
    for number in range(amounts.rounds):
        recorder.say(f"tail through views, round {number + 1} of {amounts.rounds}")
        for taken, shown in zip(series, calls, strict=True):
            taken.take([partial(_parsed, shown.tail)] * amounts.tails)
    title = f"tail({TAIL_EVENTS}) through a view; {stage.events:,} events, two tenants, ten agents"
    recorder.add(title, series, series[0])
    for (label, *_), shown in zip(_VIEWS, slices, strict=True):
        recorder.numbers[f"events of tail({TAIL_EVENTS}) through {label}"] = len(shown.tail(TAIL_EVENTS))


def _measure_listening(session: Session, stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """Each after an event that is new to the reader, so that each listening is a reading."""
    shown = session.through("worker", reader=_READER)
    worker = session.join(_READER, role="worker")
    whole = session.join("agent-4", view="everything")
    calls = {
        "tail": session.tail,
        "listen, view everything": whole.listen,
        "tail through the view of a worker": shown.tail,
        "listen, a worker": worker.listen,
    }
    series = {label: Series(label) for label in calls}
    append = partial(session.message, stage.workload.message(0).body, agent="agent-0", to=[_READER])
    for number in range(amounts.rounds):
        recorder.say(f"listening, round {number + 1} of {amounts.rounds}")
        for label, call in calls.items():
            both = Series(label)
            both.take([append, partial(_parsed, call)] * (amounts.tails // 2))
            series[label].rounds.append(both.rounds[0][1::2])
    recorder.add("listening, a new event each time", list(series.values()), series["tail"])


def _parsed(tail: Any) -> int:
    events = tail(TAIL_EVENTS)
    for event in events:
        _ = event.seq, event.agent, event.body
    return len(events)
