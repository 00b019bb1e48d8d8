"""What a view means for one reader in one session: the tasks it has, those they wait for, the roles it holds.

A task is a reader's own when the newest mutation that says who has it names the reader: a claim its author, an
assignment its recipients; a release, or a task created anew, nobody. Which kinds say so stands in `task_kind`.
Only those mutations are read, and only once: `Tenures` goes on from where it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection, fetch, value
from convlog_sqlite.store.reading import SELECT_HEAD
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.vocabulary import LAST_SEQ, unescaped

SELECT_TENURES: Final = """
SELECT p.seq, k.status, t.text, a.text, v.bytes
FROM task_kind AS k CROSS JOIN name AS w ON w.text = k.kind
CROSS JOIN posting AS p ON p.session = ?1 AND p.facet = 6 AND p.name = w.id AND p.seq > ?2 AND p.seq <= ?3
CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq CROSS JOIN name AS t ON t.id = e.task
CROSS JOIN name AS a ON a.id = e.agent CROSS JOIN envelope AS v ON v.pos = e.pos
WHERE k.status IN ('created', 'assigned', 'claimed')
UNION ALL SELECT p.seq, 'depends', s.text, NULL, NULL
FROM name AS w CROSS JOIN posting AS p ON p.session = ?1 AND p.facet = 6 AND p.name = w.id AND p.seq > ?2 AND p.seq <= ?3
CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq CROSS JOIN name AS s ON s.id = e.state_key
WHERE w.text = 'task-depends'
ORDER BY 1"""

# The same of some new events, whatever their kinds.
SELECT_NEW_TENURES: Final = """
SELECT e.seq, coalesce(k.status, 'depends'), coalesce(t.text, s.text), a.text, v.bytes
FROM event AS e CROSS JOIN name AS w ON w.id = e.kind LEFT JOIN task_kind AS k ON k.kind = w.text
CROSS JOIN name AS a ON a.id = e.agent CROSS JOIN envelope AS v ON v.pos = e.pos
LEFT JOIN name AS t ON t.id = e.task AND k.status IS NOT NULL LEFT JOIN name AS s ON s.id = e.state_key
WHERE e.session = ?1 AND e.seq > ?2 AND e.seq <= ?3
AND (k.status IN ('created', 'assigned', 'claimed') AND t.id IS NOT NULL OR w.text = 'task-depends' AND s.id IS NOT NULL)
ORDER BY e.seq"""

_FEW: Final = 500


@dataclass(slots=True)
class Tenures:
    """Who has which task of a session, and which task waits for which, up to `seq`. Safe to use from several threads."""

    seq: int = 0
    _holders: dict[str, frozenset[str]] = field(default_factory=dict)
    _tasks: dict[str, set[str]] = field(default_factory=dict)
    _waits: dict[str, set[str]] = field(default_factory=dict)
    _threads: threading.Lock = field(default_factory=threading.Lock)

    def advance(self, connection: Connection, session: SessionRow, upto: int = LAST_SEQ) -> None:
        """Take up what was appended since, up to seq `upto`."""
        with self._threads:
            self._advance(connection, session, upto)

    def copied(self) -> Tenures:
        """The same, apart: to go on inside a transaction that may yet be rolled back."""
        with self._threads:
            tasks = {reader: set(tasks) for reader, tasks in self._tasks.items()}
            waits = {task: set(on) for task, on in self._waits.items()}
            return Tenures(self.seq, dict(self._holders), tasks, waits)

    def of(self, reader: str) -> frozenset[str]:
        """The tasks that a reader has."""
        with self._threads:
            return frozenset(self._tasks.get(reader, ()))

    def awaited(self, tasks: Iterable[str]) -> frozenset[str]:
        """The tasks that these wait for."""
        with self._threads:
            return frozenset(on for task in tasks for on in self._waits.get(task, ()))

    def _advance(self, connection: Connection, session: SessionRow, upto: int) -> None:
        for part in reversed(session.line):
            after = max(self.seq, part.after)
            if after >= min(part.upto, upto):
                continue
            head = value(connection, SELECT_HEAD, (part.number,)) or part.after
            end = min(part.upto, upto, head)
            if after >= end:
                continue
            sql = SELECT_NEW_TENURES if end - after <= _FEW else SELECT_TENURES
            for _, status, text, agent, envelope in fetch(connection, sql, (part.number, after, end)):
                if status == "depends":
                    self._depend(text)
                elif status == "claimed":
                    self._give(text, (agent,))
                else:
                    to = strictjson.load(envelope).get("to", ()) if status == "assigned" else ()
                    self._give(text, to)
            self.seq = end

    def _give(self, task: str, holders: Iterable[str]) -> None:
        for before in self._holders.get(task, ()):
            self._tasks[before].discard(task)
        self._holders[task] = frozenset(holders)
        for holder in self._holders[task]:
            self._tasks.setdefault(holder, set()).add(task)

    def _depend(self, state_key: str) -> None:
        parts = state_key.split("/")
        if len(parts) == 3 and parts[0] == "depends":
            self._waits.setdefault(unescaped(parts[1]), set()).add(unescaped(parts[2]))
