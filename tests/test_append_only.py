"""The database itself refuses to change, delete or replace what is recorded, whoever opens it and with whatever library."""

import json
import subprocess
import sys
import textwrap

import pytest

from convlog_sqlite import Attachment, ConversationLog, StoreCorrupt

# Another client: another SQLite library in another process, with its settings as they come.
FOREIGN = """
import json, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
said = []
for statement in json.loads(sys.argv[2]):
    try:
        database.execute(statement)
    except sqlite3.Error as error:
        said.append([type(error).__name__, str(error)])
    else:
        said.append(None)
database.close()
print(json.dumps(said))
"""

COLUMNS = {
    "envelope": "pos, session, seq, id, bytes, commitment, leaf, chain, store_chain",
    "event": (
        "session, seq, pos, type, agent, role, task, thread, tool, kind, performative, correlation, state_key, "
        "sensitivity, parent, answers, ts, at, flags"
    ),
    "payload": "pos, slot, sealed",
    "blob": "pos, part, id, slot, chunks",
    "chunk": "id, sealed",
    "slot": "number, pos, part",
    "session": "id, name, folded, tenant, base",
    "store": "id, store_id",
}
KEYS = {
    "envelope": "pos",
    "event": "session, seq",
    "payload": "pos",
    "blob": "pos, part",
    "chunk": "id",
    "slot": "number",
    "session": "id",
    "store": "id",
}
CHANGED = {
    "envelope": "bytes = x'7b7d'",
    "event": "agent = 1",
    "payload": "sealed = x'00'",
    "blob": "slot = 1",
    "chunk": "sealed = x'00'",
    "slot": "pos = 1",
    "session": "name = 'other'",
    "store": "store_id = zeroblob(16)",
}


