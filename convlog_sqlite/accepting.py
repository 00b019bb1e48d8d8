"""What a log accepts from its callers: the one way by which drafts become bytes, scrubbed where that is asked for."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from convlog_sqlite.drafts import Draft
from convlog_sqlite.errors import ConvlogError, InvalidEvent, Refused, StoreReadOnly
from convlog_sqlite.events import Event
from convlog_sqlite.instants import derived_event_id, id_bytes, id_text
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.scrubbing import Scrubber, check_session
from convlog_sqlite.store import opening
from convlog_sqlite.store.committing import OneAppend
from convlog_sqlite.store.listening import Hears
from convlog_sqlite.store.preparing import Prepared, foreign_digest, prepare
from convlog_sqlite.store.readings import Noted
from convlog_sqlite.store.requests import Fresh, Request
from convlog_sqlite.store.writing import Appended
from convlog_sqlite.tenancy import require_own
from convlog_sqlite.vocabulary import STORE_SESSION

# What `append_together` takes: session, tenant, drafts, and what their authors had heard.
Append = tuple[str, str | None, Sequence[Draft]] | tuple[str, str | None, Sequence[Draft], Hears]

_MOST_LISTENERS: Final = 256  # that have something to write


class Flushing(Protocol):
    """What has noted something that is to be written before the log is closed."""

    def flush(self) -> None: ...


class Accepting:
    """The part of a log that takes drafts in. `ConversationLog` is one."""

    path: Path | None
    tenant: str | None
    _store: opening.Store
    _scrubber: Scrubber | None
    _author: str | None
    _one_append: OneAppend
    _mirror: Mirror | None
    _takes_in: Callable[[str, Sequence[Event]], None] | None

    def _accept(self, scrubber: Scrubber | None) -> None:
        self._scrubber = scrubber
        self._author = self._takes_in = None
        self._scrubbed: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._listeners: dict[int, Flushing] = {}

    @property
    def scrubbed(self) -> dict[str, int]:
        """How many secrets gave way to placeholders in what this handle recorded, by kind."""
        with self._counting:
            return dict(sorted(self._scrubbed.items()))

    @abstractmethod
    def _finish_noticed(self) -> None: ...

    def append_foreign(
        self,
        session: str,
        drafts: Sequence[tuple[str, Draft]],
        *,
        scrubber: Scrubber | None = None,
        found: Counter[str] | None = None,
    ) -> int:
        """Record drafts under ids that `foreign_id` gave, all or none; how many were not there before.

        `scrubber` scrubs them where the log itself does not; `found` takes up how many secrets of each kind gave way
        in what was recorded. The mirror is brought up to date by the caller, once an import is through.
        """
        with self._one_append:
            prepared = self._prepare(session, drafts, scrubber)
            appended = self._store.writer.append(session, self.tenant, prepared)
            self._finish_noticed()
        scrubbed = self._count(prepared, appended)
        if found is not None:
            found.update(scrubbed)
        return sum(item.new for item in appended)

    def foreign_id(self, harness: str, key: str) -> str:
        """The event id that belongs to a native identity of a harness: a keyed digest, the same for ever."""
        return id_text(derived_event_id(foreign_digest(self._store.keystore.pepper, harness, key)))

    def _prepare(
        self, session: str, drafts: Sequence[tuple[str | None, Draft]], scrubber: Scrubber | None = None
    ) -> list[Prepared]:
        if self._store.database.read_only:
            raise StoreReadOnly(self.path or ":memory:", "this handle was opened read-only")
        if session == STORE_SESSION:
            raise InvalidEvent("/session", "_store is convlog's own; callers do not write there")
        pepper = self._store.keystore.pepper
        scrubber = self._scrubber or scrubber
        if scrubber is not None:
            check_session(session)
        prepared = []
        for index, (event_id, draft) in enumerate(drafts):
            try:
                identity = id_bytes(event_id) if event_id else None
                prepared.append(prepare(draft, pepper, identity, scrubber))
            except Refused as refused:
                raise (refused.at(index) if len(drafts) > 1 else refused) from None
        return prepared

    def _count(self, prepared: Iterable[Prepared], appended: Iterable[Appended]) -> Counter[str]:
        """Take up what was scrubbed in events that are new."""
        found: Counter[str] = Counter()
        for item, recorded in zip(prepared, appended, strict=True):
            if item.scrubbed and recorded.new:
                found.update(item.scrubbed)
        if found:
            with self._counting:
                self._scrubbed.update(found)
        return found

    def append_drafts(
        self,
        session: str,
        tenant: str | None,
        drafts: Sequence[Draft],
        heard: Hears = None,
    ) -> list[Event]:
        """Record drafts in one session, all or none. `Session.append` and `append_many` are this.

        `heard` is what their author had heard, or RECORDED: what the log knows that it had.
        """
        with self._one_append:
            request = self._request(session, tenant, drafts, heard)
            self._store.writer.settle((request,))
            appended = request.outcome()
            self._recorded((request,))
            self._finish_noticed()
            return [event for event, _ in appended]

    def append_together(self, appends: Sequence[Append]) -> list[list[Event] | ConvlogError]:
        """Several appends, each all or none by itself, in one durable transaction.

        The outcome of each: its events, or the error that refused it and no other. Raises StoreBusy in a signal
        handler that came in the middle of an append of the same thread.
        """
        with self._one_append:
            if self.path is None:
                # No sync to share, and the first decides who the author is.
                return [self._append_together([one])[0] for one in appends]
            return self._append_together(appends)

    def _append_together(self, appends: Sequence[Append]) -> list[list[Event] | ConvlogError]:
        requests: list[Request | ConvlogError] = []
        for append in appends:
            try:
                requests.append(self._request(*append))
            except ConvlogError as error:
                requests.append(error)
        waiting = [request for request in requests if isinstance(request, Request)]
        self._store.writer.settle(waiting)
        self._recorded([request for request in waiting if request.error is None])
        outcomes: list[list[Event] | ConvlogError] = []
        for request in requests:
            if isinstance(request, ConvlogError):
                outcomes.append(request)
            elif isinstance(request.error, ConvlogError):
                outcomes.append(request.error)
            else:
                outcomes.append([item.event for item in request.appended])
        self._finish_noticed()
        return outcomes

    def record_readings(self, session: str, noted: Sequence[Noted]) -> None:
        """Write down what was read, and informed no append so far. Raises StoreError, SessionRemoved."""
        self._store.writer.record_readings(session, noted)

    def await_close(self, listener: Flushing) -> None:
        """Write what a listener has noted when the log is closed, at the latest."""
        with self._counting:
            self._listeners[id(listener)] = listener
            overdue = list(self._listeners.values()) if len(self._listeners) > _MOST_LISTENERS else []
            for one in overdue:
                del self._listeners[id(one)]
        for one in overdue:
            with suppress(ConvlogError):
                one.flush()

    def _flush_readings(self) -> None:
        for listener in list(self._listeners.values()):
            with suppress(ConvlogError):  # they informed nothing
                listener.flush()
        self._listeners.clear()

    def _request(
        self,
        session: str,
        tenant: str | None,
        drafts: Sequence[Draft],
        heard: Hears = None,
    ) -> Request:
        tenant = require_own(self.tenant, tenant)
        if self.path is None:
            self._only_author(drafts)
        prepared = self._prepare(session, [(None, draft) for draft in drafts])
        return self._store.writer.request(session, tenant, prepared, heard)

    def _recorded(self, requests: Sequence[Request]) -> None:
        """What follows on a commit: states take it in, an ephemeral log has its author, the mirror is kept up."""
        if self._takes_in is not None:
            for request in requests:
                self._takes_in(request.session, [item.event for item in request.appended if item.new])
        if self._scrubber is not None:
            for request in requests:
                self._count(request.prepared, request.appended)
        if self.path is None:
            for request in requests:
                self._author = request.prepared[0].envelope["agent"]
        elif self._mirror is not None and self._mirror.enabled:
            written: dict[str, Fresh | None] = {}
            for request in requests:
                before, fresh = written.get(request.session), request.fresh()
                if request.session in written:
                    fresh = None if before is None else before.followed_by(fresh)
                written[request.session] = fresh
            for session in sorted(written):
                self._mirror.after_append(session, written[session])

    def _only_author(self, drafts: Sequence[Draft]) -> str:
        author = self._author or drafts[0].agent
        for index, draft in enumerate(drafts):
            if draft.agent != author or draft.effect is not None:
                what = "effect" if draft.agent == author else "agent"
                refused = InvalidEvent(
                    f"/{what}", "an ephemeral log has one author, and no effects; open a store"
                )
                raise refused.at(index) if len(drafts) > 1 else refused
        return author
