"""Interned names: agents, roles, tasks, threads, tools, kinds and recipients as small integers.

Owns the table `name`. Names are given by callers, are content-free and stay.
"""

from __future__ import annotations

from typing import Final

from convlog_sqlite.database import Connection, value

SELECT_NAME: Final = "SELECT id FROM name WHERE text = ?"
SELECT_TEXT: Final = "SELECT text FROM name WHERE id = ?"
INSERT_NAME: Final = "INSERT INTO name (text) VALUES (?) RETURNING id"

_REMEMBERED: Final = 16_384


class Names:
    """Ids of names, remembered per handle. An id never changes and no name is deleted.

    `known` are those remembered so far: to look there first saves a call.
    """

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def find(self, connection: Connection, text: str) -> int | None:
        """The id of a name, or None when no event ever used it."""
        found = self.known.get(text)
        if found is None:
            known: int | None = value(connection, SELECT_NAME, (text,))
            if known is None:
                return None
            found = known
            self.remember({text: found})
        return found

    def intern(self, connection: Connection, text: str, fresh: dict[str, int]) -> int:
        """The id of a name, made if needed. New ids go to `fresh`: they count once the transaction committed."""
        found = self.known.get(text) or fresh.get(text)
        if found is None:
            known: int | None = value(connection, SELECT_NAME, (text,))
            found = known if known is not None else value(connection, INSERT_NAME, (text,))
            fresh[text] = found
        return found

    def remember(self, ids: dict[str, int]) -> None:
        """Keep ids that are committed. The memory is bounded: when full, it starts again."""
        if len(self.known) > _REMEMBERED:
            self.known.clear()
        self.known.update(ids)
