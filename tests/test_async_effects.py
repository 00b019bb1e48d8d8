"""Effects in a loop: an awaited tool is called once, and no cancellation leaves its outcome unsaid."""

import asyncio

import pytest

from convlog_sqlite import (
    AsyncConversationLog,
    ConversationLog,
    EffectClaimed,
    EffectCommitted,
    EffectInDoubt,
    NotPerformed,
)


def run(store_path, body):
    """Run `body(log)` with an open async log."""

    async def main():
        async with AsyncConversationLog.open(store_path) as log:
            return await body(log)

    return asyncio.run(main())


def states(store_path):
    """The effects of the session as they stand: (state, outcome)."""
    with ConversationLog.open(store_path) as log:
        assert list(log.verify()) == []
        return [(effect.state, effect.outcome) for effect in log.session("s").effects()]


def test_an_awaited_tool_is_called_once(store_path):
    """Many tasks, several workers: one call, and everybody who is not refused gets its result."""
    calls = []

    async def charge(key):
        calls.append(key)
        await asyncio.sleep(0.01)
        return {"charged": key}

    async def body(log):
        session = log.session("s")

        async def once(number):
            return await session.once(f"w{number}", "charge", {"n": 1}, idempotency_key="k", run=charge)

        outcomes = await asyncio.gather(*map(once, range(8)), return_exceptions=True)
        receipt = await once(9)
        assert (receipt.result, receipt.is_replay) == ({"charged": "k"}, True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(isinstance(outcome, EffectClaimed) for outcome in refused)
        assert len(refused) < 8

    run(store_path, body)
    assert calls == ["k"]
    assert states(store_path) == [("committed", None)]


def test_a_plain_function_will_do(store_path):
    """What a function that is no coroutine gave is recorded; one that does not take the key is no attempt."""

    async def body(log):
        session = log.session("s")
        with pytest.raises(TypeError):
            await session.once("w1", "t", {}, idempotency_key="k", run=lambda: 1)
        return await session.once("w1", "t", {}, idempotency_key="k", run=lambda key: key)

    assert run(store_path, body).result == "k"
    assert states(store_path) == [("committed", None)]


def test_a_block_runs_once(store_path):
    """The async context manager commits what the block left, and refuses the second time."""

    async def body(log):
        session = log.session("s")
        async with session.effect("w1", "mail", {}, idempotency_key="m") as attempt:
            attempt.result = "sent"
        assert (await session.find_effect(attempt.effect)).last.result == "sent"
        with pytest.raises(EffectCommitted):
            async with session.effect("w2", "mail", {}, idempotency_key="m"):
                raise AssertionError("the block ran")
        with pytest.raises(NotPerformed):
            async with session.effect("w1", "mail", {}, idempotency_key="n"):
                raise NotPerformed("no line")
        return await session.recover("w1")

    found = run(store_path, body)
    assert [effect.state for effect in found.done] == ["committed", "compensated"]


def test_a_tool_that_is_cancelled_leaves_a_doubt(store_path):
    """A call that was cancelled in the middle may have happened, and is not made again until it is settled."""

    async def body(log):
        session = log.session("s")
        called = asyncio.Event()

        async def hang(key):
            called.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(session.once("w1", "t", {}, idempotency_key="k", run=hang))
        await called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(EffectInDoubt):
            await session.once("w1", "t", {}, idempotency_key="k", run=hang)
        (effect,) = (await session.recover("w1")).in_doubt
        assert (await session.settle(effect.id, "not_happened", agent="w1")).outcome == "not_happened"

        async def quick(key):
            return key

        assert (await session.once("w1", "t", {}, idempotency_key="k", run=quick)).result == "k"
        assert [effect.state for effect in await session.effects()] == ["compensated", "committed"]

    run(store_path, body)


def test_a_call_that_is_cancelled_before_its_tool_began_did_not_happen(store_path):
    """Cancelled at any moment in front of the call, nothing is left that may have happened."""
    calls = []

    async def tool(key):
        calls.append(key)

    async def body(log):
        session = log.session("s")
        for number in range(30):
            key = f"k{number}"
            task = asyncio.create_task(session.once("w", "t", {}, idempotency_key=key, run=tool))
            await asyncio.sleep(number * 0.0001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(store_path, body)
    with ConversationLog.open(store_path) as log:
        for effect in log.session("s").effects(limit=100):
            assert effect.state in ("proposed", "committed") or effect.outcome == "not_happened"
    committed = [state for state, _ in states(store_path) if state == "committed"]
    assert len(calls) == len(committed)


def test_what_the_tool_gave_is_recorded_though_nobody_waits(store_path):
    """A caller that is cancelled while the result is committed leaves it committed."""

    async def body(log):
        session = log.session("s")
        done = asyncio.Event()

        async def tool(key):
            done.set()
            return 1

        task = asyncio.create_task(session.once("w", "t", {}, idempotency_key="k", run=tool))
        await done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(store_path, body)
    assert states(store_path) == [("committed", None)]
