"""Erasures that the keystore knows of and this database does not, as after an older database was restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from convlog_sqlite.database import fetch
from convlog_sqlite.events import Erased
from convlog_sqlite.store.reader import Reader

SELECT_UNERASED: Final = """
SELECT p.pos, v.id, p.slot FROM payload AS p CROSS JOIN envelope AS v ON v.pos = p.pos
WHERE p.pos > ? AND NOT EXISTS (SELECT 1 FROM tombstone AS t WHERE t.pos = p.pos) ORDER BY p.pos LIMIT 1000"""


def unrecorded(reader: Reader) -> Iterator[tuple[bytes, str]]:
    """(id, reason) of each event whose slot holds the record of an erasure, and which has no tombstone."""
    after = 0
    while True:
        with reader.database.read() as connection:
            rows = fetch(connection, SELECT_UNERASED, (after,))
        if not rows:
            return
        answers = reader.opener.keystore.read([slot for *_, slot in rows])
        for (_, event_id, _), answer in zip(rows, answers, strict=True):
            if isinstance(answer, Erased):
                yield event_id, answer.reason
        after = rows[-1][0]
