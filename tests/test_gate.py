"""The writer gate: fair between processes, released by the dying, and able to say who holds it."""

import json
import os
import subprocess
import sys
import threading

import pytest

from convlog_sqlite import StoreBusy
from convlog_sqlite.gate import WriterGate

HOLD = """
import sys
from pathlib import Path
from convlog_sqlite.gate import WriterGate
with WriterGate(Path(sys.argv[1])).held(10):
    print("held", flush=True)
    sys.stdin.read()
"""

TIGHT = """
import json, sys, time
from pathlib import Path
from convlog_sqlite.gate import WriterGate
gate = WriterGate(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
turns, longest, end = 0, 0.0, time.monotonic() + 1.5
while time.monotonic() < end:
    asked = time.monotonic()
    with gate.held(10):
        longest = max(longest, time.monotonic() - asked)
        time.sleep(0.0003)
    turns += 1
print(json.dumps([turns, longest]))
"""


def start(program, path):
    """A process that runs `program`, which has said its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    return process


def test_busy_names_the_holder(tmp_path):
    """Who waits in vain is told which process holds the gate, and since when."""
    path = tmp_path / "log.lock"
    with start(HOLD, path) as holder:
        gate = WriterGate(path)
        with pytest.raises(StoreBusy) as raised, gate.held(0.05):
            pass
        assert holder.pid == raised.value.holder
        assert 0 <= raised.value.held_for < 60
        assert str(holder.pid) in str(raised.value)
        gate.close()
        holder.communicate("")


def test_a_dying_holder_lets_go(tmp_path):
    """A gate whose holder is killed can be taken at once, also by one who waited."""
    path = tmp_path / "log.lock"
    with start(HOLD, path) as holder:
        gate = WriterGate(path)
        went = threading.Event()

        def wait():
            with gate.held(30):
                went.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        holder.kill()
        assert went.wait(10)
        waiting.join()
        gate.close()


def test_a_wait_that_was_given_up_blocks_nobody(tmp_path):
    """After a wait ended in vain, the lock that is granted later is handed back."""
    path = tmp_path / "log.lock"
    with start(HOLD, path) as holder:
        impatient, patient = WriterGate(path), WriterGate(path)
        with pytest.raises(StoreBusy), impatient.held(0.05):
            pass
        holder.communicate("")
    for gate in (patient, impatient, patient):
        with gate.held(5):
            assert os.getpid() == gate.holder()[0]
    impatient.close()
    patient.close()


def test_tight_loops_share_the_gate(tmp_path):
    """Six processes that ask without a pause all get their turns: none waits long, none gets far more."""
    path = tmp_path / "log.lock"
    processes = [start(TIGHT, path) for _ in range(6)]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    counted = [json.loads(process.communicate()[0]) for process in processes]
    turns = [turns for turns, _ in counted]
    assert min(turns) * 3 > max(turns), counted
    assert max(longest for _, longest in counted) < 1.0, counted


def test_a_program_appends_where_another_was_stopped_for_good(log):
    """An append waits at the gate no longer than it must, and says who is in the way."""
    with start(HOLD, log.path / "log.lock") as holder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("convlog_sqlite.database.BUSY_SECONDS", 0.05)
            with pytest.raises(StoreBusy) as raised:
                log.session("s").message("x", agent="a")
        assert holder.pid == raised.value.holder
        holder.communicate("")
    assert 2 == log.session("s").message("x", agent="a").seq
