"""The processes: `python -m hammering.workers ROLE STORE …`.

Each prints `ready`, and one line of JSON when it is through. All but those that end by themselves stop when
their standard input is closed. What went wrong is a traceback and an exit status.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import apsw

from convlog_sqlite import ConversationLog, EffectClaimed, EffectInDoubt, Event, import_transcripts
from hammering import steps

_TAIL: Final = 20
_TAIL_PAUSE: Final = 0.005  # seconds: agents look, they do not spin
_WRITE_PAUSE: Final = 0.001
_TOOL_TAKES: Final = 0.004
_PEAK: Final = "VmHWM:"


def _ready() -> None:
    print("ready", flush=True)


def _through(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def _peak() -> int:
    """The most memory that this process had, in bytes.

    Not what getrusage says where there is another way: on Linux that begins with the parent's.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.partition(_PEAK)[2].split()[0]) * 1024


def _until_closed() -> threading.Event:
    """An event that is set when standard input is closed."""
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    return stop


def append(store: str, author: str, seed: str, first: str, count: str, acknowledged: str) -> None:
    """Append about `count` events (0: until killed) from step `first`; write down what was acknowledged, at once."""
    descriptor = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with ConversationLog.open(store) as log:
        _ready()
        sys.stdin.readline()
        began = before = time.perf_counter()
        left, longest = int(count) or sys.maxsize, 0.0
        for number in itertools.count(int(first)):
            for events in steps.take(log, int(seed), author, number, left):
                after = time.perf_counter()
                longest, before = max(longest, after - before), after
                os.write(descriptor, b"".join(map(_acknowledgement, events)))
                left -= len(events)
                before = time.perf_counter()
            if left <= 0:
                break
        _through(longest=longest, seconds=time.perf_counter() - began)


def _acknowledgement(event: Event) -> bytes:
    return f"{event.session} {event.seq} {event.id} {event.correlation_id}\n".encode()


def tail(store: str) -> None:
    """Read the last events over and over; each page counts without gaps and never goes back."""
    stop = _until_closed()
    heads = [0] * steps.SESSIONS
    longest, reads = 0.0, 0
    with ConversationLog.open(store, read_only=True) as log:
        _ready()
        for number in itertools.cycle(range(steps.SESSIONS)):
            if stop.wait(_TAIL_PAUSE):
                break
            before = time.perf_counter()
            page = log.session(steps.session_name(number)).tail(_TAIL)
            longest, reads = max(longest, time.perf_counter() - before), reads + 1
            seqs = [event.seq for event in page]
            last = seqs[-1] if seqs else 0
            if seqs != list(range(last - len(seqs) + 1, last + 1)) or last < heads[number]:
                raise AssertionError(f"{steps.session_name(number)}: {heads[number]}, then {seqs}")
            heads[number] = last
    _through(longest=longest, reads=reads)


def follow(store: str, session: str, out: str) -> None:
    """Write the lines of a session to a file as they come, until its end."""
    with ConversationLog.open(store, read_only=True) as log, Path(out).open("wb") as file:
        _ready()
        for event in log.session(session).follow(0):
            file.write(event.line)
            if event.kind == steps.END:
                break
    _through()


def follow_all(store: str, out: str) -> None:
    """Write the lines of all sessions to a file as they come, until the end of each."""
    ends = 0
    with ConversationLog.open(store) as log, Path(out).open("wb") as file:
        _ready()
        for line in log.follow_lines():
            file.write(line)
            ends += json.loads(line).get("kind") == steps.END
            if ends == steps.SESSIONS:
                break
    _through()


def mirror(store: str) -> None:
    """Keep the mirror."""
    stop = _until_closed()
    with ConversationLog.open(store) as log:
        log.mirror.start()
        _ready()
        stop.wait()
        log.mirror.stop()
        _through(problem=log.mirror.problem)


def bring_in(store: str, transcript: str) -> None:
    """Import a transcript."""
    with ConversationLog.open(store) as log:
        _ready()
        sys.stdin.readline()
        _through(new=import_transcripts(log, "claude-code", [transcript]).new)


def hold(store: str) -> None:
    """Hold a read transaction until told to leave."""
    connection = apsw.Connection(str(Path(store) / "log.db"), flags=apsw.SQLITE_OPEN_READONLY)
    connection.execute("BEGIN")
    count = connection.execute("SELECT count(*) FROM envelope").get
    _ready()
    sys.stdin.readline()
    unchanged = connection.execute("SELECT count(*) FROM envelope").get == count
    connection.execute("COMMIT")
    connection.close()
    _through(unchanged=unchanged)


def write(store: str) -> None:
    """Append at the pace of an agent until told to leave: when each append began, and how long it took."""
    stop = _until_closed()
    took: list[tuple[float, float]] = []
    with ConversationLog.open(store) as log:
        _ready()
        while not stop.wait(_WRITE_PAUSE):
            before = time.monotonic()
            log.session("s").message("x" * 1000, agent="hammer")
            took.append((before, time.monotonic() - before))
    _through(took=took)


def export(store: str) -> None:
    """Export everything to nowhere."""
    _ready()
    with ConversationLog.open(store, read_only=True) as log, Path(os.devnull).open("wb") as nowhere:
        lines = sum(1 for line in log.lines() if nowhere.write(line))
    _through(lines=lines, peak=_peak())


def verify(store: str) -> None:
    """Verify everything."""
    _ready()
    with ConversationLog.open(store, read_only=True) as log:
        found = [str(finding.to_dict()) for finding in log.verify()]
    _through(found=found, peak=_peak())


def act(store: str, name: str, ledger: str, count: str, seed: str) -> None:
    """Make `count` effects happen, in an order of its own: those that nobody else is about or has left in doubt."""
    chance = random.Random(int(seed))
    outside = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def charge(key: str) -> dict[str, str]:
        time.sleep(chance.uniform(0, _TOOL_TAKES))
        os.write(outside, f"{key}\n".encode())
        time.sleep(chance.uniform(0, _TOOL_TAKES))
        return {"charged": key}

    left = 0
    with ConversationLog.open(store) as log:
        _ready()
        sys.stdin.readline()
        session = log.session("effects")
        for number in chance.sample(range(int(count)), int(count)):
            key = f"charge-{number}"
            try:
                session.once(name, "charge", {"key": key}, idempotency_key=key, run=charge)
            except (EffectClaimed, EffectInDoubt):
                left += 1
    _through(left=left)


ROLES: Final[dict[str, Callable[..., None]]] = {
    role.__name__: role
    for role in (append, tail, follow, follow_all, mirror, bring_in, hold, write, export, verify, act)
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
