"""The async twins: the same verbs, shielded commits, and an event loop that is never held up."""

import asyncio
import gc
import inspect
import itertools
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from convlog_sqlite import (
    AsyncConversationLog,
    AsyncListener,
    AsyncParticipant,
    AsyncSession,
    ConversationLog,
    Draft,
    FilesLeft,
    InvalidEvent,
    Listener,
    PairingError,
    Participant,
    RetentionPolicy,
    Session,
    SessionRemoved,
    StoreClosed,
)
from convlog_sqlite.acting import Acting
from convlog_sqlite.joining import Joining
from convlog_sqlite.locks import FileLock

DESCRIPTORS = Path("/proc/self/fd")
STORM = int(os.environ.get("CONVLOG_TEST_STORM", "1000"))


def run(store_path, body):
    """Run `body(log)` with an open async log."""

    async def main():
        async with AsyncConversationLog.open(store_path) as log:
            return await body(log)

    return asyncio.run(main())


# What stays with the sync log: `sync` reaches it. Each has a reason.
WITHOUT_TWIN = {
    ConversationLog: {
        "init": "making a store is not done in a loop; open makes one too",
        "lines": "AsyncSession.jsonl",
        "follow_lines": "AsyncSession.follow",
        "exporter": "log.sync",
        "mirror": "the thread that it starts is the same",
        "waiter": "machinery",
        "append_together": "machinery",
        "append_foreign": "importing is not done in a loop",
        "foreign_id": "importing is not done in a loop",
    },
    Session: dict.fromkeys(("bound", "follow_pages", "reply_by", "approval_by"), "machinery"),
    Joining: dict.fromkeys(("tail", "read", "reply_by", "approval_by"), "abstract: those of Session"),
    Listener: dict.fromkeys(("hear", "wrote"), "machinery"),
    Participant: dict.fromkeys(("complete", "say_joined"), "machinery"),
    Acting: dict.fromkeys(
        ("begin_effect", "receipt", "receipt_of", "commit_effect", "compensate"), "machinery"
    ),
}


@pytest.mark.parametrize(
    ("plain", "twin"),
    [
        (ConversationLog, AsyncConversationLog),
        (Session, AsyncSession),
        (Acting, AsyncSession),
        (Joining, AsyncSession),
        (Listener, AsyncListener),
        (Participant, AsyncParticipant),
    ],
)
def test_every_verb_has_a_twin(plain, twin):
    """What a sync log and session can do, the async ones can, with the same parameters."""
    for name in (name for name in vars(plain) if not name.startswith("_")):
        if name in WITHOUT_TWIN[plain]:
            continue
        assert hasattr(twin, name), name
        if inspect.isfunction(getattr(plain, name)):
            ours, theirs = (inspect.signature(getattr(cls, name)) for cls in (plain, twin))
            assert list(ours.parameters) == list(theirs.parameters), name


def test_the_verbs_record_what_the_sync_ones_do(store_path):
    """Append verbs, reads and refusals work as in the sync log."""

    async def body(log):
        session = log.session("s")
        said = await session.message("hello", agent="a", to=["b"])
        call = await session.tool_call("grep", {"x": 1}, agent="b")
        assert [call] == await session.open_calls()
        await session.tool_result(call, {"n": 2}, agent="b")
        with pytest.raises(PairingError):
            await session.tool_result(call, {"n": 3}, agent="b")
        with pytest.raises(InvalidEvent):
            await session.append_many(
                [Draft(type="message", agent="a", body="x"), Draft(type="no", agent="a")]
            )
        assert 4 == await session.head()
        assert [said] == await session.tail(5, to="b")
        assert said == await log.event(said.id)
        assert [event async for event in session.follow(0, timeout=0)] == await session.read()
        lines = [line async for line in session.jsonl()]
        assert [finding async for finding in log.verify()] == []
        return lines

    lines = run(store_path, body)
    with ConversationLog.open(store_path) as log:
        assert list(log.lines("s")) == lines


