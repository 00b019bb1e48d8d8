"""Where a draft will stand, as the rules see it that judge it there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from convlog_sqlite.database import Connection
from convlog_sqlite.store.reading import Opener
from convlog_sqlite.store.sessions import SessionRow


@dataclass(frozen=True, slots=True)
class Place:
    """Where a draft will stand. `microseconds` is the clock; `number` gives the number of a name."""

    connection: Connection
    session: SessionRow
    pos: int
    seq: int
    event_id: bytes
    microseconds: int
    number: Callable[[str], int]
    opener: Opener
