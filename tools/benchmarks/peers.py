"""Other packages that keep messages in a file, each through its own interface, and a plain file.

`command` imports this module for `--peers` only: the packages are in `peers.txt`, not among convlog's. Where a
choice is to be made it is made for the other: what it does not ask for is not written, and JSON that it
leaves to its caller is made by orjson.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

import orjson
from agents.extensions.memory import EncryptedSession
from agents.memory import SQLiteSession
from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import (
    SQLiteApplicationRecorder,
    SQLiteConnection,
    SQLiteConnectionPool,
    SQLiteDatastore,
)
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from benchmarks.contender import APPEND, APPEND_MANY, FILL_BATCH, SESSION, TAIL, Contender
from benchmarks.workload import Message, Workload
from convlog_sqlite.database import DURABILITIES

PACKAGES: Final = ("openai-agents", "eventsourcing", "langgraph-checkpoint-sqlite", "langgraph-checkpoint")
NOTES: Final = (
    (
        "Others, all: the same bodies, one session, WAL, `synchronous` as above; each database is in a directory of its "
        "own on the same disk, and its turn comes in every round. All but the two sessions also write agent, recipient, "
        "thread and task, as JSON; those take role and content. They use the interpreter's SQLite, convlog apsw's."
    ),
    (
        "`SQLiteSession`, `EncryptedSession` (Fernet, over a `SQLiteSession`): asynchronous only. The clock starts and "
        "stops inside one running event loop, around the awaited `add_items` or `get_items`; the hop to a thread is "
        "theirs. They have no setting for `synchronous`: a subclass sets it when a connection is configured. The "
        "encrypted one's time to live is a day instead of ten minutes, so that nothing expires during the run."
    ),
    (
        "`eventsourcing`: `SQLiteApplicationRecorder.insert_events` and `select_events`, the state made and read by "
        "orjson within the time; no cipher, no mapper. A subclass of its pool sets `synchronous` on new connections."
    ),
    (
        "`langgraph-checkpoint-sqlite`: one `SqliteSaver.put` a message, of a checkpoint whose one channel holds that "
        "message alone. A graph's checkpoint holds its whole state, so this is the least that a step can write. The tail "
        "is `list(limit=20)`. It has no call for several checkpoints. `synchronous` is set on the connection handed to it."
    ),
    (
        "JSONL: flock, one `write`, `fsync`, unlock for each append (of one or of 100). Its tail is read twice: from the "
        "end in Python, parsed; and by `tail -n 20 FILE | jq -c .`, two processes below a shell, whose output is read."
    ),
)
_DAY_SECONDS: Final = 86_400
_KEY: Final = "a secret of 32 bytes or more that protects nothing at all"
_TOPIC: Final = "benchmarks.workload:Message"
_BLOCK: Final = 32_768  # bytes that hold 20 lines


class AgentsSqlite(Contender):
    """OpenAI Agents: a session in SQLite, not sealed."""

    name = "OpenAI Agents SQLiteSession"
    takes_part = frozenset({APPEND, APPEND_MANY, TAIL})
    peer = True

    def __init__(self, directory: Path, durability: str, workload: Workload) -> None:
        del workload
        directory.mkdir()
        synchronous = DURABILITIES[durability]

        class Session(SQLiteSession):
            @staticmethod
            def _configure_connection(conn: sqlite3.Connection) -> None:
                SQLiteSession._configure_connection(conn)  # noqa: SLF001 there is no other place for it
                conn.execute(f"PRAGMA synchronous = {synchronous}")

        self.runner = asyncio.Runner()
        self._stored = Session(SESSION, directory / "log.db")
        self.session: Any = self._stored

    def prepare(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        return [{"role": "user", "content": message.body} for message in messages]

    async def append(self, prepared: list[dict[str, str]]) -> None:
        await self.session.add_items(prepared)

    async def append_many(self, prepared: list[dict[str, str]]) -> None:
        await self.session.add_items(prepared)

    async def tail(self, count: int) -> int:
        return len(await self.session.get_items(count))

    def close(self) -> None:
        self._stored.close()
        self.runner.close()

    def fill(self, workload: Workload, count: int) -> None:
        for start in range(0, count, FILL_BATCH):
            messages = workload.batch(start, min(FILL_BATCH, count - start))
            self.runner.run(self.append_many(self.prepare(messages)))


class AgentsEncrypted(AgentsSqlite):
    """OpenAI Agents: the same, each item sealed by Fernet under one key for the session."""

    name = "OpenAI Agents EncryptedSession"

    def __init__(self, directory: Path, durability: str, workload: Workload) -> None:
        super().__init__(directory, durability, workload)
        self.session = EncryptedSession(SESSION, self._stored, _KEY, ttl=_DAY_SECONDS)


class Eventsourcing(Contender):
    """eventsourcing: its recorder, one aggregate."""

    name = "eventsourcing, SQLite recorder"
    takes_part = frozenset({APPEND, APPEND_MANY, TAIL})
    peer = True

    def __init__(self, directory: Path, durability: str, workload: Workload) -> None:
        del workload
        directory.mkdir()
        synchronous = DURABILITIES[durability]

        class Pool(SQLiteConnectionPool):
            def _create_connection(self) -> SQLiteConnection:
                connection = super()._create_connection()
                connection.cursor().execute(f"PRAGMA synchronous = {synchronous}")
                return connection

        path = str(directory / "log.db")
        self._datastore = SQLiteDatastore(path)
        self._datastore.pool = Pool(db_name=path)
        self._recorder = SQLiteApplicationRecorder(self._datastore)
        self._recorder.create_table()
        self._aggregate, self._version = uuid5(NAMESPACE_URL, SESSION), 0

    def prepare(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        return [asdict(message) for message in messages]

    def append(self, prepared: list[dict[str, str]]) -> None:
        self.append_many(prepared)

    def append_many(self, prepared: list[dict[str, str]]) -> None:
        first = self._version + 1
        self._version += len(prepared)
        self._recorder.insert_events(
            [
                StoredEvent(self._aggregate, version, _TOPIC, orjson.dumps(state))
                for version, state in enumerate(prepared, first)
            ]
        )

    def tail(self, count: int) -> int:
        stored = self._recorder.select_events(self._aggregate, desc=True, limit=count)
        return len([orjson.loads(event.state) for event in reversed(stored)])

    def close(self) -> None:
        self._datastore.close()


class Langgraph(Contender):
    """langgraph-checkpoint-sqlite: a checkpoint for each message."""

    name = "langgraph-checkpoint-sqlite, a put"
    takes_part = frozenset({APPEND, TAIL})
    peer = True

    def __init__(self, directory: Path, durability: str, workload: Workload) -> None:
        del workload
        directory.mkdir()
        self._synchronous = DURABILITIES[durability]
        self._connection = sqlite3.connect(directory / "log.db", check_same_thread=False)
        self._saver = SqliteSaver(self._connection)
        self._saver.setup()
        self._set_synchronous(self._synchronous)
        self._thread: dict[str, Any] = {"configurable": {"thread_id": SESSION, "checkpoint_ns": ""}}
        self._last, self._step, self._version = self._thread, 0, self._saver.get_next_version(None, None)

    def _set_synchronous(self, synchronous: str) -> None:
        self._connection.execute(f"PRAGMA synchronous = {synchronous}")

    def prepare(self, messages: Sequence[Message]) -> list[tuple[Any, Any, Any]]:
        prepared = []
        for message in messages:
            self._step += 1
            self._version = self._saver.get_next_version(self._version, None)
            versions = {"messages": self._version}
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": [asdict(message)]}
            checkpoint["channel_versions"] = versions
            prepared.append((checkpoint, {"source": "loop", "step": self._step, "parents": {}}, versions))
        return prepared

    def append(self, prepared: list[tuple[Any, Any, Any]]) -> None:
        checkpoint, metadata, versions = prepared[0]
        self._last = self._saver.put(self._last, checkpoint, metadata, versions)

    def append_many(self, prepared: list[tuple[Any, Any, Any]]) -> None:
        for one in prepared:
            self.append([one])

    def tail(self, count: int) -> int:
        return len(list(self._saver.list(self._thread, limit=count)))

    def close(self) -> None:
        self._connection.close()

    def fill(self, workload: Workload, count: int) -> None:
        self._set_synchronous("OFF")  # a commit for each, and none of it measured
        super().fill(workload, count)
        self._set_synchronous(self._synchronous)


class JsonLines(Contender):
    """A file to which lines are appended under a lock."""

    name = "JSONL: flock, write, fsync; read in Python"
    takes_part = frozenset({APPEND, APPEND_MANY, TAIL})
    peer = True

    def __init__(self, directory: Path, durability: str, workload: Workload) -> None:
        del workload
        directory.mkdir()
        self.path = directory / "log.jsonl"
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._synced = durability == "full"

    def prepare(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        return [asdict(message) for message in messages]

    def append(self, prepared: list[dict[str, str]]) -> None:
        self.append_many(prepared)

    def append_many(self, prepared: list[dict[str, str]]) -> None:
        lines = b"".join(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in prepared)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            if os.write(self._descriptor, lines) != len(lines):
                raise AssertionError("a short write")
            if self._synced:
                os.fsync(self._descriptor)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def tail(self, count: int) -> int:
        end = os.fstat(self._descriptor).st_size
        start, found = end, b""
        while start and found.count(b"\n") <= count:
            before, start = start, max(0, start - _BLOCK)
            found = os.pread(self._descriptor, before - start, start) + found
        return len([orjson.loads(line) for line in found.splitlines()[-count:]])

    def close(self) -> None:
        os.close(self._descriptor)


class TailAndJq(JsonLines):
    """The same file as a person reads it."""

    name = "JSONL: tail and jq"
    takes_part = frozenset({TAIL})
    fewer_tails = 10

    def tail(self, count: int) -> int:
        command = f"tail -n {count} {shlex.quote(str(self.path))} | jq -c ."
        said = subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.PIPE).stdout
        return said.count(b"\n")


def contenders() -> list[type[Contender]]:
    """Everybody who can be measured here."""
    found = [AgentsSqlite, AgentsEncrypted, Eventsourcing, Langgraph, JsonLines]
    return [*found, TailAndJq] if shutil.which("jq") else found
