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
from convlog_sqlite.drafts import check_name, check_session_id
from convlog_sqlite.errors import (
    InvalidEvent,
    NotAStore,
    SessionRemoved,
    UnknownReference,
)
from convlog_sqlite.events import Event, canonical_line
from convlog_sqlite.exporting import Exporting
from convlog_sqlite.findings import Finding
from convlog_sqlite.follow import Waiter
from convlog_sqlite.instants import Clock, from_microseconds, id_text, system_clock
from convlog_sqlite.keeping import Keeping
from convlog_sqlite.kek import KeySource
from convlog_sqlite.labelling import Labelling
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.noting import note
from convlog_sqlite.projecting import Projecting
from convlog_sqlite.recollecting import Recollecting
from convlog_sqlite.redacting import Redacting
from convlog_sqlite.redaction import Redactor
from convlog_sqlite.scrubbing import Scrubber, scrubber_of
from convlog_sqlite.session import Session
from convlog_sqlite.store import copies, opening
from convlog_sqlite.store.committing import OneAppend
from convlog_sqlite.store.reader import Reader, SessionSummary
from convlog_sqlite.tenancy import bound_to, require_own, require_whole_store, whole_store
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
    Redacting,
    Keeping,
    BackingUp,
    Accepting,
    Labelling,
    Projecting,
    Viewing,
    Exporting,
    Tracing,
    Branching,
    Recollecting,
):
    """An open store. Safe to use from several threads; open it anew after fork().

    `path` is the store's directory, None for an ephemeral log. `created` says whether this call made it. `tenant` is
    the one that it is bound to, if any: then other tenants' sessions, and those of none, do not exist, `_store`
    among them, and what is about the whole store raises NotAuthorized.
    """

    def __init__(
        self, store: opening.Store, *, created: bool, clock: Clock, scrubber: Scrubber | None = None
    ) -> None:
        """Use `open`, `init` or `ephemeral`."""
        self._store, self.created, self._clock = store, created, clock
        self._accept(scrubber)
        self.path = store.directory
        self.tenant = store.writer.tenant
        self._whole = Reader(store.database, store.writer)
        self.reader = (
            self._whole if self.tenant is None else Reader(store.database, store.writer, self.tenant)
        )
        store.writer.recall = self.recall_of
        self._one_append = OneAppend(self.path or ":memory:")
        self._mirror = self._open_mirror(self._whole)
        self._shown_mirror = self._mirror if self.tenant is None else self._open_mirror(self.reader)
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
        tenant: str | None = None,
        clock: Clock = system_clock,
    ) -> Self:
        """Open the store at `path`, or the one that is found from the working directory.

        Makes it when there is none, unless `create` is False or `read_only` is True. `durability` is
        `full` (an append that returned survives power loss) or `normal` (a crash of the process). `kek` gives the
        key-encryption key, by default as the environment says; where it is needed and there is none, the log is
        locked: envelopes can be read, and nothing else. With `scrub`, secrets in what is appended give way to
        placeholders before anything is written: True, or a Scrubber that says what is a secret. `tenant` (default: the
        environment's CONVLOG_TENANT) binds the log to that tenant's sessions. Raises the StoreErrors, InvalidEvent,
        and UnknownReference for a tenant that never had a session, where the log cannot make one.
        """
        scrubber, tenant = scrubber_of(scrub), bound_to(tenant)
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
            directory,
            durability=durability,
            read_only=read_only,
            keys=keystore,
            clock=clock,
            kek=kek,
            tenant=tenant,
        )
        log = cls(store, created=created, clock=clock, scrubber=scrubber)
        try:
            if read_only:
                log.reader.require_tenant()
        except BaseException:
            log.close()
            raise
        return log

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
        tenant = bound_to(None)
        created = opening.create(directory, mirror=mirror, keys=keystore, clock=clock, kek=kek)
        store = opening.open_store(
            directory, durability="full", read_only=False, keys=None, clock=clock, kek=kek, tenant=tenant
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
        tenant = require_own(self.tenant, tenant)
        row = self.reader.find_session(session_id)
        if row is not None and tenant is not None and row.tenant != tenant:
            raise UnknownReference("session", session_id)
        return Session(self, session_id, tenant)

    def sessions(self) -> list[SessionSummary]:
        """Every session that is not removed, by id, the reserved `_store` included.

        Raises UnknownReference where the log is bound to a tenant that never had a session.
        """
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
        """The store's own mirror. Raises NotAStore on an ephemeral log.

        On a log that is bound to a tenant, the files of its sessions; to keep those of all is refused.
        """
        if self._shown_mirror is None:
            raise NotAStore(":memory:", "an ephemeral log has no mirror")
        return self._shown_mirror

    def _redactor(self) -> Redactor:
        return Redactor(self._store, self._clock, self._mirror_at)

    def verify(
        self, *session_ids: str, anchor: Anchor | None = None, projections: bool = False
    ) -> Iterator[Finding]:
        """Check everything that can be checked, and yield what is wrong. See `convlog_sqlite.verify`.

        With `projections`, every shipped projection is folded anew and compared with what is kept of it. On a log
        that is bound to a tenant, what is wrong about its sessions; an anchor is the whole store's, and refused.
        """
        if anchor is not None:
            require_whole_store(self.tenant, "an anchor")
        sessions = session_ids if self.tenant is None else self._own_sessions(session_ids)
        from convlog_sqlite.verify import verify  # noqa: PLC0415 seldom needed, and the command starts without it

        known = None if anchor is None else (anchor.store, anchor.pos, anchor.chain)
        return verify(self._whole, self._mirror, sessions, known, self._projections if projections else None)

    def _own_sessions(self, named: Sequence[str]) -> Sequence[str]:
        """Those that were named, or all that the tenant has, the removed ones too. Raises UnknownReference."""
        for session in named:
            self.reader.require_session(session)
        return named or [*self.reader.session_ids(), *(one.id for one in self.reader.removed_sessions())]

    def _prove(self, reader: Reader) -> list[Finding]:
        from convlog_sqlite.verify import verify  # noqa: PLC0415 as above

        return list(verify(reader, None))

    @whole_store
    def anchor(self) -> Anchor:
        """The head of the store's chain, to be kept elsewhere."""
        pos, chain = self.reader.store_head()
        return Anchor(
            id_text(self.reader.store_id), pos, chain.hex(), from_microseconds(self._clock() // 1000)
        )

    @whole_store
    def status(self) -> dict[str, Any]:
        """What the store is and how it is doing, as JSON values. See `convlog status`."""
        from convlog_sqlite.status import status  # noqa: PLC0415 seldom needed, and the command starts without it

        return status(self._store, self.reader, self._mirror)

    def waiter(self) -> Waiter:
        """Waits for commits by any process; the caller closes it."""
        return Waiter(self._store.database, self.path)

    def _open_mirror(self, reader: Reader) -> Mirror | None:
        if self.path is None:
            return None
        with self._store.database.read() as connection:
            enabled = copies.has_mirror(connection)
        return Mirror(reader, self.path / copies.OWN_MIRROR, self.path, enabled=enabled)

    def close(self) -> None:
        """Write down what was read, stop the mirror's thread, close every file. Safe to call twice."""
        self._flush_readings()
        for mirror in (self._mirror, self._shown_mirror):
            if mirror is not None:
                mirror.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<conversation log {self.path or 'in memory'}>"
