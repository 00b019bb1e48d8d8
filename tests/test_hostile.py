"""Files that somebody else wrote: whatever they say, a call gives values or one of convlog's errors, soon, and stays inside."""

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
import time

import apsw
import pytest

from convlog_sqlite import (
    ConversationLog,
    ConvlogError,
    EventTooLarge,
    KeystoreUnusable,
    NotAStore,
    StoreCorrupt,
    StoreIOError,
    UnknownReference,
)
from convlog_sqlite.vocabulary import MAX_EVENT

HUGE = 1 << 63  # more than SQLite's integers hold


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A closed store with every kind of row. It is copied, not changed."""
    path = tmp_path_factory.mktemp("original") / "store"
    with ConversationLog.init(path, mirror=False) as log:
        session = log.session("s", tenant="t")
        asked = session.message("ask", agent="a", to=["b"], idempotency_key="k")
        call = session.tool_call("ls", {}, agent="a", links={"evidence": [asked.id]})
        session.tool_result(call, "files", agent="a")
        session.tool_call("rm", {}, agent="a")
        session.message("x" * 20_000, agent="a")
    return path


@pytest.fixture
def store(original, store_path):
    """A copy of the store, nobody's yet."""
    return shutil.copytree(original, store_path)


def change(path, *statements):
    """Change a database that nobody has open, past every guard."""
    connection = apsw.Connection(str(path / "log.db"))
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.pragma("ignore_check_constraints", 1)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def use(path):
    """Every call that reads, each by itself, then an append: what is raised must be a ConvlogError."""
    raised = []

    def attempt(call):
        try:
            return call()
        except ConvlogError as error:
            raised.append(error)

    log = attempt(lambda: ConversationLog.open(path))
    if log is None:
        return raised
    with log:
        session = attempt(lambda: log.session("s"))
        if session is not None:
            for event in attempt(lambda: session.tail(20)) or ():
                for call in (
                    lambda event=event: event.agent,
                    lambda event=event: event.line,
                    lambda event=event: event.body,
                    lambda event=event: session.content(event),
                    lambda event=event: log.event(event.id),
                ):
                    attempt(call)
            for call in (
                lambda: session.tail(20, pairs=True),
                lambda: session.tail(20, to="b"),
                lambda: session.read(agent="a"),
                session.open_calls,
                lambda: session.message("ask", agent="a", to=["b"], idempotency_key="k"),
                lambda: session.message("new", agent="a"),
            ):
                attempt(call)
        for call in (log.sessions, log.status, log.anchor, lambda: list(log.lines())):
            attempt(call)
        attempt(lambda: log.export_to(path.parent / "out"))
        attempt(log.mirror.update)
        attempt(lambda: list(log.verify()))
    return raised


ROWS = {
    "an envelope that is no text": "UPDATE envelope SET bytes = x'ff' WHERE pos = 4",
    "an empty envelope": "UPDATE envelope SET bytes = x'' WHERE pos = 4",
    "an envelope that is a list": "UPDATE envelope SET bytes = CAST('[1]' AS BLOB) WHERE pos = 4",
    "an envelope without keys": "UPDATE envelope SET bytes = CAST('{}' AS BLOB)",
    "an envelope that is very deep": "UPDATE envelope SET bytes = CAST(replace(hex(zeroblob(50000)), '0', '[') AS BLOB) WHERE pos = 4",
    "an envelope id changed": "UPDATE envelope SET id = zeroblob(16) WHERE pos = 4",
    "no envelopes": "DELETE FROM envelope",
    "no names": "DELETE FROM name",
    "no sessions": "DELETE FROM session",
    "no store": "DELETE FROM store",
    "an instant beyond all years": "UPDATE event SET ts = 9000000000000000000, at = 9000000000000000000",
    "an instant before all years": "UPDATE event SET ts = -9000000000000000000, at = -9000000000000000000",
    "an event that points to nothing": "UPDATE event SET pos = 999",
    "events that are not there": "DELETE FROM event",
    "an answer to nothing": "UPDATE event SET answers = 999 WHERE answers IS NOT NULL",
    "an open call that is nothing": "INSERT INTO open_call SELECT id, 999 FROM session WHERE name = 's'",
    "an idempotency key of nothing": "UPDATE idempotency SET pos = 999",
    "a tenant that is nobody": "UPDATE session SET tenant = 999",
    "a base beyond all": "UPDATE session SET base = 9000000000000000000",
    "a huge slot of a payload": "UPDATE payload SET slot = 9000000000000000000",
    "a negative slot of a payload": "UPDATE payload SET slot = -9000000000000000000",
    "a huge slot of a blob": "UPDATE blob SET slot = 9000000000000000000",
    "a negative slot of a blob": "UPDATE blob SET slot = -9000000000000000000",
    "a slot used that cannot be": "INSERT INTO slot VALUES (9000000000000000000, 1, 99)",
    "a blob of very many chunks": "UPDATE blob SET chunks = 9000000000000000000",
    "a blob of no chunk": "UPDATE blob SET chunks = 0",
    "a blob of negative chunks": "UPDATE blob SET chunks = -9000000000000000000",
    "a part of a blob that is no number of ours": "UPDATE blob SET part = 9000000000000000000",
    "no chunks": "DELETE FROM chunk",
    "a session name that is a path": "UPDATE session SET name = '../../outside', folded = '../../outside' WHERE name = 's'",
}


