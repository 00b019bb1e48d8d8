"""Disks that fill up, writes that fail, syncs that fail: at every call of an append."""

import json
import subprocess
import sys

import pytest

# Runs in a process of its own, because a VFS is registered for the whole process.
PROGRAM = r"""
import json, os, sys
from pathlib import Path
import apsw
from convlog_sqlite import ConversationLog, StoreError, StoreFull, StoreIOError

class File(apsw.VFSFile):
    def __init__(self, name, flags, vfs):
        self.vfs = vfs
        self.name = os.path.basename(name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary")
        super().__init__("unix", name, flags)
    def xWrite(self, data, offset):
        self.vfs.meet("write", self.name)
        return super().xWrite(data, offset)
    def xSync(self, flags):
        self.vfs.meet("sync", self.name)
        return super().xSync(flags)
    def xTruncate(self, size):
        self.vfs.meet("truncate", self.name)
        return super().xTruncate(size)

class Faulty(apsw.VFS):
    operation, suffix, left, code = None, "", 0, 0
    met = 0
    def __init__(self):
        super().__init__("faulty", "unix")
    def xOpen(self, name, flags):
        return File(name, flags, self)
    def meet(self, operation, name):
        if operation == self.operation and name.endswith(self.suffix):
            self.left -= 1
            if self.left == 0:
                self.met += 1
                raise apsw.exception_for(self.code)

vfs = Faulty()
apsw.set_default_vfs("faulty")
place, operation, suffix, code, calls = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
seen = []
for number in range(1, calls + 1):
    store = place / f"{operation}-{number}"
    with ConversationLog.open(store) as log:
        session = log.session("s")
        for count in range(3):
            session.message(f"before {count}", agent="a")
        vfs.operation, vfs.suffix, vfs.left, vfs.code, vfs.met = operation, suffix, number, code, 0
        try:
            acknowledged, error = session.message("x" * 20000, agent="a", idempotency_key="k").id, None
        except StoreError as refused:
            acknowledged, error = None, type(refused).__name__
        vfs.operation = None
        met = vfs.met
        went_on = session.message("after", agent="a").seq
    with ConversationLog.open(store) as log:
        session = log.session("s")
        found = [event for event in session.read() if event.agent == "a" and event.truncated]
        retried = session.message("x" * 20000, agent="a", idempotency_key="k")
        again = [event for event in session.read() if event.truncated]
        faults = [finding.to_dict() for finding in log.verify() if finding.severity == "fault"]
        mirror = (store / "sessions/s/conversation.jsonl").read_bytes() == b"".join(log.lines("s"))
    seen.append({"met": met, "acknowledged": acknowledged, "error": error, "found": [event.id for event in found],
                 "retried": retried.id, "again": [event.id for event in again], "faults": faults, "mirror": mirror})
print(json.dumps(seen))
"""
WAL, SYNCS = "log.db-wal", "log.db-wal"
FULL, IOERR_WRITE, IOERR_FSYNC = 13, 778, 1034


def inject(place, operation, suffix, code, calls):
    """What became of one append for each call at which the fault was injected."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place), operation, suffix, str(code), str(calls)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("operation", "code", "error"),
    [("write", FULL, "StoreFull"), ("write", IOERR_WRITE, "StoreIOError")],
    ids=["full", "write error"],
)
def test_a_write_that_fails_leaves_nothing_behind(tmp_path, operation, code, error):
    """At whichever write the disk is full or fails, the append is acknowledged and there, or an error and absent."""
    outcomes = inject(tmp_path, operation, WAL, code, 24)
    assert any(outcome["met"] for outcome in outcomes), "the fault was never met: the test proves nothing"
    for outcome in outcomes:
        if outcome["acknowledged"] is None:
            assert error == outcome["error"]
            assert outcome["found"] == []
        else:
            assert [outcome["acknowledged"]] == outcome["found"]
        assert [outcome["retried"]] == outcome["again"]
        assert outcome["faults"] == []
        assert outcome["mirror"]


def test_a_sync_that_fails_is_settled_by_the_key(tmp_path):
    """After a failed sync nobody knows; the same idempotency key gives exactly one event."""
    outcomes = inject(tmp_path, "sync", SYNCS, IOERR_FSYNC, 4)
    assert any(outcome["error"] == "StoreIOError" for outcome in outcomes)
    for outcome in outcomes:
        assert len(outcome["found"]) <= 1
        assert [outcome["retried"]] == outcome["again"]
        assert outcome["faults"] == []
        assert outcome["mirror"]
