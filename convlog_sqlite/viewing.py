"""The views of a log: defining them, and reading a session through one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from convlog_sqlite.database import Connection
from convlog_sqlite.drafts import Draft, check_name
from convlog_sqlite.errors import InvalidEvent, UnknownReference
from convlog_sqlite.store import listening, opening, reserved, roles
from convlog_sqlite.store.listening import Heard, Watch
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.sessions import SessionRow
from convlog_sqlite.store.tenures import Tenures
from convlog_sqlite.tenancy import whole_store
from convlog_sqlite.vocabulary import LAST_SEQ, agent_key

if TYPE_CHECKING:
    from convlog_sqlite.projections.standing import Projections
    from convlog_sqlite.views.defining import Views
    from convlog_sqlite.views.definition import View
    from convlog_sqlite.views.slices import Slice

_REMEMBERED: Final = 256  # sessions


class Viewing(ABC):
    """The part of a log that shows a reader what is valid for it. `ConversationLog` is one."""

    reader: Reader
    tenant: str | None
    _whole: Reader
    _store: opening.Store

    @property
    @abstractmethod
    def _projections(self) -> Projections: ...

    @abstractmethod
    def _record(self, draft: Draft, *, change: Callable[[Connection], None] | None = None) -> None: ...

    @whole_store
    def define_view(self, view: View, *, by: str) -> View:
        """Let a view stand from now on, in place of one with the same name; with its version.

        Earlier versions are kept: `name@version` reads through one. Raises InvalidEvent with a pointer to the
        place in the definition, StoreError.
        """
        from convlog_sqlite.views import defining  # noqa: PLC0415 a log may be read through no view
        from convlog_sqlite.views.definition import VIEW_KEY, View  # noqa: PLC0415 as above

        if not isinstance(view, View):
            raise InvalidEvent("/view", "a View")
        check_name(by, "/by")
        view.check_definable()
        state_key = VIEW_KEY.format(name=view.name)
        draft = Draft(
            type="mutation", agent=by, kind=defining.DEFINED, state_key=state_key, value=view.to_stored(),
        )  # fmt: skip
        version: list[int] = []
        self._record(draft, change=lambda found: version.append(reserved.times_set(found, state_key) + 1))
        return View.from_stored(view.to_stored(), version[0])

    def views(self) -> list[View]:
        """The views that stand, by name: those that ship with convlog, and those of the store; of a tenant's, its own."""
        return [view for _, view in sorted(self._views(self.tenant).standing.items())]

    def view(self, name: str) -> View:
        """The view that stands under a name, or a version of it: `worker@2`. Raises UnknownReference."""
        return self._views(self.tenant).find(name)

    def through(
        self,
        session: str,
        view: View | str | None,
        *,
        reader: str | None,
        role: str | None,
        purpose: str | None,
        upto: int = LAST_SEQ,
        tenant: str | None = None,
    ) -> Slice:
        """What `Session.through` gives, as of seq `upto`. `tenant` is that of a session that does not exist yet."""
        who: Any = {"reader": reader, "role": role, "purpose": purpose}
        return self._slice_of(self.reader, session, view, upto=upto, tenant=tenant, **who)

    def _slice_of(
        self,
        source: Reader,
        session: str,
        view: View | str | None,
        *,
        reader: str | None,
        role: str | None,
        purpose: str | None,
        upto: int = LAST_SEQ,
        tenant: str | None = None,
    ) -> Slice:
        """What `through` gives, of what `source` reads and of the views that its tenant knows."""
        from convlog_sqlite.views import defining  # noqa: PLC0415 a log may be read through no view
        from convlog_sqlite.views.definition import View  # noqa: PLC0415 as above
        from convlog_sqlite.views.slices import Slice, Through  # noqa: PLC0415 as above

        for pointer, name in (("/reader", reader), ("/role", role), ("/purpose", purpose)):
            if name is not None:
                check_name(name, pointer)
        with self._store.database.read() as connection:
            row = source.row(connection, session)
            # What the store grants holds also where nothing was appended yet.
            place = row or SessionRow(0, session, None, 0)
            held = [] if reader is None else roles.roles_of(connection, place, reader)
        here = tenant if row is None else row.tenant
        if view is None and reader is not None:
            known = self._views(source.tenant).within(here)
            view = defining.default_view(known.standing, reader, held, role)
        elif isinstance(view, str):
            views = self._views(source.tenant)
            view = views.within(here).get(view) or views.find(view)
        elif isinstance(view, View):
            view.check()  # one that nobody defined may say anything
        else:
            raise InvalidEvent("/view", "name a view, or the agent that reads")
        if view.tenant is not None and row is not None and row.tenant != view.tenant:
            raise UnknownReference("session", session)
        wanted = view.purpose if purpose is None else purpose
        tenures = self._tenures_of(session, upto)
        found = Through(view, reader, role, wanted, upto, tenures)
        return Slice(source, session, found, self._projections.find)

    def recall_of(self, connection: Connection, session: SessionRow, agent: str) -> Heard | None:
        """What the log knows that an agent had heard, None where it knows of none: see `store.listening`.

        Asked inside the append that rests on it.
        """

        def watch(label: str, role: str | None, purpose: str | None) -> Watch:
            # Whatever views the handle knows: what an agent is to hear does not hang on who appends for it.
            return self._slice_of(self._whole, session.name, label, reader=agent, role=role, purpose=purpose)

        found = listening.recall(
            connection, session, agent, lambda said: watch(said.label, said.role, said.purpose)
        )
        if found is not None:
            return found
        part = listening.part_of(connection, session, agent_key(agent))
        if part is None or not part.is_there:
            return None
        own = listening.last_own(connection, session, agent)
        cause, shown = None if own is None else own[1], watch(part.view, part.role, None)
        return Heard(agent, part.view, 0, None, (), 0, cause, shown)

    def _views(self, tenant: str | None) -> Views:
        from convlog_sqlite.views import defining  # noqa: PLC0415 a log may be read through no view

        return defining.read(self._whole, tenant)

    @cached_property
    def _remembered(self) -> OrderedDict[str, Tenures]:
        return OrderedDict()

    def _tenures_of(self, session: str, upto: int) -> Tenures:
        """Who has which task, as it was read before; of an earlier time it is read anew."""
        if upto < LAST_SEQ:
            return Tenures()
        found = self._remembered.pop(session, None) or Tenures()
        self._remembered[session] = found
        while len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return found
