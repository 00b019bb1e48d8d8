"""ConversationLog: a store, opened. The front door of the library.

with ConversationLog.open() as log:
    session = log.session("build-42")
    session.message("Add JWT auth.", agent="user", to=["orchestrator"])
    for event in session.tail(20):
        print(event.agent, event.body)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from convlog_sqlite import discovery
from convlog_sqlite.accepting import Accepting
from convlog_sqlite.backup import BackingUp
from convlog_sqlite.branching import Branching
from convlog_sqlite.database import DURABILITIES
from convlog_sqlite.drafts import Draft, check_name, check_session_id, is_event_id
from convlog_sqlite.errors import (
    ConvlogError,
    InvalidEvent,
    NotAStore,
    SessionRemoved,
    StoreReadOnly,
    UnknownReference,
)
from convlog_sqlite.events import Event, canonical_line
from convlog_sqlite.findings import Finding
from convlog_sqlite.follow import Waiter
from convlog_sqlite.instants import Clock, from_microseconds, id_text, system_clock
from convlog_sqlite.keeping import Keeping
from convlog_sqlite.kek import KeySource
from convlog_sqlite.labelling import Labelling
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.noting import note
from convlog_sqlite.projecting import Projecting
from convlog_sqlite.recalling import Recalling
from convlog_sqlite.redaction import Redaction, Redactor
from convlog_sqlite.scrubbing import Scrubber, scrubber_of
from convlog_sqlite.session import Session
from convlog_sqlite.store import copies, opening
from convlog_sqlite.store.committing import Fresh, OneAppend, Request
from convlog_sqlite.store.erasing import Scope
from convlog_sqlite.store.reader import Reader, SessionSummary
from convlog_sqlite.tracing import Tracing
from convlog_sqlite.viewing import Viewing
from convlog_sqlite.vocabulary import STORE_SESSION


@dataclass(frozen=True, slots=True)
class Anchor:
    """The head of the chain over the whole store: keep it elsewhere, and `verify` proves nothing was cut off."""

    store: str
    pos: int
    chain: str
    at: str

    def to_dict(self) -> dict[str, Any]:
        """The anchor as JSON values."""
        return asdict(self)


class ConversationLog(
    Keeping, BackingUp, Accepting, Labelling, Projecting, Viewing, Tracing, Branching, Recalling
):
    """An open store. Safe to use from several threads; open it anew after fork().

    `path` is the store's directory, None for an ephemeral log. `created` says whether this call made it.
    """

    def __init__(
        self, store: opening.Store, *, created: bool, clock: Clock, scrubber: Scrubber | None = None
    ) -> None:
        """Use `open`, `init` or `ephemeral`."""
        self._store, self.created, self._clock = store, created, clock
        self._accept(scrubber)
        self.path = store.directory
        self.reader = Reader(store.database, store.writer)
        self._one_append = OneAppend(self.path or ":memory:")
        self._mirror = self._open_mirror()
        self._finish_erasures()
        if (note(store) or created) and self._mirror is not None and self._mirror.enabled:
            self._mirror.after_append(STORE_SESSION)

    @classmethod
    def open(
        cls,
        path: str | Path | None = None,
        *,
        create: bool = True,
        durability: str = "full",
        read_only: bool = False,
        keys: str | Path | None = None,
        scrub: bool | Scrubber = False,
        kek: KeySource | None = None,
        clock: Clock = system_clock,
    ) -> Self:
        """Open the store at `path`, or the one that is found from the working directory.

        Makes it when there is none, unless `create` is False or `read_only` is True. `durability` is
        `full` (an append that returned survives power loss) or `normal` (a crash of the process). `kek` gives the
        key-encryption key, by default as the environment says; where it is needed and there is none, the log is
        locked: envelopes can be read, and nothing else. With `scrub`, secrets in what is appended give way to
        placeholders before anything is written: True, or a Scrubber that says what is a secret. Raises the
        StoreErrors, InvalidEvent.
        """
        scrubber = scrubber_of(scrub)
        if durability not in DURABILITIES:
            raise InvalidEvent("/durability", "one of " + ", ".join(DURABILITIES))
        directory = Path(path).absolute() if path is not None else discovery.find()
        keystore, kek = Path(keys) if keys is not None else None, kek or KeySource.environment()
        created = False
        if directory is None or not opening.exists(directory):
            if not create or read_only:
                raise NotAStore(
                    directory or Path.cwd(), "no convlog store here or above; `convlog init` makes one"
                )
            directory = directory or discovery.default()
            created = opening.create(directory, mirror=True, keys=keystore, clock=clock, kek=kek)
        store = opening.open_store(
            directory, durability=durability, read_only=read_only, keys=keystore, clock=clock, kek=kek
        )
        return cls(store, created=created, clock=clock, scrubber=scrubber)

    @classmethod
    def init(
        cls,
        path: str | Path | None = None,
        *,
        mirror: bool = True,
        keys: str | Path | None = None,
        kek: KeySource | None = None,
        clock: Clock = system_clock,
    ) -> Self:
        """Make a store (default: in the working directory) and open it. An existing one is left as it is."""
        directory = Path(path).absolute() if path is not None else discovery.default()
        keystore, kek = Path(keys) if keys is not None else None, kek or KeySource.environment()
        created = opening.create(directory, mirror=mirror, keys=keystore, clock=clock, kek=kek)
        store = opening.open_store(
            directory, durability="full", read_only=False, keys=None, clock=clock, kek=kek
        )
        return cls(store, created=created, clock=clock)

    @classmethod
    def ephemeral(cls, *, scrub: bool | Scrubber = False, clock: Clock = system_clock) -> Self:
        """A log in memory for one author: no file, no mirror, gone at close.

        The same calls, but a second author is refused: then history is shared state, and needs a store.
        """
        scrubber = scrubber_of(scrub)
        return cls(opening.open_in_memory(clock), created=True, clock=clock, scrubber=scrubber)

    def session(self, session_id: str, *, tenant: str | None = None) -> Session:
        """The session `session_id`; its first append opens it.

        Raises InvalidEvent for what is no session id, or differs from an existing one only by case,
        UnknownReference when the session belongs to another tenant, SessionRemoved when retention removed it.
        """
        check_session_id(session_id)
        if tenant is not None:
            check_name(tenant, "/tenant")
        row = self.reader.find_session(session_id)
        if row is not None and tenant is not None and row.tenant != tenant:
            raise UnknownReference("session", session_id)
        return Session(self, session_id, tenant)

    def sessions(self) -> list[SessionSummary]:
        """Every session that is not removed, by id, the reserved `_store` included."""
        return self.reader.summaries()

    def event(self, event_id: str) -> Event:
        """The event with this id, in any session; the first 8 or more hex digits will do where they are unique.

        Raises UnknownReference, and InvalidEvent when several ids begin like that.
        """
        return self.reader.event(event_id)

    def lines(self, *session_ids: str) -> Iterator[bytes]:
        """The canonical lines of sessions (none named: all, by id, then seq), in constant memory.

        Raises UnknownReference for a session that does not exist, SessionRemoved for one that was removed, before
        the first line; one that is removed meanwhile ends where it is.
        """
        for session in session_ids:
            if self.reader.find_session(session) is None:
                raise UnknownReference("session", session)
        for session in session_ids or self.reader.session_ids():
            with suppress(SessionRemoved):
                yield from self.reader.lines(session)

    def follow_lines(self, *session_ids: str, timeout: float | None = None) -> Iterator[bytes]:
        """The canonical lines of sessions (none named: all), those there are and those to come.

        In order within each session. Ends when nothing was appended for `timeout` seconds. Nothing in the
        database stays open while the caller's code runs. A session that is removed has no more lines.
        """
        waiter = self.waiter()
        seen: dict[str, int] = {}
        position = 0
        try:
            while waiter.wait(timeout):
                head, _ = self.reader.store_head()
                for session in self.reader.changed_sessions(position):
                    if session_ids and session not in session_ids:
                        continue
                    with suppress(SessionRemoved):
                        for block in self.reader.blocks(session, seen.get(session, 0)):
                            yield from (canonical_line(envelope, payload) for _, envelope, payload in block)
                            seen[session] = block[-1][0]
                position = head
        finally:
            waiter.close()

    @property
    def mirror(self) -> Mirror:
        """The store's own mirror. Raises NotAStore on an ephemeral log."""
        if self._mirror is None:
            raise NotAStore(":memory:", "an ephemeral log has no mirror")
        return self._mirror

    def exporter(self, directory: str | Path) -> Mirror:
        """Files like the mirror's, kept in another directory, which is written down in the store first.

        Raises StoreReadOnly on a read-only handle: no file that may hold plaintext is ever unknown to the store.
        """
        if self.path is None:
            raise NotAStore(":memory:", "an ephemeral log has no exports")
        root = Path(directory).absolute()
        self._register_export(root)
        return Mirror(
            self.reader, root, self.path, enabled=True, register=lambda: self._register_export(root)
        )

    def export_to(self, directory: str | Path, *session_ids: str) -> dict[str, int]:
        """Bring `directory/<session>/conversation.jsonl` up to date; the lines written to each session's file."""
        exporter = self.exporter(directory)
        try:
            return exporter.update(*session_ids)
        finally:
            exporter.close()

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
        process, until `lift_fence`. Claims made of the events go too, unless `keep_derived`: see `memory`.

        Raises UnknownReference for an id, session or hold that does not exist, UnderHold, InvalidEvent,
        StoreError.
        """
        given = {"event": tuple(events), "session": session, "task": task, "agent": agent, "subject": subject}
        wanted = {kind: names for kind, names in given.items() if names}
        if len(wanted) != 1:
            raise InvalidEvent("/scope", "one of events, session, task, agent or subject")
        ((kind, names),) = wanted.items()
        scope = Scope(kind, names if isinstance(names, tuple) else (names,))
        self._check_scope(scope)
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

    def _check_scope(self, scope: Scope) -> None:
        if self._store.database.read_only:
            raise StoreReadOnly(self.path or ":memory:", "this handle was opened read-only")
        if scope.kind == "event":
            for event_id in scope.names:
                if not is_event_id(event_id) or not self.reader.known([event_id]):
                    raise UnknownReference("event", event_id)
        elif scope.kind == "session" and self.reader.find_session(scope.names[0]) is None:
            raise UnknownReference("session", scope.names[0])

    def _redactor(self) -> Redactor:
        return Redactor(
            self._store, self._clock, lambda root: Mirror(self.reader, root, self.path or root, enabled=True)
        )

    def _finish_erasures(self) -> None:
        """What a crash left half done is finished before anything is read; what cannot be reached stays pending."""
        if not self._store.database.read_only and self.path is not None:
            self._redactor().finish()

    def verify(
        self, *session_ids: str, anchor: Anchor | None = None, projections: bool = False
    ) -> Iterator[Finding]:
        """Check everything that can be checked, and yield what is wrong. See `convlog_sqlite.verify`.

        With `projections`, every shipped projection is folded anew and compared with what is kept of it.
        """
        from convlog_sqlite.verify import verify  # noqa: PLC0415 seldom needed, and the command starts without it

        known = None if anchor is None else (anchor.store, anchor.pos, anchor.chain)
        return verify(
            self.reader, self._mirror, session_ids, known, self._projections if projections else None
        )

    def _prove(self, reader: Reader) -> list[Finding]:
        from convlog_sqlite.verify import verify  # noqa: PLC0415 as above

        return list(verify(reader, None))

    def anchor(self) -> Anchor:
        """The head of the store's chain, to be kept elsewhere."""
        pos, chain = self.reader.store_head()
        return Anchor(
            id_text(self.reader.store_id), pos, chain.hex(), from_microseconds(self._clock() // 1000)
        )

    def status(self) -> dict[str, Any]:
        """What the store is and how it is doing, as JSON values. See `convlog status`."""
        from convlog_sqlite.status import status  # noqa: PLC0415 seldom needed, and the command starts without it

        return status(self._store, self.reader, self._mirror)

    def append_drafts(self, session: str, tenant: str | None, drafts: Sequence[Draft]) -> list[Event]:
        """Record drafts in one session, all or none. `Session.append` and `append_many` are this."""
        with self._one_append:
            request = self._request(session, tenant, drafts)
            self._store.writer.settle((request,))
            appended = request.outcome()
            self._recorded((request,))
            self._finish_noticed()
            return [event for event, _ in appended]

    def append_together(
        self, appends: Sequence[tuple[str, str | None, Sequence[Draft]]]
    ) -> list[list[Event] | ConvlogError]:
        """Several appends, each (session, tenant, drafts) all or none by itself, in one durable transaction.

        The outcome of each: its events, or the error that refused it and no other. Raises StoreBusy in a signal
        handler that came in the middle of an append of the same thread.
        """
        with self._one_append:
            if self.path is None:
                # No sync to share, and the first decides who the author is.
                return [self._append_together([one])[0] for one in appends]
            return self._append_together(appends)

    def _append_together(
        self, appends: Sequence[tuple[str, str | None, Sequence[Draft]]]
    ) -> list[list[Event] | ConvlogError]:
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

    def _request(self, session: str, tenant: str | None, drafts: Sequence[Draft]) -> Request:
        if self.path is None:
            self._only_author(drafts)
        prepared = self._prepare(session, [(None, draft) for draft in drafts])
        return self._store.writer.request(session, tenant, prepared)

    def _recorded(self, requests: Sequence[Request]) -> None:
        """What follows on a commit: an ephemeral log has its author, the mirror is brought up to date."""
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

    def waiter(self) -> Waiter:
        """Waits for commits by any process; the caller closes it."""
        return Waiter(self._store.database, self.path)

    def _open_mirror(self) -> Mirror | None:
        if self.path is None:
            return None
        with self._store.database.read() as connection:
            enabled = copies.has_mirror(connection)
        return Mirror(self.reader, self.path / copies.OWN_MIRROR, self.path, enabled=enabled)

    def close(self) -> None:
        """Stop the mirror's thread, close every file. Safe to call twice."""
        if self._mirror is not None:
            self._mirror.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<conversation log {self.path or 'in memory'}>"
