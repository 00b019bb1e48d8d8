"""States: folding them, starting from a snapshot, and what keeping one up to date costs an append."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.comparing import Amounts, Stage
from benchmarks.figures import Recorder, Series
from benchmarks.workload import Workload
from convlog_sqlite import ConversationLog, Draft, Session

_SESSION: Final = "work"
_KEYS: Final = 100
_TASKS: Final = 500
_FOLDED: Final = ("state", "tasks", "calls", "open", "agents")
_KEPT: Final = ("open", "calls", "agents")


def measure_states(stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """A session of messages, calls, decisions and steps of tasks, as long as the large stores."""
    with tempfile.TemporaryDirectory(prefix="states-", dir=stage.directory) as made:
        recorder.say(f"filling a session of work: {stage.events:,} events")
        store = Path(made) / "store"
        ConversationLog.init(store, mirror=False).close()
        with ConversationLog.open(store, durability=stage.durability) as log:
            _fill(log.session(_SESSION), stage.workload, stage.events)
            recorder.say("folding from the first event on")
            _measure_folds(log.session(_SESSION), amounts, recorder)
        _measure_snapshots(store, amounts, recorder)
        with ConversationLog.open(store, durability=stage.durability) as log:
            _measure_keeping(log.session(_SESSION), stage, amounts, recorder)


def _fill(session: Session, workload: Workload, events: int) -> None:
    """Of 1,000 events 500 are messages, 200 calls and 200 their results, 60 decisions, 40 steps of tasks."""
    chance = random.Random(workload.seed)
    for start in range(0, events, 1000):
        drafts = [_draft(workload, chance, start + place, place) for place in range(800)]
        recorded = session.append_many(drafts)
        calls = [event for event in recorded if event.type == "tool_call"]
        session.append_many(
            [
                Draft(
                    type="tool_result",
                    agent=call.agent,
                    call_id=call.id,
                    result=workload.message(start + place).body,
                )
                for place, call in enumerate(calls)
            ]
        )


def _draft(workload: Workload, chance: random.Random, number: int, place: int) -> Draft:
    message = workload.message(number)
    if place < 500:
        return Draft(
            type="message", agent=message.agent, to=(message.to,), thread_id=message.thread, body=message.body
        )
    if place < 700:
        return Draft(type="tool_call", agent=message.agent, tool="grep", args={"pattern": message.body})
    if place < 760:
        key = f"key-{chance.randrange(_KEYS)}"
        return Draft(
            type="mutation", agent=message.agent, kind="state-set", state_key=key, value=message.body
        )
    kind = chance.choice(("task-created", "task-started", "task-done"))
    task = f"task-{chance.randrange(_TASKS)}"
    return Draft(type="mutation", agent=message.agent, kind=kind, task_id=task)


def _measure_folds(session: Session, amounts: Amounts, recorder: Recorder) -> None:
    series = [Series(name, per=session.head) for name in _FOLDED]
    for _ in range(amounts.exports):
        for taken, name in zip(series, _FOLDED, strict=True):
            taken.take([partial(session.state, name, rebuild=True)])
    recorder.add(f"rebuild of a projection, an event of {session.head:,}", series, rated=True)


def _measure_snapshots(store: Path, amounts: Amounts, recorder: Recorder) -> None:
    """The first call of a handle that was just opened, beside the same handle's next."""
    first = [Series(f"{name}, first call of a handle") for name in _FOLDED]
    again = [Series(f"{name}, next call") for name in _FOLDED]
    for _ in range(amounts.rounds):
        for cold, warm, name in zip(first, again, _FOLDED, strict=True):
            with ConversationLog.open(store, read_only=True) as log:
                session = log.session(_SESSION)
                head = session.head  # what opening left to be done
                cold.take([partial(session.state, name)])
                warm.take([partial(session.state, name)] * 5)
    recorder.add(f"state at {head:,} events, from a snapshot", [*first, *again])


def _measure_keeping(session: Session, stage: Stage, amounts: Amounts, recorder: Recorder) -> None:
    """A durable append alone, and with a state asked for behind each, or behind every tenth.

    An append itself folds nothing: what a projection costs is paid by who asks for it.
    """
    ways: Sequence[tuple[str | None, int]] = [
        (None, 1),
        *((name, every) for name in _KEPT for every in (1, 10)),
    ]
    series = [Series(_way(name, every), per=every) for name, every in ways]
    ready = stage.events
    for number in range(amounts.rounds):
        recorder.say(f"append and state, round {number + 1} of {amounts.rounds}")
        pairs = list(zip(series, ways, strict=True))
        for taken, (name, every) in [*pairs[number % len(pairs) :], *pairs[: number % len(pairs)]]:
            drafts = [_message(stage.workload, ready + place) for place in range(amounts.appends)]
            ready += amounts.appends
            if name is not None:
                session.state(name)  # what the others appended
            groups = [drafts[start : start + every] for start in range(0, len(drafts), every)]
            taken.take([partial(_append_and_ask, session, group, name) for group in groups])
    recorder.add("append, a commit each, and a state", series, series[0])


def _way(name: str | None, every: int) -> str:
    if name is None:
        return "append"
    return f"append, then {name}" if every == 1 else f"append, then {name} every {every}th"


def _message(workload: Workload, number: int) -> Draft:
    message = workload.message(number)
    return Draft(
        type="message", agent=message.agent, to=(message.to,), thread_id=message.thread, body=message.body
    )


def _append_and_ask(session: Session, drafts: Sequence[Draft], name: str | None) -> Any:
    for draft in drafts:
        session.append(draft)
    return None if name is None else session.state(name)
