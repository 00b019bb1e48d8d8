"""What a handle remembers of its sessions from one transaction to the next, while nobody else commits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from convlog_sqlite.database import DATA_VERSION, Connection, value
from convlog_sqlite.store import listening
from convlog_sqlite.store.sessions import SessionRow

_REMEMBERED_HEADS: Final = 4096


@dataclass(slots=True)
class Heads:
    """The ends of the chains as this handle left them: (seq or pos, chain), to be read from the tables no more.

    They hold as long as nobody else commits, which SQLite's data_version tells inside the transaction, and
    as long as nothing of ours is rolled back: then they are forgotten.
    """

    version: int = -1
    moved: bool = True  # another connection committed since somebody asked, and took note
    store: tuple[int, bytes] | None = None
    sessions: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    modes: dict[int, str] = field(default_factory=dict)  # what a session asks of participants

    def refresh(self, connection: Connection) -> None:
        """Forget what another connection may have moved. Called first in each transaction."""
        version: int = value(connection, DATA_VERSION)
        if version != self.version or len(self.sessions) > _REMEMBERED_HEADS:
            self.forget()
            self.version, self.moved = version, True

    def forget(self) -> None:
        """Read the heads from the tables again."""
        self.store = None
        self.sessions.clear()
        self.modes.clear()

    def mode(self, connection: Connection, session: SessionRow) -> str:
        """What a session asks of participants: see `listening`."""
        found = self.modes.get(session.number)
        if found is None:
            found = self.modes[session.number] = listening.mode_of(connection, session)
        return found
