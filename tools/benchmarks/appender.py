"""One of the processes that append at once: `python -m benchmarks.appender STORE DURABILITY SEED PAYLOAD_BYTES`.

It says `ready` once the store is open. Each round it reads the number of its first message and how many there
are, makes them ready and says `ready`; then a line that lets it begin, and says how many seconds its longest
append took. It ends with its standard input.
"""

from __future__ import annotations

import sys
import time

from benchmarks.contender import SESSION
from benchmarks.convlog import draft
from benchmarks.workload import Workload
from convlog_sqlite import ConversationLog


def main(store: str, durability: str, seed: str, payload_bytes: str) -> None:
    """Append what standard input asks for."""
    workload = Workload(int(seed), int(payload_bytes))
    with ConversationLog.open(store, create=False, durability=durability) as log:
        session = log.session(SESSION)
        print("ready", flush=True)
        for asked in sys.stdin:
            start, count = map(int, asked.split())
            drafts = [draft(message) for message in workload.batch(start, count)]
            print("ready", flush=True)
            sys.stdin.readline()
            longest = 0.0
            for one in drafts:
                started = time.perf_counter()
                session.append(one)
                longest = max(longest, time.perf_counter() - started)
            print(longest, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