@pytest.mark.parametrize("what", ROWS)
def test_hostile_rows_give_errors_of_ours_or_values(store, what):
    """Whatever a row says, each read and the next append give a value or a ConvlogError."""
    change(store, ROWS[what])
    use(store)


@pytest.mark.parametrize("name", ["../../outside", "/{root}/outside", "..", ".", "a/b", "a\\0b", "", "_x"])
def test_a_session_name_that_is_a_path_writes_nothing_outside(store, tmp_path, name):
    """Exports and mirrors of a database that names its session by a path leave every other directory alone."""
    said = name.format(root=tmp_path).replace("\\0", "' || char(0) || '")
    change(store, f"UPDATE session SET name = '{said}', folded = 'x' WHERE folded = 's'")
    before = {path for path in tmp_path.rglob("*") if store not in path.parents}
    out = tmp_path / "exports" / "here"
    with ConversationLog.open(store) as log:
        with pytest.raises(ConvlogError):
            log.export_to(out)
        inside = {path.relative_to(out) for path in out.rglob("*")}
        assert all(path.parts[0] == "_store" for path in inside)
    with ConversationLog.init(store) as log, contextlib.suppress(ConvlogError):
        log.mirror.update()
    after = {
        path for path in tmp_path.rglob("*") if store not in path.parents and out.parent not in path.parents
    }
    assert after - before <= {out.parent}


def test_an_envelope_that_is_none_says_that_the_store_is_corrupt(store):
    """An event whose envelope is no JSON object raises StoreCorrupt when it is asked, and the others are read."""
    change(store, "UPDATE envelope SET bytes = x'ff' WHERE pos = 4")
    with ConversationLog.open(store) as log:
        page = log.session("s").tail(20)
        with pytest.raises(StoreCorrupt):
            print([event.agent for event in page])
        assert page[-1].agent == "a"


def test_a_key_that_names_no_event_says_that_the_store_is_corrupt(store):
    """An idempotency key whose event is not there is StoreCorrupt, and the append is not recorded."""
    change(store, "UPDATE idempotency SET pos = 999")
    with ConversationLog.open(store) as log:
        head = log.session("s").head
        with pytest.raises(StoreCorrupt):
            log.session("s").message("ask", agent="a", to=["b"], idempotency_key="k")
        assert head == log.session("s").head


@pytest.mark.parametrize("chunks", [-1, 0, 65_537, 9_000_000_000_000_000_000])
def test_a_blob_of_absurd_chunks_cannot_be_read(store, chunks):
    """A blob that says an absurd number of chunks is answered at once: it is corrupt."""
    change(store, f"UPDATE blob SET chunks = {chunks}")
    with ConversationLog.open(store) as log:
        session = log.session("s")
        with pytest.raises(ConvlogError):
            session.content(session.tail(1)[0])
        assert {"payload-corrupt", "commitment"} >= {finding.rule for finding in log.verify()} > set()


