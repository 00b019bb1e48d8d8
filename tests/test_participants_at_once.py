"""Participants in several processes at once, some of them killed: nothing is stale, and no reading is lost."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from convlog_sqlite import ConversationLog, Draft

SEED = int(os.environ.get("CONVLOG_TEST_SEED", "20261201"))
ROUNDS = int(os.environ.get("CONVLOG_TEST_ROUNDS", "6"))

# An agent that listens and writes until it has written enough; it says on standard output what was acknowledged.
AGENT = """
import random, sys
from convlog_sqlite import ConversationLog, StaleContext
path, agent, role, seed, count = sys.argv[1:]
chance, peers = random.Random(seed), ["a0", "a1", "a2", "a3"]
stale = written = 0
with ConversationLog.open(path, durability="normal") as log:
    session = log.session("run")
    me = session.join(agent, role=role)
    while written < int(count):
        if chance.random() < 0.7:
            me.listen(chance.randint(1, 15))
        elif chance.random() < 0.5:
            me.acknowledge(me.news(chance.randint(1, 15)))
        try:
            event = me.message("x", to=[chance.choice(peers)], task_id=f"t{chance.randrange(3)}")
        except StaleContext as refused:
            assert refused.agent == agent and refused.seq > refused.seen
            stale += 1
            me.listen(5)
            continue
        written += 1
        print(event.id, flush=True)
