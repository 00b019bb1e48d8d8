"""Files that hold what a view shows: kept in step, written anew through the same view when content is erased."""

import json
import threading
import time

import pytest

from convlog_sqlite import (
    AsyncConversationLog,
    ConversationLog,
    InvalidEvent,
    NotAuthorized,
    Select,
    UnknownReference,
    View,
    restore,
)

WORDS = View(
    name="words", selects=(Select(types=("message",)),), payload=("body",), max_sensitivity="internal"
)


@pytest.fixture
def log(store_path):
    """A log with a view of its own."""
    with ConversationLog.init(store_path) as opened:
        opened.define_view(WORDS, by="ops")
        yield opened


def lines(directory, session="s"):
    """The lines of an exported file, parsed."""
    text = (directory / session / "conversation.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def fill(log, name="s"):
    """Words that the view shows, and others that it does not."""
    session = log.session(name)
    shown = session.message("shown one", agent="a", meta={"hidden": "meta"})
    session.message("hidden restricted", agent="a", sensitivity="restricted")
    session.tool_call("shell", {"hidden": "args"}, agent="a")
    return session, shown


def test_a_directory_holds_what_the_view_shows(log, tmp_path):
    """Byte for byte what the slice gives, in order; nothing of what it keeps back."""
    session, _ = fill(log)
    written = log.export_to(tmp_path / "out", "s", view="words", reader="a")
    assert written == {"s": 1}
    expected = b"".join(session.through("words", reader="a").jsonl())
    assert (tmp_path / "out" / "s" / "conversation.jsonl").read_bytes() == expected
    assert "hidden" not in expected.decode()
    session.message("shown two", agent="a")
    assert log.export_to(tmp_path / "out", "s", view="words", reader="a") == {"s": 1}
    assert [line["body"] for line in lines(tmp_path / "out")] == ["shown one", "shown two"]
    assert log.export_to(tmp_path / "out", "s", view="words", reader="a") == {"s": 0}


def test_a_long_session_is_exported_in_several_blocks(log, tmp_path):
    """What is selected is rare and far apart; every line is there once."""
    session = log.session("s")
    for number in range(6):
        session.append_many([draft(f"shown {number}-{n}", n % 100 == 0) for n in range(400)])
    assert log.export_to(tmp_path / "out", "s", view="words") == {"s": 24}
    assert len({line["seq"] for line in lines(tmp_path / "out")}) == 24


def draft(body, is_message):
    """A message, or a mutation that the view does not select."""
    from convlog_sqlite import Draft

    if is_message:
        return Draft(type="message", agent="a", body=body)
    return Draft(type="mutation", agent="a", kind="state-set", state_key="k", value=body)


def test_a_directory_holds_what_one_view_shows(log, tmp_path):
    """Another view, another reader or none is refused there, before anything is written."""
    fill(log)
    log.export_to(tmp_path / "out", view="words", reader="a")
    before = (tmp_path / "out" / "s" / "conversation.jsonl").read_bytes()
    for asked in (
        {},
        {"view": "auditor"},
        {"view": "words", "reader": "b"},
        {"view": "words", "purpose": "audit"},
    ):
        with pytest.raises(InvalidEvent) as refused:
            log.export_to(tmp_path / "out", **asked)
        assert refused.value.pointer == "/directory"
    log.export_to(tmp_path / "whole")
    with pytest.raises(InvalidEvent):
        log.export_to(tmp_path / "whole", view="words", reader="a")
    assert (tmp_path / "out" / "s" / "conversation.jsonl").read_bytes() == before


def test_a_new_version_of_the_view_is_another_view(log, tmp_path):
    """The files stay what they were; who wants the new version takes another directory."""
    fill(log)
    log.export_to(tmp_path / "out", view="words")
    log.define_view(View(name="words", payload=()), by="ops")
    with pytest.raises(InvalidEvent):
        log.export_to(tmp_path / "out", view="words")
    log.export_to(tmp_path / "out", view="words@1")


def test_an_erasure_writes_the_files_anew_through_the_view(log, tmp_path, store_path):
    """What is erased is gone, what the view kept back does not come in; so too by a handle that knows no view."""
    session, shown = fill(log)
    log.export_to(tmp_path / "out", view="words", reader="a")
    second = session.message("shown two", agent="a")
    log.export_to(tmp_path / "out", view="words", reader="a")
    found = log.redact(events=[shown.id], reason="test", by="ops")
    assert found.unreachable == []
    first, other = lines(tmp_path / "out")
    assert "body" not in first
    assert first["redacted"]["reason"] == "test"
    assert other["body"] == "shown two"
    text = (tmp_path / "out" / "s" / "conversation.jsonl").read_text()
    assert "hidden" not in text
    log.close()
    with ConversationLog.open(store_path) as again:
        again.redact(events=[second.id], reason="test", by="ops")
    text = (tmp_path / "out" / "s" / "conversation.jsonl").read_text()
    assert "hidden" not in text
    assert "shown" not in text


def test_the_view_of_a_directory_survives_a_restore(log, tmp_path, store_path):
    """After an older database is put back, an erasure still writes the files through their view."""
    session, shown = fill(log)
    log.backup(tmp_path / "backup")
    log.export_to(tmp_path / "out", view="words", reader="a")
    log.close()
    restore(tmp_path / "backup", store_path, by="ops")
    with ConversationLog.open(store_path) as again:
        again.redact(events=[shown.id], reason="test", by="ops")
        assert "hidden" not in (tmp_path / "out" / "s" / "conversation.jsonl").read_text()
    del session


def test_what_was_labelled_since_goes_with_the_next_update(log, tmp_path):
    """A label raises a ceiling over a line that stands in the file: brought up to date, the line is gone."""
    session, shown = fill(log)
    session.message("shown two", agent="a")
    log.export_to(tmp_path / "out", view="words")
    log.label(shown.id, sensitivity="restricted", by="ops")
    log.export_to(tmp_path / "out", view="words")
    assert [line["body"] for line in lines(tmp_path / "out")] == ["shown two"]


def test_only_the_sessions_of_the_view_have_files(log, tmp_path):
    """Of another there is none, and to name it is refused; so is a view that nobody defined."""
    fill(log)
    fill(log, "other")
    log.define_view(View(name="of-s", sessions=("s",)), by="ops")
    assert set(log.export_to(tmp_path / "out", view="of-s")) == {"s"}
    assert not (tmp_path / "out" / "other").exists()
    with pytest.raises(NotAuthorized):
        log.export_to(tmp_path / "out", "other", view="of-s")
    with pytest.raises(UnknownReference):
        log.export_to(tmp_path / "nothing", view="nobody-defined-it")


def test_an_exporter_follows_through_a_view(log, tmp_path):
    """What is appended arrives if the view selects it, and nothing else does."""
    session, _ = fill(log)
    stop = threading.Event()
    exporter = log.exporter(tmp_path / "out", view="words", reader="a")
    thread = threading.Thread(target=exporter.follow, args=(["s"],), kwargs={"stop": stop})
    thread.start()
    try:
        for number in range(20):
            session.message(f"shown {number}", agent="a")
            session.mutation("state-set", "hidden", agent="a", state_key="k")
        deadline = time.monotonic() + 20
        path = tmp_path / "out" / "s" / "conversation.jsonl"
        while time.monotonic() < deadline and (not path.exists() or len(lines(tmp_path / "out")) < 21):
            thread.join(0.01)
    finally:
        stop.set()
        thread.join()
        exporter.close()
    assert [line["body"] for line in lines(tmp_path / "out")] == [
        "shown one",
        *(f"shown {n}" for n in range(20)),
    ]


def test_the_twins_do_the_same(store_path, tmp_path):
    """Defining, reading through, following and exporting, awaited."""
    import asyncio

    async def main():
        async with AsyncConversationLog.open(store_path) as log:
            await log.define_view(WORDS, by="ops")
            session = log.session("s")
            await session.message("shown", agent="a", meta={"m": 1})
            await session.mutation("state-set", 1, agent="a", state_key="k")
            found = await session.through("words", reader="a")
            assert [event.body for event in await found.tail()] == ["shown"]
            assert [event.body for event in await found.read()] == ["shown"]
            assert [event.body for event in await found.selected()] == ["shown"]
            assert [line async for line in found.jsonl()] == [(await found.event(2)).line]
            event = (await session.tail(2))[0]
            assert (await found.explain(event)).shown
            assert await found.shows(event)
            assert (await found.shown(event)).withheld
            assert await found.content(event) == "shown"
            assert await found.state() == {}
            assert await found.head() == 3
            assert await found.with_calls(await found.tail()) == await found.tail()
            assert [event.body async for event in session.follow(0, timeout=0, through=found)] == ["shown"]
            moment = await session.at(2)
            assert len(await (await moment.through("everything")).tail()) == 2
            assert "words" in [view.name for view in await log.views()]
            assert (await log.view("words")).label == "words@1"
            assert await log.export_to(tmp_path / "out", "s", view="words") == {"s": 1}
            with pytest.raises(NotAuthorized):
                await found.attachment(event)
            assert [event.id for event in (await log.why(event.id, view="words")).events] == [event.id]

    asyncio.run(main())


def test_an_erasure_by_a_tenant_writes_the_files_of_the_whole_store_anew(log, tmp_path, store_path):
    """Through the view that they are kept through, although it is none that the tenant knows."""
    log.define_view(View(name="calm", max_sensitivity="internal"), by="ops")
    session = log.session("theirs", tenant="acme")
    secret = session.message("to be erased", agent="a")
    session.message("kept back", agent="a", sensitivity="restricted")
    log.export_to(tmp_path / "out", view="calm")
    with ConversationLog.open(store_path, tenant="acme") as acme:
        found = acme.redact(events=[secret.id], reason="test", by="a")
    assert found.unreachable == []
    text = (tmp_path / "out" / "theirs" / "conversation.jsonl").read_text()
    assert '"redacted"' in text
    assert "to be erased" not in text
    assert "kept back" not in text


@pytest.mark.parametrize("path", ["link", "other/../out", "link/../out"])
def test_a_directory_is_the_same_by_whatever_path(log, tmp_path, path):
    """Whole lines do not come into what is kept through a view by way of a link, nor the other way round."""
    fill(log)
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out", target_is_directory=True)
    log.define_view(View(name="bare", payload=()), by="ops")
    log.export_to(tmp_path / "out", view="bare")
    before = (tmp_path / "out" / "s" / "conversation.jsonl").read_bytes()
    for how in ({}, {"view": "words", "reader": "a"}):
        with pytest.raises(InvalidEvent) as refused:
            log.export_to(tmp_path / path, **how)
        assert refused.value.pointer == "/directory"
    assert (tmp_path / "out" / "s" / "conversation.jsonl").read_bytes() == before
    log.export_to(tmp_path / path, view="bare")
    assert log.exports() == sorted({str(tmp_path / "out"), str(tmp_path / path)})


@pytest.mark.parametrize("below", [(), ("sessions",), ("sessions", "s"), ("other", "..", "sessions")])
@pytest.mark.parametrize("view", [None, "auditor"])
def test_the_store_is_no_place_for_exports(store_path, below, view):
    """Its own mirror holds whole sessions, and nothing else is kept beside it."""
    with ConversationLog.init(store_path) as log:
        fill(log)
        mirror = store_path / "sessions" / "s" / "conversation.jsonl"
        before = mirror.read_bytes()
        with pytest.raises(InvalidEvent) as refused:
            log.export_to(store_path.joinpath(*below), view=view)
        assert refused.value.pointer == "/directory"
        assert mirror.read_bytes() == before
        assert log.exports() == []