def test_tasks_share_transactions(store_path):
    """Two hundred tasks that append at once need far fewer commits than two hundred."""

    async def body(log):
        session = log.session("s")
        await session.message("first", agent="a")
        commits = 0
        write = log.sync._store.database.write

        def counted():
            nonlocal commits
            commits += 1
            return write()

        log.sync._store.database.write = counted
        await asyncio.gather(*[session.message(str(n), agent="a") for n in range(200)])
        return commits

    assert run(store_path, body) < 50


def test_a_storm_of_cancellations_leaves_events_absent_or_whole(store_path):
    """Of many appends half are cancelled at random points: each is absent or whole, and its key tells which."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)

    async def body(log):
        session = log.session("s")

        async def append(number):
            event = await session.message(f"{number}", agent="a", idempotency_key=f"k{number}")
            return event.id

        acknowledged = {}
        for start in range(0, STORM, 100):
            numbers = range(start, min(start + 100, STORM))
            tasks = {number: asyncio.create_task(append(number)) for number in numbers}
            for number in chance.sample(list(numbers), len(numbers) // 2):
                await asyncio.sleep(chance.choice([0, 0, 0.0001, 0.001]))
                tasks[number].cancel()
            outcomes = await asyncio.gather(*tasks.values(), return_exceptions=True)
            acknowledged |= {
                n: done for n, done in zip(tasks, outcomes, strict=True) if isinstance(done, str)
            }
        settled = {n: await append(n) for n in range(STORM)}
        events = [event async for event in session.follow(1, timeout=0)]
        return acknowledged, settled, events, [finding async for finding in log.verify()]

    acknowledged, settled, events, findings = run(store_path, body)
    assert STORM // 2 <= len(acknowledged) <= STORM
    assert acknowledged.items() <= settled.items()
    assert STORM == len(events) == len({event.id for event in events})
    assert {event.id: event.body for event in events} == {settled[n]: str(n) for n in range(STORM)}
    assert findings == []


def test_the_loop_is_not_held_up(store_path):
    """While other tasks append and read, the loop comes round every few milliseconds."""

    async def body(log):
        session = log.session("s")
        stop = asyncio.Event()
        late = []

        async def beat():
            while not stop.is_set():
                before = time.perf_counter()
                await asyncio.sleep(0.001)
                late.append(time.perf_counter() - before - 0.001)

        beating = asyncio.create_task(beat())
        for _ in range(20):
            await asyncio.gather(*[session.message("x" * 1000, agent="a") for _ in range(20)])
            await session.tail(100)
        stop.set()
        await beating
        return sorted(late)

    late = run(store_path, body)
    assert late[len(late) * 9 // 10] < 0.005, late[-5:]


def test_a_follower_sees_all_and_can_be_cancelled(store_path):
    """A follower gets every event in order; cancelled while it waits, it ends at once and leaves no thread."""

    async def body(log):
        session = log.session("s")
        seen, complete = [], asyncio.Event()

        async def follow():
            async for event in session.follow(0):
                seen.append(event.seq)
                if len(seen) == 51:
                    complete.set()

        following = asyncio.create_task(follow())
        for number in range(50):
            await session.message(str(number), agent="a")
        async with asyncio.timeout(10):
            await complete.wait()
        following.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await following
        return seen

    assert list(range(1, 52)) == run(store_path, body)


def test_leaving_commits_what_was_handed_over(store_path):
    """Appends that nobody awaited are committed when the log is closed."""

    async def body(log):
        session = log.session("s")
        for number in range(50):
            asyncio.create_task(session.message(str(number), agent="a"))  # noqa: RUF006 nobody waits, on purpose
        await asyncio.sleep(0)

    run(store_path, body)
    with ConversationLog.open(store_path) as log:
        assert 51 == log.session("s").head


def test_a_closed_log_says_so(store_path):
    """After `async with`, and before it, every call is refused with StoreClosed."""
    log = AsyncConversationLog.open(store_path)
    with pytest.raises(StoreClosed):
        log.session("s")

    async def body(log):
        return log.session("s")

    session = run(store_path, body)
    with pytest.raises(StoreClosed):
        asyncio.run(session.message("x", agent="a"))


def test_a_program_that_forgets_to_close_ends(store_path):
    """A program that never closes its log ends by itself, and what was acknowledged is there."""
    program = f"""