print("stale", stale)
"""


def start(path, agent, role, seed, count):
    """A process in which an agent works."""
    command = [sys.executable, "-c", textwrap.dedent(AGENT), str(path), agent, role, str(seed), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def assert_all_is_known(log, acknowledged):
    """Every acknowledged event is there, and what each author had in front of it is shown again."""
    session = log.session("run")
    events = {event.id: event for event in session.read(limit=100_000)}
    assert set(acknowledged) <= events.keys()
    for event in events.values():
        if event.seen is not None:
            found = session.seen(event.agent, event)
            assert (found.reading is None) == (event.seen["seq"] == 0), event
            assert found.matches is not False
    assert [finding for finding in log.verify() if finding.rule != "mirror-behind"] == []
    return events


@pytest.mark.parametrize("role", ["orchestrator", "worker"])
def test_nobody_writes_past_what_it_was_to_see(store_path, role):
    """Four processes race: between what an author had read and its event stands nothing of another that it is shown."""
    print("seed", SEED)
    with ConversationLog.open(store_path) as log:
        session = log.session("run")
        session.listening("require", by="ops")
        agents = [start(store_path, f"a{n}", role, SEED + n, 40) for n in range(4)]
        said = [agent.communicate(timeout=120)[0].splitlines() for agent in agents]
        assert [agent.returncode for agent in agents] == [0, 0, 0, 0]
        stale = sum(int(lines[-1].split()[1]) for lines in said)
        events = assert_all_is_known(log, [line for lines in said for line in lines[:-1]])
        assert stale > 0, "they did meet"
        checked = 0
        for event in events.values():
            if event.type == "message":
                shown = session.at(event.seq).through(reader=event.agent, role=role)
                between = shown.between(event.seen["seq"] + 1, event.seq - 1)
                assert {other.agent for other in between} <= {event.agent}
                checked += 1
        assert checked == 160


@pytest.mark.parametrize("number", range(ROUNDS))
def test_no_reading_is_lost_that_an_event_rests_on(store_path, number):
    """Processes are killed while they listen and write, some more come: `seen` answers for every event there is."""
    print("seed", SEED + number)
    chance = random.Random(SEED + number)
    acknowledged = []
    for wave in range(3):
        roles = ("worker", "verifier", "orchestrator", "auditor")
        agents = [
            start(store_path, f"a{n}", roles[n], SEED + 100 * number + 10 * wave + n, 10_000)
            for n in range(3)
        ]
        lines = chance.randint(3, 25)
        for agent in agents:
            acknowledged += [agent.stdout.readline().strip() for _ in range(lines)]
        for agent in agents:
            agent.send_signal(signal.SIGKILL)
        for agent in agents:
            # The last line may be torn: what was told whole was committed. `communicate` would leave out what an
            # earlier readline has taken from the pipe beyond its line.
            rest = agent.stdout.read()
            agent.communicate(timeout=60)
            acknowledged += [line for line in rest[: rest.rfind("\n") + 1].split("\n") if line]
    with ConversationLog.open(store_path) as log:
        events = assert_all_is_known(log, acknowledged)
    assert len(events) > 9


def listen_once(store_path, **keys):
    """The command that gives what is new to `w`, started."""
    command = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path)]
    command += ["tail", "run", "--as", "w", "--view", "everything", "--since-last"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, **keys)


class TestSinceLast:
    @pytest.fixture
    def lines(self, store_path):
        """A session of more than a pipe holds; its lines."""
        with ConversationLog.open(store_path) as log:
            session = log.session("run")
            for number in range(5):
                session.message(f"{number} " + "x" * 8000, agent="user", task_id="t")
            for _ in range(60):
                session.message("x" * 4000, agent="user")
            return list(session.jsonl())

    def test_a_kill_before_it_was_written_repeats_it(self, store_path, lines):
        """Killed with the pipe full, it has moved nothing: the next gives all of it, and the one after that nothing."""
        killed = listen_once(store_path)
        killed.stdout.read(1)
        killed.kill()
        killed.stdout.close()
        assert killed.wait(timeout=60) == -signal.SIGKILL
        assert listen_once(store_path).communicate(timeout=60)[0].splitlines(keepends=True) == lines
        assert listen_once(store_path).communicate(timeout=60)[0] == b""

    def test_a_broken_pipe_repeats_it(self, store_path, lines):
        """A reader that closed early did not get it."""
        broken = listen_once(store_path)
        broken.stdout.read(1)
        broken.stdout.close()
        assert broken.wait(timeout=60) == 0, "the reader had enough"
        assert listen_once(store_path).communicate(timeout=60)[0].splitlines(keepends=True) == lines

    def test_a_full_disk_repeats_it(self, store_path, lines):
        """What could not be written was not had: the status says so."""
        command = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path)]
        command += ["tail", "run", "--as", "w", "--view", "everything", "--since-last"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        with Path("/dev/full").open("wb") as full:
            assert (
                subprocess.run(command, stdout=full, env=environment, timeout=60, check=False).returncode == 4
            )
        assert listen_once(store_path).communicate(timeout=60)[0].splitlines(keepends=True) == lines

    def test_two_at_once_skip_nothing(self, store_path, lines):
        """Both may give the same; what neither gave comes the next time."""
        both = [listen_once(store_path) for _ in range(2)]
        given = {line for one in both for line in one.communicate(timeout=60)[0].splitlines(keepends=True)}
        given |= set(listen_once(store_path).communicate(timeout=60)[0].splitlines(keepends=True))
        assert given == set(lines)

    def test_a_kill_amid_many_pages_skips_nothing(self, store_path, lines):
        """What was given in part comes again from the last page that was given whole; in order, without a gap."""
        drafts = [Draft(type="message", agent="user", body="x" * 500) for _ in range(100)]
        with ConversationLog.open(store_path) as log:
            for _ in range(30):
                log.session("run").append_many(drafts)
            everything = list(log.session("run").jsonl())
        killed = listen_once(store_path)
        got = killed.stdout.read(sum(map(len, everything)) // 2)
        killed.kill()
        killed.stdout.close()
        killed.wait(timeout=60)
        rest = listen_once(store_path).communicate(timeout=60)[0].splitlines(keepends=True)
        whole = got[: got.rfind(b"\n") + 1].splitlines(keepends=True)
        assert everything[: len(whole)] == whole
        assert rest == everything[len(everything) - len(rest) :]
        assert len(everything) - len(rest) in (1000, 2000), "pages were had, and nothing behind them"
