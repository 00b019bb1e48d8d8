"""Recollecting: the claims of all sessions of a log, and what governs them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from convlog_sqlite.database import Connection
from convlog_sqlite.drafts import Draft, check_name
from convlog_sqlite.errors import InvalidEvent, NotAuthorized, SessionRemoved, UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.projections.memories import CONFLICTING, STANDS, mark_conflicts
from convlog_sqlite.projections.projection import Projection
from convlog_sqlite.remembering import Claim, retraction
from convlog_sqlite.store import memories, opening
from convlog_sqlite.store.memories import check_scope, is_wide
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.tenancy import whole_store
from convlog_sqlite.vocabulary import CEILING_KIND, PROMOTED_KIND, SENSITIVITIES, STORE_SESSION

if TYPE_CHECKING:
    from convlog_sqlite.views.slices import Slice

_MEMORY: Final = "memory"
_AGENT: Final = "agent:"
_HELD: Final = {
    "claim": "value",
    "expires": "meta",
}  # what a claim shows of the payload, and where it stands there
_STANDING: Final = frozenset({STANDS, CONFLICTING})

Shown = dict[str, Any]


class Recollecting:
    """The part of a log that knows its memory. `ConversationLog` is one."""

    tenant: str | None
    reader: Reader
    _store: opening.Store

    @abstractmethod
    def append_drafts(self, session: str, tenant: str | None, drafts: Sequence[Draft]) -> list[Event]: ...
    @abstractmethod
    def state_of(self, session: str, wanted: str | Projection, at: int | None, *, rebuild: bool) -> Any: ...
    @abstractmethod
    def through(
        self, session: str, view: None, *, reader: str | None, role: str | None, purpose: str | None
    ) -> Slice: ...
    @abstractmethod
    def _record(self, draft: Draft, *, change: Callable[[Connection], None] | None = None) -> None: ...

    def memory(
        self,
        scope: str | None = None,
        *,
        session: str | None = None,
        reader: str | None = None,
        purpose: str | None = None,
        whole: bool = False,
    ) -> list[Claim]:
        """The claims that stand (of one scope), those in conflict too: of every session, or as one session sees them.

        With `reader`, what that agent may be shown: below the ceilings of the view that its role has, for that
        `purpose`, and no claim for another agent; where the view shows no values, the claims are `withheld`. With
        `purpose` alone, those that may be used for it. With `whole`, also what was superseded, consolidated,
        retracted or erased, or has expired. Oldest first in each session.

        Where evidence was erased and the claim was kept, `Claim.evidence` says by which redaction. Raises
        UnknownReference for a session that does not exist, NotAuthorized for a reader without a role, InvalidEvent.
        """
        if scope is not None:
            check_scope(scope, "/scope")
        if purpose is not None:
            check_name(purpose, "/purpose")
        if session is not None and self.reader.find_session(session) is None:
            raise UnknownReference("session", session)
        found = [
            shown
            for shown in self._recalled(session)
            if (scope is None or shown["scope"] == scope)
            and (whole or shown["status"] in _STANDING)
            and (purpose is None or reader is not None or purpose in shown.get("purposes", (purpose,)))
        ]
        if reader is not None:
            found = self._shown_to(reader, purpose, found, session)
        return [Claim.of(shown) for shown in found]

    def _shown_to(
        self, reader: str, purpose: str | None, found: Sequence[Shown], session: str | None
    ) -> list[Shown]:
        slices: dict[str, Slice] = {}
        refused: NotAuthorized | None = None
        named = dict.fromkeys(shown["session"] for shown in found)
        for name in named or [STORE_SESSION if session is None else session]:
            try:
                slices[name] = self.through(name, None, reader=reader, role=None, purpose=purpose)
            except NotAuthorized as error:  # it may have a role in another of them
                refused = error
        if refused is not None and not slices:
            raise refused
        return [
            seen
            for shown in found
            if shown["session"] in slices
            and shown["scope"].removeprefix(_AGENT) in (shown["scope"], reader)
            and (seen := self._seen(slices[shown["session"]], shown)) is not None
        ]

    def _seen(self, through: Slice, shown: Shown) -> Shown | None:
        """A claim as a slice may show it; None where a ceiling keeps it back."""
        event = through.admitted(self.reader.event(shown["event"]))
        if event is None:
            return None
        withheld = {key for key, place in _HELD.items() if event.withheld and place not in event.content}
        said = {key: item for key, item in shown.items() if key not in withheld}
        return said if "claim" in said or "claim" not in shown else said | {"withheld": True}

    def claim(self, event_id: str) -> Claim:
        """One claim, whatever became of it, by its event; the first 8 or more digits of the id will do.

        Raises UnknownReference, also for an event that is no claim.
        """
        event = self.reader.event(event_id)
        for shown in self._recalled(None) if event.kind == PROMOTED_KIND else ():
            if shown["event"] == event.id:
                return Claim.of(shown)
        raise UnknownReference("claim", event.id)

    def retract(self, claim: Claim | str, *, by: str) -> Event:
        """Let a claim be memory no more, in its session: see `Session.retract`."""
        event = self.reader.event(claim.id if isinstance(claim, Claim) else claim)
        return self.append_drafts(event.session, None, [retraction(event, by)])[0]

    @property
    def memory_ceiling(self) -> str:
        """How sensitive evidence may be that claims are made of; confidential, unless it was set."""
        with self._store.database.read() as connection:
            code = memories.ceiling(connection)
        return next(name for name, number in SENSITIVITIES.items() if number == code)

    @whole_store
    def set_memory_ceiling(self, sensitivity: str, *, by: str) -> None:
        """Let claims be made of evidence up to this sensitivity, from now on. What was promoted stays.

        What is restricted stays private in any case. Raises InvalidEvent, StoreError.
        """
        if sensitivity not in SENSITIVITIES:
            raise InvalidEvent("/sensitivity", "one of " + ", ".join(SENSITIVITIES))
        self._record(
            Draft(
                type="mutation",
                agent=by,
                kind=CEILING_KIND,
                state_key="memory-ceiling",
                value=sensitivity,
                sensitivity=sensitivity,  # where it is looked up without any content
            )
        )

    def _recalled(self, session: str | None) -> list[Shown]:
        """The claims of every session as the projection shows them, or those that one session sees."""
        with self._store.database.read() as connection:
            names = memories.sessions_with_claims(connection, self.reader.tenant)
            row = None if session is None else self.reader.row(connection, session)
        found: dict[str, Shown] = {}
        ended: dict[str, Shown] = {}
        for name in dict.fromkeys([*names, *([] if session is None else [session])]):
            with suppress(SessionRemoved):  # meanwhile
                for shown in self.state_of(name, _MEMORY, None, rebuild=False):
                    if is_wide(shown["scope"]) and "ended_by" in shown:
                        ended[shown["event"]] = shown  # what a fork ended is ended for all
                    if _is_seen(shown, name, session, None if row is None else row.tenant):
                        found.setdefault(shown["event"], shown)
        claims = [ended.get(event_id, shown) for event_id, shown in found.items()]
        mark_conflicts(claims, _about)
        return claims


def _is_seen(shown: Shown, name: str, session: str | None, tenant: str | None) -> bool:
    """Whether a claim that session `name` shows is one that `session` sees; None: whether it is `name`'s own."""
    if session is None or (is_wide(shown["scope"]) and name != session):
        return shown["session"] == name and (session is None or shown.get("tenant") == tenant)
    return name == session


def _about(shown: Mapping[str, Any]) -> tuple[Any, ...]:
    """What claims must have in common to be about the same thing."""
    place = shown.get("tenant") if is_wide(shown["scope"]) else shown["session"]
    return is_wide(shown["scope"]), place, shown["scope"], shown["key"]
