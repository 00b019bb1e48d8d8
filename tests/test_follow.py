"""Following: events of any process arrive in order, soon, none missed, and a follower holds nothing in between."""

import json
import subprocess
import sys
import textwrap
import threading
import time
from itertools import islice
from pathlib import Path

import apsw
import pytest

from convlog_sqlite import ConversationLog, Draft, StoreClosed
from convlog_sqlite import follow as following
from convlog_sqlite.follow import Waiter

SAFELY = 30  # seconds: a limit for what must come, not a pause


def start(program, *arguments):
    """A program in a process of its own, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


WRITER = """
import sys, time
from convlog_sqlite import ConversationLog
with ConversationLog.open(sys.argv[1]) as log:
    session = log.session("s")
    for number in range(int(sys.argv[2])):
        time.sleep(0.005)
        session.message(f"{time.time()}", agent=sys.argv[3])
"""


@pytest.fixture
def no_mirror(store_path):
    """A log without a mirror, so that only following is measured."""
    with ConversationLog.init(store_path, mirror=False) as opened:
        yield opened


class TestAcrossProcesses:
    def test_every_event_arrives_in_order_and_soon(self, no_mirror):
        """Two processes write 150 events each: the follower gets each once, in order, within a fraction of a second."""
        session = no_mirror.session("s")
        session.message("first", agent="me")
        writers = [start(WRITER, no_mirror.path, 150, agent) for agent in ("a", "b")]
        late, seen = [], []
        for event in session.follow(timeout=SAFELY):
            late.append(time.time() - float(event.body))
            seen.append(event.seq)
            if len(seen) == 300:
                break
        assert [writer.wait(SAFELY) for writer in writers] == [0, 0]
        for writer in writers:
            writer.communicate()
        assert seen == list(range(3, 303))
        late.sort()
        assert late[len(late) // 2] < 0.1
        assert late[int(len(late) * 0.99)] < 0.75, (
            "far above what is measured, below an event that waits for the next"
        )

    def test_a_lone_event_is_not_one_wake_up_late(self, no_mirror):
        """A single commit after a pause arrives by itself, not with the commit after it."""
        writer = start(
            """
            import sys, time
            from convlog_sqlite import ConversationLog
            with ConversationLog.open(sys.argv[1]) as log:
                for line in sys.stdin:
                    log.session("s").message(f"{time.time()}", agent="a")
            """,
            no_mirror.path,
        )
        arrived = no_mirror.session("s").follow(0, timeout=SAFELY, type="message")
        late = []
        for _ in range(8):
            writer.stdin.write("one\n")
            writer.stdin.flush()
            late.append(time.time() - float(next(arrived).body))
            time.sleep(0.1)  # the follower goes to sleep: its pauses grow while nothing happens
        writer.communicate()
        arrived.close()
        assert sorted(late)[4] < 0.2
        assert max(late) < 1.5

    def test_a_follower_that_starts_late_misses_nothing(self, no_mirror):
        """Between what was there and what comes next no event falls through."""
        writer = start(WRITER, no_mirror.path, 120, "a")
        session = no_mirror.session("s")
        for _ in range(20):
            after = session.head
            follower = session.follow(after, timeout=1)
            event = next(follower, None)
            if event is None:
                break
            assert event.seq == after + 1
            follower.close()
        assert writer.wait(SAFELY) == 0
        writer.communicate()
        seqs = [event.seq for event in session.follow(0, timeout=0)]
        assert seqs == list(range(1, 122))

    def test_without_inotify_it_polls(self, no_mirror, monkeypatch):
        """Where the system cannot tell of changes, all the same events arrive."""
        monkeypatch.setattr(following, "_inotify", lambda _directory: None)
        writer = start(WRITER, no_mirror.path, 50, "a")
        seen = [event.seq for event in islice(no_mirror.session("s").follow(0, timeout=SAFELY), 51)]
        writer.communicate()
        assert seen == list(range(1, 52))


class TestEnd:
    @pytest.mark.parametrize("timeout", [0, 0.05, 0.3])
    def test_it_ends_when_nothing_came(self, log, timeout):
        """After `timeout` seconds without an event the iteration is over, not much before and not much later."""
        log.session("s").message("x", agent="a")
        begun = time.monotonic()
        assert list(log.session("s").follow(timeout=timeout)) == []
        took = time.monotonic() - begun
        assert timeout <= took < timeout + 2

    def test_commits_elsewhere_do_not_hide_the_end(self, log):
        """Other sessions may be as busy as they like: a follower of a quiet one comes to its end."""
        stop = threading.Event()

        def chatter():
            while not stop.is_set():
                log.session("other").message("x", agent="a")

        thread = threading.Thread(target=chatter)
        thread.start()
        try:
            begun = time.monotonic()
            assert list(log.session("s").follow(0, timeout=0.2)) == []
            assert time.monotonic() - begun < 5
        finally:
            stop.set()
            thread.join()

    def test_a_waiter_is_interrupted_from_another_thread(self, log):
        """`interrupt` ends a wait at once, and every wait after it."""
        waiter = log.waiter()
        assert waiter.wait(), "the first call says that there may be something"
        timer = threading.Timer(0.05, waiter.interrupt)
        timer.start()
        begun = time.monotonic()
        assert not waiter.wait(SAFELY)
        assert time.monotonic() - begun < SAFELY / 2
        assert not waiter.wait(SAFELY)
        timer.join()
        waiter.close()
        waiter.close()

    def test_closing_the_log_ends_a_follower(self, store_path):
        """A follower that goes on after close says StoreClosed."""
        with ConversationLog.open(store_path) as log:
            log.session("s").message("x", agent="a")
            follower = log.session("s").follow(0)
            next(follower)
        with pytest.raises(StoreClosed):
            list(follower)

    def test_followers_give_their_descriptors_back(self, log):
        """A thousand followers that came and went leave no open file."""
        session = log.session("s")
        session.message("x", agent="a")

        def once():
            follower = session.follow(0)
            next(follower)
            next(follower)
            follower.close()
            assert list(session.follow(timeout=0)) == []

        once()
        open_files = Path("/proc/self/fd")
        if not open_files.is_dir():
            pytest.skip("this system does not say which files are open")
        before = len(list(open_files.iterdir()))
        for _ in range(50):
            once()
        assert len(list(open_files.iterdir())) == before


class TestHoldsNothing:
    def test_no_snapshot_while_the_caller_works(self, log):
        """Between two events, and between two pages, lines or blocks, the WAL can be emptied completely."""
        session = log.session("s")
        session.append_many([Draft(type="message", agent="a", body="x" * 500) for _ in range(1200)])
        other = apsw.Connection(str(log.path / "log.db"), flags=apsw.SQLITE_OPEN_READWRITE)
        walks = [session.follow(0, timeout=0), session.jsonl(), log.lines(), log.reader.blocks("s")]
        for walk in walks:
            for number, _ in enumerate(walk):
                if number % 300 == 0:
                    other.execute(
                        "UPDATE open_call SET seq = seq"
                    )  # so that there is something to write back
                    frames, moved = other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                    assert (frames, moved) == (0, 0), "TRUNCATE raises BusyError when a reader is in the way"
        other.close()

    def test_an_idle_waiter_holds_no_snapshot(self, log):
        """While a follower sleeps, the WAL can be emptied too."""
        waiter = log.waiter()
        log.session("s").message("x", agent="a")
        assert waiter.wait(SAFELY)
        thread = threading.Thread(target=waiter.wait)
        thread.start()
        other = apsw.Connection(str(log.path / "log.db"), flags=apsw.SQLITE_OPEN_READWRITE)
        assert other.pragma("journal_mode") == "wal"
        assert other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0)
        other.close()
        waiter.interrupt()
        thread.join(SAFELY)
        assert not thread.is_alive()
        waiter.close()

    def test_filters_miss_nothing(self, log):
        """A filtered follower sees each match once, in order, also when names are used for the first time."""
        session = log.session("s")
        follower = session.follow(0, timeout=SAFELY, to="new")
        for number in range(20):
            session.message(f"{number}", agent="a", to=["new"] if number % 3 == 0 else ["old"])
        assert [next(follower).body for _ in range(7)] == [f"{number}" for number in range(0, 20, 3)]
        follower.close()


class TestEphemeral:
    def test_a_log_in_memory_can_be_followed(self):
        """It is the same call, and it ends the same way."""
        with ConversationLog.ephemeral() as log:
            session = log.session("s")
            session.message("x", agent="a")
            assert [event.seq for event in session.follow(0, timeout=0.05)] == [1, 2]

    def test_another_thread_appends(self):
        """A follower in memory sees what another thread appends."""
        with ConversationLog.ephemeral() as log:
            session = log.session("s")
            thread = threading.Timer(0.05, session.message, args=("x",), kwargs={"agent": "a"})
            thread.start()
            assert [event.seq for event in islice(session.follow(0, timeout=SAFELY), 2)] == [1, 2]
            thread.join()


def test_a_clock_that_steps_back_hides_nothing(store_path, clock):
    """Order is by seq: an event recorded a day earlier by the clock comes after, and a follower sees it."""
    with ConversationLog.open(store_path, clock=clock) as log:
        session = log.session("s")
        session.message("first", agent="a")
        follower = session.follow(1, timeout=SAFELY)
        assert next(follower).body == "first"
        clock.advance(-86_400)
        second = session.message("second", agent="a")
        assert next(follower).body == "second"
        follower.close()
        assert [event.body for event in session.tail(2)] == ["first", "second"]
        assert second.ts < session.tail(2)[0].ts
        assert [json.loads(line)["seq"] for line in session.jsonl()] == [1, 2, 3]
        assert log.mirror.path("s").read_bytes() == b"".join(log.lines("s"))
        assert list(log.verify()) == []
        summary = next(one for one in log.sessions() if one.id == "s")
        assert summary.events == 3


def test_a_waiter_without_a_directory_waits_shortly(log):
    """In memory there is nothing to be woken by: it looks again after some milliseconds."""
    waiter = Waiter(log._store.database, None)
    assert waiter.wait(1)
    assert not waiter.wait(0)
    waiter.close()
