"""Tenancy: what a handle that is bound to a tenant may not do, because it is about the whole store.

To such a handle the sessions of other tenants, and those of none, do not exist: its reader and its writer see to
that. What is left is refused here, by name. In one process, and on one account, this is discipline, not a wall.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from convlog_sqlite.drafts import check_name
from convlog_sqlite.errors import NotAuthorized, UnknownReference

VARIABLE: Final = "CONVLOG_TENANT"


class Bound(Protocol):
    """What may be bound to a tenant; None: it is not, and has the whole store."""

    tenant: str | None


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Holder = TypeVar("Holder", bound=Bound)


def bound_to(tenant: str | None) -> str | None:
    """The tenant that was given, else that of the environment. Raises InvalidEvent for what is no name."""
    given = os.environ.get(VARIABLE) if tenant is None else tenant
    if given is not None:
        check_name(given, "/tenant")  # an empty variable too: it may have been meant to name one
    return given


def require_whole_store(tenant: str | None, act: str) -> None:
    """Refuse to a tenant what is about the whole store. Raises NotAuthorized."""
    if tenant is not None:
        raise NotAuthorized(
            f"tenant {tenant}", f"{act} is about the whole store; open it without a tenant for that"
        )


def require_own(tenant: str | None, named: str | None) -> str | None:
    """The tenant of a session that is named with one. Raises UnknownReference for another than the handle's."""
    if tenant is None:
        return named
    if named not in (None, tenant):
        raise UnknownReference("tenant", str(named))
    return tenant


def whole_store(
    method: Callable[Concatenate[Holder, Parameters], Result],
) -> Callable[Concatenate[Holder, Parameters], Result]:
    """A method that is refused on a handle that is bound to a tenant: raises NotAuthorized there."""

    @wraps(method)
    def of_the_whole_store(holder: Holder, /, *given: Parameters.args, **keys: Parameters.kwargs) -> Result:
        require_whole_store(holder.tenant, method.__name__)
        return method(holder, *given, **keys)

    return of_the_whole_store
