"""The views of a store: those that ship with convlog, and those that `view-defined` mutations in `_store` define.

A definition is kept for ever; the newest of a name stands. One of a shipped name stands in its place. A role's view
is the last one whose definition names the role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from convlog_sqlite import strictjson
from convlog_sqlite.errors import InvalidEvent, NotAuthorized, UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.store import reserved
from convlog_sqlite.store.blobs import WHOLE_VALUE
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.views.definition import LABEL, View
from convlog_sqlite.views.shipped import SHIPPED
from convlog_sqlite.vocabulary import STORE_SESSION

DEFINED: Final = "view-defined"


class Views(NamedTuple):
    """Every view that stands by name, in the order in which they were defined, and every version there was."""

    standing: dict[str, View]
    versions: dict[tuple[str, int], View]

    def of(self, tenant: str | None) -> Views:
        """Those that a handle bound to a tenant knows: the shipped ones, and those that are for that tenant.

        One of the same name that was defined since for somebody else takes nobody's place here.
        """
        if tenant is None:
            return self
        return _standing(
            {key: view for key, view in self.versions.items() if view.tenant == tenant or not key[1]}
        )

    def within(self, tenant: str | None) -> Views:
        """Those that a session of a tenant (None: of none) is read through: what is for other tenants is not there."""
        return _standing({key: view for key, view in self.versions.items() if view.tenant in (None, tenant)})

    def get(self, name: str) -> View | None:
        """The view `name`, or the version that `name@version` names; None where there is none."""
        # A label first: what was read or exported through a version is never shown through a view that is called so.
        said = LABEL.fullmatch(name)
        found = None if said is None else self.versions.get((said[1], int(said[2])))
        return self.standing.get(name) if found is None else found

    def find(self, name: str) -> View:
        """What `get` gives. Raises UnknownReference."""
        found = self.get(name)
        if found is None:
            raise UnknownReference("view", name)
        return found


def _standing(versions: dict[tuple[str, int], View]) -> Views:
    """Of some versions, in the order in which they were defined, those that stand."""
    standing: dict[str, View] = {}
    for (name, _), view in versions.items():
        standing.pop(name, None)
        standing[name] = view
    return Views(standing, versions)


def read(reader: Reader, tenant: str | None = None) -> Views:
    """The views as they stand; with a tenant, those that it knows: see `Views.of`. `reader` reads the whole store.

    Raises PayloadUnreadable, and InvalidEvent for one of them that this convlog does not understand.
    """
    with reader.database.read() as connection:
        rows = reserved.defined(connection, DEFINED)
    versions = {(name, 0): view for name, (view, _) in SHIPPED.items()}
    count: dict[str, int] = {}
    for event in reader.opener.events(STORE_SESSION, rows):
        said = _whole(reader, event)
        try:
            view = _defined(said, count)
        except InvalidEvent:
            if tenant is not None and not _is_for(said, tenant):
                continue  # it is not this tenant's to hear of
            raise
        versions[view.name, view.version] = view
    return _standing(versions).of(tenant)


def _whole(reader: Reader, event: Event) -> Any:
    """The definition that a mutation holds, also where the line has a preview of it."""
    said = event.require_payload()
    return strictjson.load(reader.blob(event, WHOLE_VALUE)) if "truncated" in said else said.get("value")


def _is_for(said: Any, tenant: str) -> bool:
    return isinstance(said, dict) and said.get("tenant") == tenant


def _defined(said: Any, count: dict[str, int]) -> View:
    name = said.get("name", "") if isinstance(said, dict) else ""
    count[name] = count.get(name, 0) + 1
    try:
        return View.from_stored(said, count[name])
    except InvalidEvent as refused:
        rule = f"view {name}@{count[name]} is not one that this convlog understands: {refused.rule}"
        raise InvalidEvent(refused.pointer, rule) from None


def default_view(views: Mapping[str, View], reader: str, roles: Sequence[str], role: str | None) -> View:
    """The view of a reader's role.

    Raises NotAuthorized for a reader without a role that has one, UnknownReference for a `role` that no view
    knows, InvalidEvent where several roles give several views.
    """
    if role is None and not roles:
        raise NotAuthorized(reader, "it has no role in this session, so no view is its own; name a view")
    wanted = roles if role is None else [role]
    found = {name: view for name in wanted if (view := _view_of(views, name)) is not None}
    if not found and role is not None:
        raise UnknownReference("role", role)
    if not found:
        raise NotAuthorized(reader, f"no view is that of its role {' or '.join(roles)}; name a view")
    if len({view.name for view in found.values()}) > 1:
        raise InvalidEvent("/role", f"{reader} has several roles with a view: name one of {', '.join(found)}")
    return next(iter(found.values()))


def _view_of(views: Mapping[str, View], role: str) -> View | None:
    return next((view for view in reversed(list(views.values())) if role in view.roles), None)
