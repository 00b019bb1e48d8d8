"""The floor: SQLite through apsw, with the rows that convlog writes.

What convlog takes beyond it is the price of sealing, chaining, keys, checks and Python. The tables are
convlog's own, made by its migrations, with their triggers; the connection has convlog's settings; the
transactions have the same kind. The rows are copies of those of one real event, made before the clock
runs: numbers, ids and names differ, sizes do not. The payload is plain. Nothing is looked up first, no
gate is taken, no key is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from benchmarks.contender import PAGE, SESSION, Contender
from benchmarks.convlog import draft
from benchmarks.workload import Message, Workload
from convlog_sqlite import ConversationLog
from convlog_sqlite.database import BEGIN_WRITE, COMMIT, DURABILITIES, Connection, connect, fetch
from convlog_sqlite.instants import new_event_id

TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
COLUMNS: Final = "SELECT name FROM pragma_table_info(?)"
INSERT_NAME: Final = "INSERT OR IGNORE INTO name (text) VALUES (?)"
NAMES: Final = "SELECT text, id FROM name"
HEAD: Final = """
SELECT e.pos, e.session, e.seq, s.number FROM event AS e CROSS JOIN slot AS s ON s.pos = e.pos
ORDER BY e.pos DESC LIMIT 1"""
TAIL: Final = """
SELECT v.bytes, p.sealed
FROM (SELECT pos FROM event WHERE session = ? ORDER BY seq DESC LIMIT ?) AS e
CROSS JOIN envelope AS v ON v.pos = e.pos CROSS JOIN payload AS p ON p.pos = e.pos"""
READ: Final = """
SELECT v.bytes, p.sealed, e.seq
FROM (SELECT seq, pos FROM event WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?) AS e
CROSS JOIN envelope AS v ON v.pos = e.pos CROSS JOIN payload AS p ON p.pos = e.pos"""

_NAME_COLUMNS: Final = frozenset({"agent", "task", "thread", "name"})

Rows = list[tuple[str, list[tuple[Any, ...]]]]
"""For each table, its INSERT and the rows."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The rows of one real event in one table."""

    insert: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class Floor(Contender):
    """SQLite alone."""

    name = "floor"

    def __init__(self, directory: Path, durability: str, workload: Workload) -> None:
        self._message = workload.message(0)
        with ConversationLog.init(directory, mirror=False) as log:
            event = log.session(SESSION).append(draft(self._message))
        payload = orjson.dumps({"body": event.body})
        synchronous = DURABILITIES[durability]
        self._connection = connect(str(directory / "log.db"), synchronous=synchronous)
        for text in workload.names():
            self._connection.execute(INSERT_NAME, (text,))
        self._names: dict[str, int] = dict(fetch(self._connection, NAMES))
        self._pos, self._session, self._seq, self._slot = fetch(self._connection, HEAD)[0]
        self._patterns = list(_patterns(self._connection, self._pos, self._session, self._seq))
        sealed = next(found for found in self._patterns if "sealed" in found.columns)
        self._padding = bytes(len(sealed.rows[0][sealed.columns.index("sealed")]) - len(payload))

    def prepare(self, messages: Sequence[Message]) -> Rows:
        prepared: Rows = [(pattern.insert, []) for pattern in self._patterns]
        for message in messages:
            self._pos, self._seq, self._slot = self._pos + 1, self._seq + 1, self._slot + 1
            replaced: dict[str, Any] = {"pos": self._pos, "seq": self._seq, "slot": self._slot}
            replaced |= {"number": self._slot, "id": new_event_id(time.time_ns())}
            replaced["sealed"] = self._padding + b'{"body":' + orjson.dumps(message.body) + b"}"
            names = self._renamed(message)
            for pattern, (_, rows) in zip(self._patterns, prepared, strict=True):
                rows.extend(_copies(pattern, replaced, names))
        return prepared

    def _renamed(self, message: Message) -> dict[int, int]:
        return {
            self._names[getattr(self._message, key)]: self._names[getattr(message, key)]
            for key in ("agent", "to", "thread", "task")
        }

    def append(self, prepared: Rows) -> None:
        execute = self._connection.execute
        execute(BEGIN_WRITE)
        for insert, rows in prepared:
            for row in rows:
                execute(insert, row)
        execute(COMMIT)

    def append_many(self, prepared: Rows) -> None:
        self._connection.execute(BEGIN_WRITE)
        for insert, rows in prepared:
            self._connection.executemany(insert, rows)
        self._connection.execute(COMMIT)

    def tail(self, count: int) -> int:
        skipped = len(self._padding)
        rows = fetch(self._connection, TAIL, (self._session, count))
        events = [(orjson.loads(envelope), orjson.loads(sealed[skipped:])) for envelope, sealed in rows]
        events.reverse()
        return len(events)

    def export(self, file: BinaryIO) -> int:
        skipped, after, count = len(self._padding) + 1, 0, 0
        while rows := fetch(self._connection, READ, (self._session, after, PAGE)):
            file.writelines(envelope[:-1] + b"," + sealed[skipped:] + b"\n" for envelope, sealed, _ in rows)
            after, count = rows[-1][2], count + len(rows)
        return count

    def close(self) -> None:
        self._connection.close()


def _patterns(connection: Connection, pos: int, session: int, seq: int) -> Iterable[_Pattern]:
    """The rows of the event at `pos`, whatever tables they are in."""
    for (table,) in fetch(connection, TABLES):
        columns = tuple(name for (name,) in fetch(connection, COLUMNS, (table,)))
        if {"session", "seq"} <= set(columns):
            rows = fetch(connection, f"SELECT * FROM {table} WHERE session = ? AND seq = ?", (session, seq))
        elif "pos" in columns:
            rows = fetch(connection, f"SELECT * FROM {table} WHERE pos = ?", (pos,))
        else:
            continue
        if rows:
            marks = ", ".join("?" * len(columns))
            yield _Pattern(f"INSERT INTO {table} VALUES ({marks})", columns, rows)


def _copies(pattern: _Pattern, replaced: dict[str, Any], names: dict[int, int]) -> Iterable[tuple[Any, ...]]:
    for row in pattern.rows:
        yield tuple(
            names.get(item, item) if column in _NAME_COLUMNS else replaced.get(column, item)
            for column, item in zip(pattern.columns, row, strict=True)
        )
