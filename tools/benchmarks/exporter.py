"""The other process of the mirror's lag: keeps a store's mirror in step until its standard input ends.

python exporter.py STORE
"""

from __future__ import annotations

import sys
import threading

from convlog_sqlite import ConversationLog


def main(store: str) -> None:
    """Follow, and stop when whoever started this closes the pipe or dies."""
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    with ConversationLog.open(store, create=False) as log:
        log.mirror.follow(stop=stop)


if __name__ == "__main__":
    main(sys.argv[1])
