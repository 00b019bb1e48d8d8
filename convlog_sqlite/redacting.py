"""redact, as callers say it: which scope, and what of it a handle may ask for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from convlog_sqlite.drafts import is_event_id
from convlog_sqlite.errors import InvalidEvent, StoreReadOnly, UnknownReference
from convlog_sqlite.instants import Clock
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.redaction import Redaction, Redactor
from convlog_sqlite.store import opening
from convlog_sqlite.store.erasing import Scope
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.tenancy import require_whole_store
from convlog_sqlite.vocabulary import STORE_SESSION


class Redacting(ABC):
    """The part of a log that erases. `ConversationLog` is one."""

    path: Path | None
    tenant: str | None
    reader: Reader
    _whole: Reader
    _store: opening.Store
    _clock: Clock
    _mirror: Mirror | None

    def redact(
        self,
        *,
        events: Sequence[str] = (),
        session: str | None = None,
        task: str | None = None,
        agent: str | None = None,
        subject: str | None = None,
        reason: str,
        by: str,
        dry_run: bool = False,
        override_hold: str | Sequence[str] = (),
        fence: bool = False,
        verify: bool = False,
        keep_derived: bool = False,
    ) -> Redaction:
        """Erase the content of events, and leave the record that they existed, which still verifies.

        One scope: ids of events, or everything of a session, task, agent or subject (a person's name). When
        this returns, no read in any process gives the content, and no file that the store knows of holds it
        or its key, but for those in `unreachable`. `reason` is one of the closed list, `by` the agent that
        answers for it. A dry run changes nothing. Where a hold covers one of the events, none is erased,
        unless `override_hold` names it: that is recorded in the redaction. With `verify`, every file is searched
        afterwards, by another process, for the content and keys of the first 1,000 of them: see `residue`. With
        `fence`, which goes with a subject, appends that name that person are refused from then on, in every
        process, until `lift_fence`. Claims that were promoted or proposed from the events go with them, unless
        `keep_derived`: then they stay, and show that their evidence is gone.

        On a log that is bound to a tenant, what is in its sessions; a fence, overriding a hold and the search of
        every file are refused there.

        Raises UnknownReference for an id, session or hold that does not exist, UnderHold, InvalidEvent,
        NotAuthorized, StoreError.
        """
        for wanted, act in (
            (fence, "a fence"),
            (override_hold, "to override a hold"),
            (verify, "that search"),
        ):
            if wanted:
                require_whole_store(self.tenant, act)
        given = {"event": tuple(events), "session": session, "task": task, "agent": agent, "subject": subject}
        scope = self._scope(given)
        override = (override_hold,) if isinstance(override_hold, str) else tuple(override_hold)
        found = self._redactor().redact(
            scope,
            reason=reason,
            by=by,
            dry_run=dry_run,
            override=override,
            verify=verify,
            fence=fence,
            keep_derived=keep_derived,
        )
        if fence and not dry_run and self._mirror is not None and self._mirror.enabled:
            self._mirror.after_append(STORE_SESSION)
        return found

    @abstractmethod
    def _redactor(self) -> Redactor: ...
    def _scope(self, given: Mapping[str, str | tuple[str, ...] | None]) -> Scope:
        """The one scope that was given, which exists. Raises InvalidEvent, UnknownReference."""
        scopes = {kind: names for kind, names in given.items() if names}
        if len(scopes) != 1:
            raise InvalidEvent("/scope", "one of events, session, task, agent or subject")
        ((kind, names),) = scopes.items()
        scope = Scope(kind, names if isinstance(names, tuple) else (str(names),), self.tenant)
        self._check_scope(scope)
        return scope

    def _check_scope(self, scope: Scope) -> None:
        if self._store.database.read_only:
            raise StoreReadOnly(self.path or ":memory:", "this handle was opened read-only")
        if scope.kind == "event":
            for event_id in scope.names:
                if not is_event_id(event_id) or not self.reader.known([event_id]):
                    raise UnknownReference("event", event_id)
        elif scope.kind == "session" and self.reader.find_session(scope.names[0]) is None:
            raise UnknownReference("session", scope.names[0])

    def _finish_erasures(self) -> None:
        """What a crash left half done is finished before anything is read; what cannot be reached stays pending."""
        if not self._store.database.read_only and self.path is not None:
            self._redactor().finish()
