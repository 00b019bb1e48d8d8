"""What is kept and how long: the holds and retention policies of a store, and applying them.

Each of them is a mutation in the reserved session `_store`, written by the agent that answers for it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convlog_sqlite.coordination import role_draft
from convlog_sqlite.database import Connection
from convlog_sqlite.drafts import Draft, check_name, check_session_id
from convlog_sqlite.errors import InvalidEvent, NotAStore, StoreReadOnly, UnknownReference
from convlog_sqlite.instants import Clock, id_bytes, id_text, new_event_id
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.redaction import Redaction, Redactor
from convlog_sqlite.retention import RetentionPolicy, Rules, policies_of
from convlog_sqlite.store import candidates, copies, opening, removing
from convlog_sqlite.store.preparing import Prepared, prepare, subject_digest
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.reserved import HOLD_KEY, POLICY_KEY, Hold, Standing, standing
from convlog_sqlite.store.sessions import RemovedSession
from convlog_sqlite.store.unrecorded import unrecorded
from convlog_sqlite.tenancy import whole_store
from convlog_sqlite.vocabulary import REASONS, STORE_SESSION

Check = Callable[[Standing], None]


class Keeping:
    """The part of a log that decides what is kept. `ConversationLog` is one."""

    path: Path | None
    tenant: str | None
    reader: Reader
    _store: opening.Store
    _clock: Clock
    _mirror: Mirror | None

    _given_up: frozenset[bytes] = frozenset()

    @abstractmethod
    def _redactor(self) -> Redactor: ...

    def _finish_noticed(self) -> None:
        """Finish the erasures that an append saw undone, unless their redactor lives; once, if it cannot be done."""
        writer = self._store.writer
        if self.path is None or not writer.undone - self._given_up:
            return
        redactor = self._redactor()
        if redactor.finish():
            self._given_up, writer.undone = redactor.pending(), frozenset()
        else:
            writer.look_again()

    @whole_store
    def place_hold(
        self,
        *,
        session: str | None = None,
        task: str | None = None,
        agent: str | None = None,
        subject: str | None = None,
        event: str | None = None,
        reason: str,
        by: str,
    ) -> Hold:
        """Forbid to erase an event, or all events of a session, task, agent or subject, now and later.

        Holds may overlap: what they cover is kept until all of them are released. `reason` is one of the
        closed list, `by` the agent that answers for it. Raises UnknownReference for a session or event that
        does not exist, InvalidEvent, StoreError.
        """
        given = {"session": session, "task": task, "agent": agent, "subject": subject, "event": event}
        wanted = [(scope, name) for scope, name in given.items() if name is not None]
        if len(wanted) != 1:
            raise InvalidEvent("/scope", "one of session, task, agent, subject or event")
        if reason not in REASONS:
            raise InvalidEvent("/reason", "one of " + ", ".join(REASONS))
        scope, name = self._held_name(*wanted[0])
        value = {"scope": scope, "name": name, "reason": reason}
        hold_id = id_text(new_event_id(self._clock()))
        self._decide("hold-placed", value, by, HOLD_KEY.format(id=hold_id), event_id=hold_id)
        placed = self.reader.event(hold_id)
        return Hold(hold_id, scope, name, reason, by, placed.ts)

    def _held_name(self, scope: str, name: str) -> tuple[str, str]:
        if scope == "event":
            return scope, self.reader.event(name).id
        if scope == "session":
            check_session_id(name)
            if self.reader.find_session(name) is None:
                raise UnknownReference("session", name)
            return scope, name
        check_name(name, f"/{scope}")
        return scope, subject_digest(self._store.keystore.pepper, name) if scope == "subject" else name

    @whole_store
    def release_hold(self, hold_id: str, *, by: str) -> Hold:
        """End a hold; the hold that ended. Raises UnknownReference when it does not stand."""
        released: list[Hold] = []

        def check(found: Standing) -> None:
            if hold_id not in found.holds:
                raise UnknownReference("hold", hold_id)
            released.append(found.holds[hold_id])

        self._decide("hold-released", {"hold": hold_id}, by, HOLD_KEY.format(id=hold_id[:64]), check)
        return released[0]

    @whole_store
    def holds(self) -> list[Hold]:
        """The holds that stand, in the order in which they were placed."""
        return list(self._standing().holds.values())

    @whole_store
    def set_policy(self, policy: RetentionPolicy, *, by: str) -> RetentionPolicy:
        """Let a retention policy stand from now on, in place of one with the same id; with its version.

        Nothing is erased by this: `apply_retention` does it. Raises InvalidEvent, StoreError.
        """
        if not isinstance(policy, RetentionPolicy):
            raise InvalidEvent("/policy", "a RetentionPolicy")
        pepper = self._store.keystore.pepper
        policy = policy.keyed(lambda name: subject_digest(pepper, name))
        versions: list[int] = []
        self._decide(
            "policy-set",
            policy.to_stored(),
            by,
            POLICY_KEY.format(id=policy.id),
            lambda found: versions.append(found.versions.get(policy.id, 0) + 1),
        )
        return RetentionPolicy.from_stored(policy.to_stored(), versions[0])

    @whole_store
    def remove_policy(self, policy_id: str, *, by: str) -> None:
        """End a retention policy. Raises UnknownReference when it does not stand."""

        def check(found: Standing) -> None:
            if policy_id not in found.policies:
                raise UnknownReference("policy", policy_id)

        self._decide("policy-removed", {"id": policy_id}, by, POLICY_KEY.format(id=policy_id[:64]), check)

    def removed_sessions(self) -> list[RemovedSession]:
        """The sessions that retention removed, by id."""
        return self.reader.removed_sessions()

    @whole_store
    def policies(self) -> list[RetentionPolicy]:
        """The retention policies that stand, by id. A subject is shown as its keyed digest."""
        return policies_of(self._standing())

    @whole_store
    def grant_role(self, grantee: str, role: str, *, by: str) -> None:
        """Let an agent hold a role in every session from now on. Raises NotAuthorized: nobody grants to itself."""
        self._record(role_draft("role-granted", grantee, role, by))

    @whole_store
    def revoke_role(self, holder: str, role: str, *, by: str) -> None:
        """Let an agent no longer hold a role, but for the sessions that grant it themselves."""
        self._record(role_draft("role-revoked", holder, role, by))

    @whole_store
    def apply_retention(self, *, by: str, dry_run: bool = False, keep_derived: bool = False) -> Redaction:
        """Erase what the policies say is due now, as `redact` does; what a hold covers is kept and counted.

        There is one redaction for each session and policy, which names the policy and its version. Closed
        sessions that a policy with the target `envelope` says are due are removed whole: each is recorded by
        a `session-removed` in `_store`. A claim goes with its evidence, unless a hold or a `min_age` keeps it, or
        `keep_derived` does: then it shows that its evidence is gone. Readings that a policy with the target `reading`
        says are due go: that is a `readings-expired` there. Nothing else ever applies the policies. Raises
        InvalidEvent, StoreError.
        """
        check_name(by, "/by")
        if not dry_run:
            self._check_writable()
        found = self._redactor().retain(by=by, dry_run=dry_run, keep_derived=keep_derived)
        if found.readings and not dry_run and self._mirror is not None and self._mirror.enabled:
            self._mirror.after_append(STORE_SESSION)
        return found

    @whole_store
    def exports(self) -> list[str]:
        """The directories that were exported to and not forgotten: where an erasure looks for files."""
        with self._store.database.read() as connection:
            return copies.exports(connection)

    @whole_store
    def forget_export(self, directory: str | Path) -> None:
        """Let a directory of exports be none any more: no erasure waits for it, or looks there.

        For one that was deleted. One that is not there may be on a disk that is not mounted, which nothing can
        tell from here: the caller answers for it. Where it is there, it is forgotten only if no exported file
        is. Raises FilesLeft, UnknownReference for what was never exported to, MirrorBusy, StoreError.
        """
        self._check_writable()
        self._redactor().forget(Path(directory).absolute())

    @whole_store
    def record_erasures(self, *, by: str) -> int:
        """Redact each event whose key an erasure destroyed that this log does not know of; how many they were.

        So it is after an older database was restored. A hold does not stand in the way: the content is gone, and
        the redaction names the hold. Raises InvalidEvent, StoreError.
        """
        check_name(by, "/by")
        self._check_writable()
        by_reason: dict[str, list[str]] = {}
        for event_id, reason in unrecorded(self.reader):
            by_reason.setdefault(reason, []).append(id_text(event_id))
        holds = [hold.id for hold in self.holds()] if by_reason else []
        for reason, events in by_reason.items():
            self._redactor().record_again(events, reason=reason, by=by, override=holds)
        return sum(map(len, by_reason.values()))

    def explain(self, event_id: str) -> str:
        """In one line: what will happen to the content of an event, and to its session, when, and why.

        Raises UnknownReference; the first 8 or more digits of an id will do where they are unique.
        """
        event = self.reader.event(event_id)
        with self._store.database.read() as connection:
            rules = Rules.of(standing(connection, self.reader.opener), self._clock() // 1000)
            session = self._store.writer.sessions.require(connection, event.session)
            (candidate,) = candidates.page(connection, session, event.seq - 1, 1, rules.subjects)
            newest = candidates.newest(connection, session, rules.counts)
            closed = removing.closed(connection, session)
            why = None if closed is None else removing.kept(connection, session, rules)
        removal = rules.explain_session(session, closed, why)
        said = rules.explain(candidate, newest)
        return said if removal is None else f"{said}; {removal}"

    def _standing(self) -> Standing:
        with self._store.database.read() as connection:
            return standing(connection, self.reader.opener)

    def _check_writable(self) -> None:
        if self._store.database.read_only:
            raise StoreReadOnly(self.path or ":memory:", "this handle was opened read-only")

    def _decide(
        self,
        kind: str,
        value: Any,
        by: str,
        state_key: str,
        check: Check | None = None,
        *,
        event_id: str | None = None,
    ) -> None:
        """Record a mutation in `_store`, after `check` saw what stands there in the same transaction."""
        check_name(by, "/by")
        draft = Draft(type="mutation", agent=by, kind=kind, value=value, state_key=state_key)
        self._record(draft, check, event_id=event_id)

    def _record(
        self,
        draft: Draft,
        check: Check | None = None,
        *,
        event_id: str | None = None,
        change: Callable[[Connection], None] | None = None,
    ) -> None:
        """Record a mutation in `_store`; what `change` writes is committed with it."""
        self._check_writable()
        if self.path is None:
            raise NotAStore(":memory:", "an ephemeral log keeps no policies, holds and roles")
        pepper = self._store.keystore.pepper
        prepared = prepare(draft, pepper, id_bytes(event_id) if event_id else None)

        def decide(connection: Connection) -> Prepared:
            if check is not None:
                check(standing(connection, self.reader.opener))
            if change is not None:
                change(connection)
            return prepared

        self._store.writer.record_decision(STORE_SESSION, decide)
        if self._mirror is not None and self._mirror.enabled:
            self._mirror.after_append(STORE_SESSION)
        self._finish_noticed()
