"""State of a session: which projections there are, and asking for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from convlog_sqlite.database import Connection
from convlog_sqlite.drafts import Draft, check_name, validate
from convlog_sqlite.errors import InvalidEvent
from convlog_sqlite.events import Event
from convlog_sqlite.projections.projection import Projection
from convlog_sqlite.projections.tasks import STATUSES
from convlog_sqlite.store import folding, opening
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.snapshots import Snapshots
from convlog_sqlite.tenancy import whole_store
from convlog_sqlite.vocabulary import escaped

if TYPE_CHECKING:
    from convlog_sqlite.projections.standing import Projections

DEFAULT: Final = "state"


class Projecting(ABC):
    """The part of a log that computes states. `ConversationLog` is one."""

    tenant: str | None
    reader: Reader
    _store: opening.Store
    _takes_in: Callable[[str, Sequence[Event]], None] | None

    @abstractmethod
    def _record(self, draft: Draft, *, change: Callable[[Connection], None] | None = None) -> None: ...

    @cached_property
    def _projections(self) -> Projections:
        from convlog_sqlite.projections.standing import Projections  # noqa: PLC0415 a log may never be asked

        store = self._store
        snapshots = Snapshots(store.database, store.keystore, self.reader.store_id)
        projections = Projections(self.reader, snapshots, store.writer)
        self._takes_in = projections.take_in
        return projections

    def projections(self) -> list[str]:
        """The names of the projections that `Session.state` knows, the registered ones included."""
        return list(self._projections.names)

    def register(self, projection: Projection) -> None:
        """Let `Session.state` know a projection by its name, in this handle; one of the same name is replaced.

        Raises InvalidEvent for the name of one of convlog's own.
        """
        self._projections.register(projection)

    def state_of(self, session: str, wanted: str | Projection, at: int | None, *, rebuild: bool) -> Any:
        """What `Session.state` gives."""
        return self._projections.state(session, wanted, at, rebuild=rebuild)

    @whole_store
    def task_kinds(self) -> dict[str, str]:
        """Which kinds of mutation say how far a task is, and which status each stands for."""
        with self._store.database.read() as connection:
            return folding.task_kinds(connection)

    @whole_store
    def set_task_kind(self, kind: str, status: str | None, *, by: str) -> None:
        """Let mutations of a kind, a harness's own, say that a task has this status; None: nothing any more.

        It holds for the whole store, for what was appended before too, and for the SQL view `tasks`. Raises
        InvalidEvent, StoreError.
        """
        check_name(by, "/by")
        if status is not None and status not in STATUSES:
            raise InvalidEvent("/status", "one of " + ", ".join(STATUSES))
        validate(Draft(type="mutation", agent=by, kind=kind))
        draft = Draft(
            type="mutation",
            agent=by,
            kind="state-set",
            state_key=f"task-kind/{escaped(kind)}",
            value={"kind": kind, "status": status},
        )
        self._record(draft, change=lambda connection: folding.set_task_kind(connection, kind, status))
