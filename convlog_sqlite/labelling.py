"""What is said of people afterwards: labels on events that were recorded, and fences against new ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from convlog_sqlite.database import Connection
from convlog_sqlite.drafts import Draft, check_name
from convlog_sqlite.errors import InvalidEvent, NotAStore, StoreReadOnly, UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.redaction import fence_event
from convlog_sqlite.store import opening
from convlog_sqlite.store.fences import Fence, standing_fences, standing_on
from convlog_sqlite.store.preparing import Prepared, subject_digest
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.tenancy import whole_store
from convlog_sqlite.vocabulary import LABEL_KIND, LIFTED_KIND, SENSITIVITIES, STORE_SESSION


class Labelling:
    """The part of a log that says more of what was recorded. `ConversationLog` is one."""

    path: Path | None
    tenant: str | None
    reader: Reader
    _store: opening.Store
    _mirror: Mirror | None

    @abstractmethod
    def append_drafts(self, session: str, tenant: str | None, drafts: Sequence[Draft]) -> list[Event]: ...

    def label(
        self, event_id: str, *, subjects: Sequence[str] = (), sensitivity: str | None = None, by: str
    ) -> Event:
        """Say afterwards that an event is about people (their names), or how sensitive it is; the label's event.

        It stands in the event's session, without content, and counts from then on wherever an event is looked up by
        subject or sensitivity: redactions, retention policies, holds. The event's sensitivity is the highest that
        it or a label has: a label never lowers it. It outlives the content of the event, which may be erased
        already. The first 8 or more digits of the id will do where they are unique.

        Raises UnknownReference, InvalidEvent, StoreError.
        """
        if isinstance(subjects, str) or not (subjects or sensitivity):
            raise InvalidEvent("/subjects", "a label needs a list of subjects, or a sensitivity")
        event = self.reader.event(event_id)
        if event.session == STORE_SESSION:
            raise InvalidEvent("/session", "_store is convlog's own; there is nobody in it to be protected")
        if sensitivity is not None and SENSITIVITIES.get(sensitivity, 9) < SENSITIVITIES[event.sensitivity]:
            raise InvalidEvent("/sensitivity", f"the event is {event.sensitivity}: a label only raises it")
        label = Draft(
            type="mutation",
            agent=by,
            kind=LABEL_KIND,
            links={"evidence": [event.id]},
            subjects=subjects,
            sensitivity=sensitivity or event.sensitivity,
        )
        return self.append_drafts(event.session, None, [label])[0]

    @whole_store
    def lift_fence(self, subject: str, *, by: str) -> Fence:
        """End the fence on a person, by name, so that appends may be about them again; the fence that ended.

        Raises UnknownReference, with the keyed digest of the name, when none stands.
        """
        check_name(subject, "/subject")
        check_name(by, "/by")
        if self._store.database.read_only:
            raise StoreReadOnly(self.path or ":memory:", "this handle was opened read-only")
        if self.path is None:
            raise NotAStore(":memory:", "an ephemeral log keeps no fences")
        pepper = self._store.keystore.pepper
        digest = subject_digest(pepper, subject)
        lifting = fence_event(LIFTED_KIND, subject, by, pepper)
        lifted: list[Fence] = []

        def decide(connection: Connection) -> Prepared:
            if standing_on(connection, digest) is None:
                raise UnknownReference("fence", digest)
            lifted.extend(fence for fence in standing_fences(connection) if fence.subject == digest)
            return lifting

        self._store.writer.record_decision(STORE_SESSION, decide)
        if self._mirror is not None and self._mirror.enabled:
            self._mirror.after_append(STORE_SESSION)
        return lifted[0]

    @whole_store
    def fences(self) -> list[Fence]:
        """The fences that stand, in the order in which they were placed. `redact(subject=..., fence=True)` places one."""
        with self._store.database.read() as connection:
            return standing_fences(connection)
