"""Interned names: agents, roles, tasks, threads, tools, kinds and recipients as small integers.

Owns the table `name`. Names are given by callers, are content-free and stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from convlog_sqlite.database import Connection, value

SELECT_NAME: Final = "SELECT id FROM name WHERE text = ?"
SELECT_NEWEST: Final = "SELECT max(id) FROM name"
SELECT_TEXT: Final = "SELECT text FROM name WHERE id = ?"
INSERT_NAME: Final = "INSERT INTO name (text) VALUES (?) RETURNING id"

_REMEMBERED: Final = 16_384
_REMEMBERED_TOGETHER: Final = 4096
_NONE: Final[Mapping[Any, Any]] = MappingProxyType({})


class Names:
    """Ids of names, remembered per handle. An id never changes and no name is deleted.

    `known` are those remembered so far, `together` the ids of names that stand in one event: agents say
    many things in one role, task and thread. To look there first saves calls.
    """

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.together: dict[tuple[str | None, ...], tuple[int | None, ...]] = {}

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

    def newest(self, connection: Connection) -> int:
        """A number that grows with every new name: whoever looked names up before it grew knew fewer."""
        number: int | None = value(connection, SELECT_NEWEST)
        return number or 0

    def intern(self, connection: Connection, text: str, fresh: dict[str, int]) -> int:
        """The id of a name, made if needed. New ids go to `fresh`: they count once the transaction committed."""
        found = self.known.get(text) or fresh.get(text)
        if found is None:
            known: int | None = value(connection, SELECT_NAME, (text,))
            found = known if known is not None else value(connection, INSERT_NAME, (text,))
            fresh[text] = found
        return found

    def remember(
        self, ids: dict[str, int], together: Mapping[tuple[str | None, ...], tuple[int | None, ...]] = _NONE
    ) -> None:
        """Keep ids that are committed. The memory is bounded: when full, it starts again."""
        if len(self.known) > _REMEMBERED:
            self.known.clear()
        if len(self.together) > _REMEMBERED_TOGETHER:
            self.together.clear()
        self.known.update(ids)
        self.together.update(together)