def foreign(path, *statements):
    """What a foreign client is told for each statement; None stands for success."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FOREIGN), str(path / "log.db"), json.dumps(statements)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture
def closed(store_path):
    """A store with a few events that nobody has open."""
    with ConversationLog.open(store_path) as log:
        session = log.session("s")
        call = session.tool_call("shell", {"command": "ls"}, agent="a", task_id="t")
        session.tool_result(call, "x", agent="a")
        session.message("done", agent="b", to=["a"], attachments=[Attachment("text/plain", b"x")])
    return store_path


@pytest.fixture
def rows(closed):
    """Every row of every guarded table, as text."""

    def read():
        program = """
            import sqlite3, sys
            database = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
            for table in sys.argv[2:]:
                print(table, database.execute(f"SELECT * FROM {table}").fetchall())
            """
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), str(closed / "log.db"), *COLUMNS],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    return read


@pytest.mark.parametrize("table", COLUMNS)
@pytest.mark.parametrize("recursive", ["OFF", "ON"])
def test_a_foreign_client_can_change_nothing(closed, rows, table, recursive):
    """UPDATE, DELETE, REPLACE and upsert are refused on every recorded table, with recursive triggers on or off."""
    before = rows()
    columns, key, changed = COLUMNS[table], KEYS[table], CHANGED[table]
    statements = [
        f"UPDATE {table} SET {changed}",
        f"UPDATE OR REPLACE {table} SET {changed}",
        f"UPDATE OR IGNORE {table} SET {changed}",
        f"DELETE FROM {table}",
        f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} LIMIT 1)",
        f"INSERT OR REPLACE INTO {table} SELECT {columns} FROM {table}",
        f"REPLACE INTO {table} SELECT {columns} FROM {table} LIMIT 1",
        f"INSERT INTO {table} SELECT {columns} FROM {table} WHERE true ON CONFLICT ({key}) DO UPDATE SET {changed}",
        f"INSERT OR IGNORE INTO {table} SELECT {columns} FROM {table}",
    ]
    said = foreign(closed, f"PRAGMA recursive_triggers = {recursive}", *statements)
    assert said[0] is None
    for statement, answer in zip(statements, said[1:], strict=True):
        assert answer is not None, statement
        assert answer[0] == "IntegrityError", (statement, answer)
        assert "append-only" in answer[1], (statement, answer)
    assert rows() == before
    with ConversationLog.open(closed) as log:
        assert list(log.verify()) == []


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("INSERT INTO envelope SELECT 99, session, seq, randomblob(16), bytes, commitment, leaf, chain, store_chain FROM envelope LIMIT 1", "a gap in pos"),
        ("INSERT INTO envelope SELECT 1 + (SELECT max(pos) FROM envelope), session, seq, id, bytes, commitment, leaf, chain, store_chain FROM envelope LIMIT 1", "an id again"),
        ("INSERT OR REPLACE INTO envelope SELECT 1 + (SELECT max(pos) FROM envelope), session, seq, id, bytes, commitment, leaf, chain, store_chain FROM envelope LIMIT 1", "an id taken over"),
        ("INSERT INTO event SELECT session, 99, pos, type, agent, role, task, thread, tool, kind, performative, correlation, state_key, sensitivity, parent, answers, ts, at, flags FROM event LIMIT 1", "a gap in seq"),
        ("INSERT INTO event SELECT session, 0, pos, type, agent, role, task, thread, tool, kind, performative, correlation, state_key, sensitivity, parent, answers, ts, at, flags FROM event LIMIT 1", "an event in front"),
        ("INSERT OR REPLACE INTO session SELECT 99, name, folded, tenant, base FROM session LIMIT 1", "a session id taken over"),
        ("INSERT OR REPLACE INTO session SELECT 99, upper(name) || 'x', folded, tenant, base FROM session LIMIT 1", "one that differs by case"),
        ("INSERT OR REPLACE INTO store VALUES (1, randomblob(16))", "another identity"),
    ],
    ids=lambda value: value if " INTO " not in value else "",
)  # fmt: skip
def test_an_insert_that_would_take_a_place_is_refused(closed, rows, statement, what):
    """A number or id is given once, and numbers have no gaps."""
    before = rows()
    for recursive in ("OFF", "ON"):
        (_, answer) = foreign(closed, f"PRAGMA recursive_triggers = {recursive}", statement)
        assert answer is not None, what
        assert "append-only" in answer[1]
    assert rows() == before


def test_a_payload_can_be_wiped_and_then_deleted(closed):
    """Zeros of the same length are the one change there is, and only what was wiped can be deleted."""
    said = foreign(
        closed,
        "UPDATE payload SET sealed = zeroblob(length(sealed) - 1) WHERE pos = 3",
        "UPDATE payload SET sealed = zeroblob(length(sealed)), slot = 0 WHERE pos = 3",
        "UPDATE payload SET sealed = zeroblob(length(sealed)), pos = 99 WHERE pos = 3",
        "DELETE FROM payload WHERE pos = 3",
        "UPDATE payload SET sealed = zeroblob(length(sealed)) WHERE pos = 3",
        "DELETE FROM payload WHERE pos = 3",
    )
    assert [answer is None for answer in said] == [False, False, False, False, True, True]


def test_a_blob_is_wiped_chunk_by_chunk_and_then_forgotten(closed):
    """A chunk is deleted only when wiped, and a blob only when its chunks are gone."""
    said = foreign(
        closed,
        "DELETE FROM blob",
        "DELETE FROM chunk",
        "UPDATE chunk SET sealed = zeroblob(length(sealed))",
        "DELETE FROM blob",
        "DELETE FROM chunk",
        "DELETE FROM blob",
    )
    assert [answer is None for answer in said] == [False, False, True, False, True, True]


def test_our_own_connection_is_held_to_the_same(log):
    """The guard is in the file, not in the client: convlog itself cannot change an event either."""
    log.session("s").message("x", agent="a")
    for statement in ("UPDATE event SET agent = 1", "DELETE FROM envelope", "DELETE FROM session"):
        with pytest.raises(StoreCorrupt) as raised, log._store.database.write() as connection:
            connection.execute(statement)
        assert "append-only" in str(raised.value.__cause__)
    assert list(log.verify()) == []


def test_the_newest_event_cannot_be_deleted(closed):
    """No number is given twice: the last row stays, so the next one is behind it."""
    assert foreign(closed, "DELETE FROM envelope WHERE pos = (SELECT max(pos) FROM envelope)")[0] is not None
    assert foreign(closed, "DELETE FROM slot WHERE number = (SELECT max(number) FROM slot)")[0] is not None
