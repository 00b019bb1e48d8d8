"""kill -9 at random moments: what was acknowledged is there, once, and the mirror is right after a restart."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from convlog_sqlite import ConversationLog, import_transcripts
from hammering import steps
from hammering.findings import Findings, Run
from hammering.judging import (
    acknowledged,
    judge_events,
    judge_store,
    last_step,
    mirror_is_a_beginning,
    same_as_mirror,
)
from hammering.processes import Worker, at_the_end_kill

_ON_ONE_STORE: Final = 20  # kills, then a new store: verify reads all of it each time
_TRANSCRIPT_LINES: Final = 3000
_REPAIRED_WITHIN: Final = 20.0
_IN_THE_LAST_RUN: Final = 40


def run(how: Run, findings: Findings) -> None:
    """Kill appenders (two at work at a time), importers, exporters."""
    chance = random.Random(how.seed)
    for name, kills, part in (
        ("appender", 8 if how.short else 80, _appenders),
        ("importer", 3 if how.short else 60, _importers),
        ("exporter", 4 if how.short else 60, _exporters),
    ):
        done = hit = 0
        while done < kills:
            directory = how.directory / f"{name}-{done}"
            directory.mkdir()
            count = min(kills - done, _ON_ONE_STORE)
            ConversationLog.init(directory / "store").close()
            hit += part(how, findings, directory, chance, count)
            done += count
            findings.say(f"{name}: {done} of {kills}")
        findings.figure(f"kill -9 of the {name}", f"{done}, {hit} while it was at work")


def _faultless(log: ConversationLog, findings: Findings) -> None:
    for finding in log.verify():
        findings.expect(finding.severity != "fault", f"verify: {finding.to_dict()}")


def _appenders(how: Run, findings: Findings, directory: Path, chance: random.Random, kills: int) -> int:
    """Two at a time; each goes on with the step that was in doubt."""
    store, hit = directory / "store", 0
    files = {author: directory / f"acknowledged-{author}" for author in ("a", "b")}

    def start(author: str, count: int) -> Worker:
        first = last_step(files[author])
        return Worker(findings, directory, "append", store, author, how.seed, first, count, files[author])

    with ConversationLog.open(store) as log:
        for _ in range(kills // 2):
            with at_the_end_kill([start(author, 0) for author in files]) as workers:
                for worker in workers:
                    worker.ready()
                for worker in workers:
                    worker.go()
                for worker in chance.sample(workers, 2):
                    time.sleep(chance.uniform(0, 0.15))
                    hit += worker.kill()
            _faultless(log, findings)
        for author in files:
            worker = start(author, _IN_THE_LAST_RUN)
            worker.ready()
            worker.go()
            worker.result()
        judge_events(log, acknowledged(files.values(), findings), findings)
        for number in range(steps.SESSIONS):
            log.session(steps.session_name(number)).message("the next", agent="hammer")
        judge_store(log, findings)
    return hit


def _importers(how: Run, findings: Findings, directory: Path, chance: random.Random, kills: int) -> int:
    """The next import finishes what was begun, and nothing is there twice."""
    del how
    store, hit = directory / "store", 0
    with ConversationLog.open(store) as log:
        for number in range(kills):
            transcript = directory / f"0b1f3c5e-0000-4000-8000-{number:012x}.jsonl"
            transcript.write_text("".join(_transcript(transcript.stem)), encoding="utf-8")
            worker = Worker(findings, directory, "bring_in", store, transcript)
            worker.ready()
            worker.go()
            time.sleep(chance.uniform(0, 0.6))
            hit += worker.kill()
            _faultless(log, findings)
            before = max(0, log.session(transcript.stem).head - 1)  # without its opening
            report = import_transcripts(log, "claude-code", [transcript])
            findings.expect(report.already == before, f"{report.already} known, where {before} were there")
            findings.expect(report.new + before == _TRANSCRIPT_LINES, f"{report.new} new behind {before}")
            known = Counter(
                (event.source or {}).get("native_id")
                for event in log.session(transcript.stem).follow(1, timeout=0)
            )
            findings.expect(max(known.values()) == 1, f"imported twice: {known.most_common(1)}")
            findings.expect(len(known) == _TRANSCRIPT_LINES, f"{len(known)} of {_TRANSCRIPT_LINES} are there")
        log.mirror.update()
        judge_store(log, findings)
    return hit


def _transcript(session: str) -> Iterator[str]:
    parent = None
    for number in range(_TRANSCRIPT_LINES):
        role = "assistant" if number % 2 else "user"
        uuid = f"{session[-8:]}-0000-4000-8000-{number:012x}"
        minute, second = divmod(number, 60)
        record = {
            "type": role,
            "uuid": uuid,
            "parentUuid": parent,
            "sessionId": session,
            "timestamp": f"2026-01-01T00:{minute % 60:02d}:{second:02d}Z",
            "message": {"role": role, "content": f"message {number}"},
        }
        parent = uuid
        yield json.dumps(record) + "\n"


def _exporters(how: Run, findings: Findings, directory: Path, chance: random.Random, kills: int) -> int:
    """Whole lines are never wrong, and the next exporter brings the files up to date."""
    del how
    store, hit, number = directory / "store", 0, 0
    with ConversationLog.open(store) as log:
        sessions = [log.session(steps.session_name(at)) for at in range(steps.SESSIONS)]
        for session in sessions:
            session.message("first", agent="hammer")
        for _ in range(kills):
            worker = Worker(findings, directory, "mirror", store)
            with at_the_end_kill([worker]):
                worker.ready()
                repaired = _within(_REPAIRED_WITHIN, lambda: all(same_as_mirror(log, s.id) for s in sessions))
                findings.expect(repaired, "a new exporter did not repair the mirror")
                until = time.monotonic() + chance.uniform(0, 0.15)
                while time.monotonic() < until:
                    number += 1
                    body = f"{number} " * chance.choice((1, 100, 1000))
                    chance.choice(sessions).message(body, agent="hammer")
                hit += worker.kill()
            for session in sessions:
                findings.expect(mirror_is_a_beginning(log, session.id), f"{session.id}: a wrong line")
        log.mirror.update()
        judge_store(log, findings)
    return hit


def _within(seconds: float, true: Callable[[], bool]) -> bool:
    """Whether `true` becomes so."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