@pytest.mark.parametrize("number", [HUGE - 1, HUGE, HUGE * HUGE])
def test_absurd_numbers_are_beyond_the_end(store, number):
    """A limit, a bound or a count that no database holds means all there is, or nothing."""
    with ConversationLog.open(store) as log:
        session = log.session("s")
        everything = session.read()
        assert session.read(limit=number) == session.tail(number) == session.read(before=number) == everything
        assert list(session.jsonl(before=number)) == list(session.jsonl())
        assert session.read(after=number) == []
        assert list(session.jsonl(after=number)) == []
        assert session.tail(3, before=number) == everything[-3:]
        assert session.read(agent="a", max_scan=number, limit=number) == everything
        assert session.event(number) is None
        assert session.open_calls(limit=number) == session.open_calls()
        assert session.open_calls(after=number) == []
        with pytest.raises(UnknownReference):
            session.attachment(everything[-1], number)


def test_an_envelope_is_bounded_as_an_event_is(log):
    """Lists of names count towards the size of an event: one that is too large is refused and not written."""
    names = [f"{number:0256d}" for number in range(MAX_EVENT // 256 + 1)]
    with pytest.raises(EventTooLarge):
        log.session("s").message("x", agent="a", to=names)
    assert 0 == log.session("s").head


@pytest.mark.parametrize("said", [b"a\0b", b"", b" \n", b"\xff\xfe", b"x" * 5000, b"/", b"/dev/null", b"."])
def test_a_pointer_to_no_keystore_is_unusable(store, said):
    """A pointer file that names no keystore, or nothing that can be a file, is KeystoreUnusable."""
    (store / "log.keys-path").write_bytes(said)
    with pytest.raises((KeystoreUnusable, StoreIOError)):
        ConversationLog.open(store)


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 8191, 8192, 8193, 8200])
def test_a_keystore_that_was_cut_gives_errors_of_ours_or_values(store, size):
    """A keystore of any length is opened or refused, and what it does not hold is lost."""
    os.truncate(store / "log.keys", size)
    raised = use(store)
    assert raised
    if size < 4096:
        assert isinstance(raised[0], KeystoreUnusable)


@pytest.mark.parametrize("name", ["log.db", "log.keys", "log.lock", "log.open"])
@pytest.mark.parametrize("kind", ["directory", "garbage", "loop"])
def test_a_file_that_is_something_else(store, name, kind):
    """A directory, garbage or a symbolic link to itself in place of a file of the store gives errors of ours or values."""
    (store / name).unlink()
    if kind == "directory":
        (store / name).mkdir()
    elif kind == "loop":
        (store / name).symlink_to(name)
    else:
        (store / name).write_bytes(b"garbage" * 5000)
    raised = use(store)
    assert raised or (kind == "garbage" and name in ("log.lock", "log.open"))


@pytest.mark.parametrize("size", [1, 100, 4096, 5000, 20_000])
def test_a_database_that_was_cut_gives_errors_of_ours(store, size):
    """A database of which a part is missing is an error of ours, whichever part."""
    os.truncate(store / "log.db", size)
    assert use(store)


def test_a_wal_of_a_database_that_is_gone_is_not_replayed(store_path):
    """A store made where a killed process left a WAL without its database is empty and sound."""
    program = """
        import os, signal, sys
        from convlog_sqlite import ConversationLog
        session = ConversationLog.init(sys.argv[1]).session("old")
        for number in range(30):
            session.message(f"old {number}", agent="a")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(store_path)], check=False)
    assert (store_path / "log.db-wal").stat().st_size > 0
    (store_path / "log.db").unlink()
    (store_path / "log.keys").unlink()
    with ConversationLog.init(store_path) as log:
        assert ["_store"] == [session.id for session in log.sessions()]
        log.session("new").message("x", agent="a")
        assert [] == [finding for finding in log.verify() if finding.severity == "fault"]


def test_a_file_in_the_way_of_one_session_holds_up_no_other(log):
    """A file in place of a session's mirror directory is reported, and the mirrors of other sessions go on."""
    log.session("a").message("1", agent="x")
    log.session("b").message("1", agent="x")
    shutil.rmtree(log.mirror.path("a").parent)
    log.mirror.path("a").parent.touch()
    log.mirror.path("b").unlink()
    log.mirror.start()
    deadline = time.monotonic() + 5
    while not (log.mirror.problem and log.mirror.path("b").exists()) and time.monotonic() < deadline:
        time.sleep(0.002)
    log.mirror.stop()
    assert log.mirror.problem
    assert log.mirror.path("b").read_bytes() == b"".join(log.lines("b"))


def test_a_database_without_a_store_is_no_store(store):
    """A database whose row of the store is gone is refused as no store."""
    change(store, "DELETE FROM store")
    with pytest.raises(NotAStore):
        ConversationLog.open(store)