import asyncio
from convlog_sqlite import AsyncConversationLog
log = AsyncConversationLog.open({str(store_path)!r})
async def main():
    await log.__aenter__()
    await log.session("s").message("x", agent="a")
    asyncio.create_task(anext(log.session("s").follow()))
    await asyncio.sleep(0.05)
asyncio.run(main())
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert (0, "end\n") == (done.returncode, done.stdout), done.stderr
    with ConversationLog.open(store_path) as log:
        assert 2 == log.session("s").head


def test_an_ephemeral_log_works_the_same(tmp_path):
    """The async twin of an ephemeral log appends, reads and leaves nothing on disk."""

    async def main():
        async with AsyncConversationLog.ephemeral() as log:
            session = log.session("s")
            await session.message("x", agent="a")
            return await session.tail(1)

    assert ["x"] == [event.body for event in asyncio.run(main())]
    assert [] == list(tmp_path.iterdir())


def left():
    """How many descriptors and threads of convlog there are, once what is closing has closed."""
    gc.collect()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("convlog-")]
    return len(list(DESCRIPTORS.iterdir())), len(threads)


def settles_at(before):
    """Whether descriptors and threads come down to what there was: threads end a moment after they are told to."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        now = left()
        if now[0] <= before[0] and now[1] <= before[1]:
            return True
        time.sleep(0.005)
    return False


class ClosingLoop(asyncio.SelectorEventLoop):
    """A loop that is closed between a look at it and the call: to the appender's thread it is closed already."""

    def call_soon_threadsafe(self, *arguments, **more):
        if threading.current_thread().name == "convlog-appender":
            raise RuntimeError("Event loop is closed")
        return super().call_soon_threadsafe(*arguments, **more)


def test_a_loop_that_closes_while_it_is_answered_holds_up_no_other(store_path):
    """When the loop of an append is gone at the moment of its answer, appends of other loops go on."""

    async def body(log):
        session = log.session("s")
        await session.message("first", agent="a")

        def elsewhere():
            async def append():
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(session.message("second", agent="b"), 0.1)

            with asyncio.Runner(loop_factory=ClosingLoop) as runner:
                runner.run(append())

        await asyncio.to_thread(elsewhere)
        async with asyncio.timeout(5):
            await session.message("third", agent="a")
            return [event.body for event in await session.read(type="message")]

    assert ["first", "second", "third"] == run(store_path, body)


def test_an_append_behind_close_is_refused(store_path):
    """An append that another loop hands over when the log is closing ends with StoreClosed, and does not hang."""

    async def body(log):
        appender, readers = log._appender, log._readers
        await log.close()
        async with asyncio.timeout(5):
            with pytest.raises(StoreClosed):
                await appender.append(("s", None, [Draft(type="message", agent="a", body="x")]))
            with pytest.raises(StoreClosed):
                await readers.run(lambda: None)

    run(store_path, body)


def test_appends_that_race_with_close_from_another_loop_end(store_path):
    """Of appends that another loop makes while the log is closed, each is recorded or told StoreClosed."""
    recorded, ended = [], []

    async def body(log):
        session = log.session("s")
        started = threading.Event()

        def elsewhere():
            async def append():
                try:
                    async with asyncio.timeout(10):
                        for number in itertools.count():
                            recorded.append((await session.message(f"{number}", agent="b")).body)
                            started.set()
                except StoreClosed as closed:
                    ended.append(closed)

            asyncio.run(append())

        other = threading.Thread(target=elsewhere, daemon=True)
        other.start()
        await asyncio.to_thread(started.wait, 10)
        await log.close()
        await asyncio.to_thread(other.join, 10)
        return other.is_alive()

    assert run(store_path, body) is False
    assert 1 == len(ended)
    with ConversationLog.open(store_path) as log:
        assert recorded == [event.body for event in log.session("s").read(type="message", limit=100_000)]


class Held:
    """A call that waits until it is let go, so that whoever awaits it is cancelled in the middle."""

    def __init__(self, call):
        self.call, self.began, self.go = call, threading.Event(), threading.Event()

    def __call__(self):
        self.began.set()
        assert self.go.wait(10)
        return self.call()


