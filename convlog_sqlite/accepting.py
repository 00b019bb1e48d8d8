"""What a log accepts from its callers: the one way by which drafts become bytes, scrubbed where that is asked for."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from convlog_sqlite.drafts import Draft
from convlog_sqlite.errors import InvalidEvent, Refused, StoreReadOnly
from convlog_sqlite.instants import derived_event_id, id_bytes, id_text
from convlog_sqlite.scrubbing import Scrubber, check_session
from convlog_sqlite.store import opening
from convlog_sqlite.store.committing import OneAppend
from convlog_sqlite.store.preparing import Prepared, foreign_digest, prepare
from convlog_sqlite.store.writing import Appended
from convlog_sqlite.vocabulary import STORE_SESSION


class Accepting:
    """The part of a log that takes drafts in. `ConversationLog` is one."""

    path: Path | None
    tenant: str | None
    _store: opening.Store
    _scrubber: Scrubber | None
    _author: str | None
    _one_append: OneAppend

    def _accept(self, scrubber: Scrubber | None) -> None:
        self._scrubber = scrubber
        self._author = None
        self._scrubbed: Counter[str] = Counter()
        self._counting = threading.Lock()

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
