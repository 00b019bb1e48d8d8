"""Workers that make effects happen, killed at random moments: each happens once outside, or is listed as in doubt.

The outside is a file to which each call adds a line. It knows no keys and forgives nothing: a second line is a
second charge.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

from convlog_sqlite import ConversationLog, Effect
from hammering.findings import Findings, Run
from hammering.processes import Worker, at_the_end_kill

SESSION: Final = "effects"
_WORKERS: Final = 8
_KILL_WITHIN: Final = 1.2  # seconds from the start of the workers


def charged(ledger: Path) -> Counter[str]:
    """How often each key was charged."""
    with suppress(FileNotFoundError):
        return Counter(ledger.read_text(encoding="ascii").split())
    return Counter()


def look_outside(ledger: Path, effect: Effect) -> str:
    """What became of an effect whose worker is dead: whether its key was charged."""
    return "committed" if charged(ledger)[effect.proposed.args["key"]] else "not_happened"


def run(how: Run, findings: Findings) -> None:
    """Kill workers, start them again, and compare the log with the outside; then settle the rest and finish."""
    chance = random.Random(how.seed)
    store, ledger = how.directory / "store", how.directory / "ledger"
    effects, rounds = (24, 3) if how.short else (200, 30)
    ConversationLog.init(store).close()
    kills = 0
    for number in range(rounds):
        kills += _kill_some(how, findings, chance, store, ledger, effects)
        findings.say(f"{number + 1} of {rounds} rounds, {kills} kills")
    for worker in _workers(how, findings, store, ledger, effects):
        worker.result()
    with ConversationLog.open(store) as log:
        in_doubt = _judge(log, ledger, findings)
        findings.figure("workers", f"{_WORKERS}, {kills} kill -9")
        findings.figure("effects", f"{effects}, {in_doubt} left in doubt by a kill, none twice")
        session = log.session(SESSION)
        for name in range(_WORKERS):
            session.recover(f"w{name}", lambda effect: look_outside(ledger, effect))
    (last,) = _workers(how, findings, store, ledger, effects, count=1)
    last.result()
    with ConversationLog.open(store) as log:
        findings.expect(_judge(log, ledger, findings) == 0, "something is in doubt after it was settled")
        committed = len(log.session(SESSION).effects(state="committed"))
        findings.expect(committed == effects, f"{committed} of {effects} are committed at the end")
        for finding in log.verify():
            findings.expect(finding.severity != "fault", f"verify: {finding.to_dict()}")
    findings.figure("at the end", f"{committed} committed, each charged once")


def _workers(
    how: Run, findings: Findings, store: Path, ledger: Path, effects: int, count: int = _WORKERS
) -> list[Worker]:
    workers = [
        Worker(findings, how.directory, "act", store, f"w{name}", ledger, effects, how.seed + name)
        for name in range(count)
    ]
    for worker in workers:
        worker.ready()
    for worker in workers:
        worker.go()
    return workers


def _kill_some(
    how: Run, findings: Findings, chance: random.Random, store: Path, ledger: Path, effects: int
) -> int:
    with at_the_end_kill(_workers(how, findings, store, ledger, effects)) as workers:
        hit = 0
        for worker in chance.sample(workers, 4):
            time.sleep(chance.uniform(0, _KILL_WITHIN / 4))
            hit += worker.kill()
        return hit + sum(worker.kill() for worker in workers if worker.running)


def _judge(log: ConversationLog, ledger: Path, findings: Findings) -> int:
    """Hold what the log says to what happened outside; how many effects are in doubt."""
    outside = charged(ledger)
    findings.expect(max(outside.values(), default=1) == 1, f"charged twice: {outside.most_common(3)}")
    recovery = log.session(SESSION).recover("judge")
    listed = {effect.id for effect in (*recovery.in_doubt, *recovery.held)}
    committed: set[str] = set()
    for effect in log.session(SESSION).effects(limit=100_000):
        key = effect.proposed.args["key"]
        if effect.state == "committed":
            findings.expect(key not in committed, f"{key} is committed twice")
            findings.expect(outside[key] == 1, f"{key} is committed, and was charged {outside[key]} times")
            committed.add(key)
        elif effect.state == "attempted":
            findings.expect(effect.id in listed, f"{key} was attempted, and is not listed")
        else:
            findings.expect(effect.state == "compensated", f"{key} is {effect.state} at the end")
    in_doubt = {effect.proposed.args["key"] for effect in (*recovery.in_doubt, *recovery.held)}
    lost = set(outside) - committed - in_doubt
    findings.expect(not lost, f"charged, and the log does not know: {sorted(lost)[:3]}")
    return len(listed)