async def cancel_in_the_middle(held, task):
    """Cancel `task` while it awaits what `held` makes, then let that be made."""
    assert await asyncio.to_thread(held.began.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.go.set()


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="descriptors are counted in /proc")
class TestLeaks:
    def test_a_cancelled_open_leaves_nothing(self, store_path):
        """An `async with` that is cancelled while the store is opened gives back its descriptors and threads."""
        ConversationLog.open(store_path).close()
        before = left()

        async def main():
            held = Held(lambda: ConversationLog.open(store_path))
            log = AsyncConversationLog(held)
            await cancel_in_the_middle(held, asyncio.create_task(log.__aenter__()))

        asyncio.run(main())
        assert settles_at(before)

    def test_a_cancelled_follow_leaves_nothing(self, store_path):
        """A follower that is cancelled while its waiter is made gives it back."""

        async def body(log):
            session = log.session("s")
            await session.message("x", agent="a")
            assert 2 == len(
                [event async for event in session.follow(0, timeout=0)]
            )  # SQLite keeps one descriptor
            before = left()
            held = Held(log.sync.waiter)
            log.sync.waiter = held
            await cancel_in_the_middle(held, asyncio.create_task(anext(session.follow(0))))
            return await asyncio.to_thread(settles_at, before)

        assert run(store_path, body)

    def test_a_follow_that_is_cancelled_at_any_step_leaves_nothing(self, store_path):
        """Followers that are cancelled after ever more turns of the loop leave no descriptor and no thread."""

        async def body(log):
            session = log.session("s")
            await session.message("x", agent="a")
            # SQLite keeps the descriptors of as many as were open at once, for the next: a waiter that nobody
            # waits for any more is closed by a thread, perhaps while the next is made.
            at_once = [log.sync.waiter() for _ in range(6)]
            for waiter in at_once:
                assert waiter.wait(0)
            for waiter in at_once:
                waiter.close()
            before = left()

            async def follow():
                async for _ in session.follow(0):
                    pass

            for turns in range(12):
                following = asyncio.create_task(follow())
                for _ in range(turns):
                    await asyncio.sleep(0)
                following.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await following
            return await asyncio.to_thread(settles_at, before)

        assert run(store_path, body)

    def test_a_follow_that_is_never_started_leaves_nothing(self, log):
        """A generator of events that nobody asks, or that is left early, holds no descriptor."""
        session = log.session("s")
        session.message("x", agent="a")
        assert 2 == len(list(session.follow(0, timeout=0)))  # SQLite keeps one descriptor for the next
        before = left()
        followers = [session.follow(0) for _ in range(20)]
        assert left() == before
        assert "session-opened" == next(followers[0]).kind
        followers[0].close()
        assert settles_at(before)

    def test_a_closed_log_holds_no_lock(self, store_path):
        """Opened and closed many times, with events written, a store leaves no descriptor, no thread and no lock."""
        with ConversationLog.open(store_path) as log:
            log.session("s").message("x", agent="a")
        before = left()
        for _ in range(20):
            with ConversationLog.open(store_path) as log:
                log.session("s").message("x", agent="a")
        assert settles_at(before)
        lock = FileLock(store_path / "log.open")
        assert lock.try_acquire()
        lock.close()


def test_exports_and_removed_sessions(store_path, tmp_path):
    """What the sync log says of them, the twin says."""

    async def body(log):
        session = log.session("s")
        await session.mutation("session-closed", agent="a")
        await log.export_to(tmp_path / "out")
        assert await log.exports() == [str(tmp_path / "out")]
        with pytest.raises(FilesLeft):
            await log.forget_export(tmp_path / "out")
        shutil.rmtree(tmp_path / "out")
        await log.forget_export(tmp_path / "out")
        assert await log.exports() == []
        assert await log.removed_sessions() == []
        with ConversationLog.open(store_path, clock=lambda: time.time_ns() + 2 * 86_400 * 10**9) as later:
            later.set_policy(RetentionPolicy(id="old", target="envelope", max_age="1d"), by="ops")
            assert later.apply_retention(by="ops").removed == {"s": "old@1"}
        assert [found.id for found in await log.removed_sessions()] == ["s"]
        for call in (session.tail(), session.message("late", agent="a"), session.head()):
            with pytest.raises(SessionRemoved):
                await call

    run(store_path, body)
