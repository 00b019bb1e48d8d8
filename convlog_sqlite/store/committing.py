"""Group commit: appends that wait together share one durable transaction.

Whoever comes first leads: it takes the write lock, and commits what it finds waiting, its own among it,
while the next ones queue up behind. A sync serves them all. When its own are settled, the first of those who
wait leads, and is woken for it; the others are woken when theirs are settled, and not before. Each append has a savepoint of its own, so
that one that is refused takes no seq and harms no other.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from convlog_sqlite.database import Connection, Database, fetch, value
from convlog_sqlite.drafts import Draft
from convlog_sqlite.errors import (
    ConvlogError,
    InvalidEvent,
    Refused,
    StoreBusy,
    StoreError,
    StoreIOError,
)
from convlog_sqlite.events import Event
from convlog_sqlite.instants import Clock
from convlog_sqlite.keystore import Keystore
from convlog_sqlite.store import listening, readings
from convlog_sqlite.store.listening import Heard, Recall, Recorded
from convlog_sqlite.store.names import Names
from convlog_sqlite.store.preparing import Prepared, prepare
from convlog_sqlite.store.reading import Opener
from convlog_sqlite.store.readings import Noted
from convlog_sqlite.store.requests import Request
from convlog_sqlite.store.sessions import SessionRow, Sessions, require_there
from convlog_sqlite.store.writing import Appended, Batch, Context

HIGHEST_SLOT: Final = "SELECT coalesce(max(number), -1) FROM slot"
SELECT_UNDONE: Final = "SELECT id FROM intent"
SAVEPOINT: Final = "SAVEPOINT append"
ROLLBACK_TO: Final = "ROLLBACK TO append"
RELEASE: Final = "RELEASE append"

# How often an append looks for erasures that are decided and not done, where another handle committed at all.
LOOK_SECONDS: Final = 1.0
_LEADER_SECONDS: Final = 1.0  # should a leader be interrupted before it can name the next one
_GATHER_SECONDS: Final = 0.001  # a thread that only computes keeps the interpreter for several times as long
_MOST_DRAFTS: Final = 1000  # in one transaction, unless a single append has more


class OneAppend:
    """A block for one append at a time in a thread: a signal handler in the middle of one would wait for itself."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._inside: set[int] = set()

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if thread in self._inside:
            raise StoreBusy(self._path, "this thread is in the middle of an append (a signal handler?)")
        try:
            self._inside.add(thread)
        except BaseException:  # an interrupt when it is in
            self._inside.discard(thread)
            raise

    def __exit__(self, *_error: object) -> None:
        self._inside.discard(threading.get_ident())


def _recall(connection: Connection, session: SessionRow, agent: str) -> Heard | None:
    return listening.recall(connection, session, agent, lambda _: listening.Everything())


class Writer:
    """Appends drafts. Safe to use from several threads."""

    def __init__(
        self,
        database: Database,
        keystore: Keystore,
        store_id: bytes,
        clock: Clock,
        tenant: str | None = None,
    ) -> None:
        """Bound to a `tenant`, drafts name no event of another: such ids are unknown."""
        self.database, self.keystore, self.store_id = database, keystore, store_id
        self.clock, self.tenant = clock, tenant
        self.names, self.sessions, self.opener = Names(), Sessions(), Opener(keystore, store_id, database)
        self.recall: Recall = _recall  # until somebody says who sees what
        known = self.names, self.sessions, self.opener, self._recalled
        self._context = Context(store_id, keystore, clock, *known, is_bound=tenant is not None)
        self._waiting: deque[Request] = deque()
        self._changing = threading.Lock()  # who waits and who leads
        self._leader: Sequence[Request] | None = None  # those whose thread commits
        self._leading = threading.Lock()  # held for each commit
        self._looked = -LOOK_SECONDS
        self._together_last = 1  # how many appends the last commit served
        self.undone: frozenset[bytes] = frozenset()

    def append(self, session: str, tenant: str | None, prepared: Sequence[Prepared]) -> list[Appended]:
        """Record drafts, all or none; the session is opened if it is new.

        Returns once they are committed and, at full durability, synced. Raises Refused with `index`
        set when one of several drafts is at fault, and nothing was written.
        """
        request = self.request(session, tenant, prepared)
        self.settle([request])
        return request.outcome()

    def _recalled(self, connection: Connection, session: SessionRow, agent: str) -> Heard | None:
        return self.recall(connection, session, agent)

    def settle(self, requests: Sequence[Request]) -> None:
        """Commit requests, with whatever else waits. Returns when each has its outcome."""
        try:
            self._join(requests)
            for request in requests:
                while not request.settled:
                    if self._leader is not requests:
                        self._wait(requests, request)
                        continue
                    with self._leading:
                        if not request.settled:
                            self._gather()
                            self._commit(self._together())
        except BaseException:  # interrupted: what waits is not to be written by a later append
            for request in requests:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(request)
            raise
        finally:
            if self._leader is requests:
                self._resign()

    def _join(self, requests: Sequence[Request]) -> None:
        with self._changing:
            turn = None if self._leader is None else SimpleQueue[None]()
            for request in requests:
                request.together, request.turn = requests, turn
            self._waiting.extend(requests)
            if turn is None:
                self._leader = requests

    def _wait(self, requests: Sequence[Request], request: Request) -> None:
        """Until the request is settled, or it is for its thread to lead."""
        if request.turn is None:  # it led, and another took its place
            request.turn = SimpleQueue()
        with contextlib.suppress(Empty):
            return request.turn.get(timeout=_LEADER_SECONDS)
        # Nobody commits: then the leader is gone. Whoever notices leads; commits exclude each other in any case.
        if self._leading.acquire(blocking=False):
            self._leading.release()
            self._leader = requests
        return None

    def _resign(self) -> None:
        with self._changing:
            heir = self._waiting[0] if self._waiting else None
            self._leader = None if heir is None else heir.together
            if heir is not None and heir.turn is not None:
                heir.turn.put(None)

    def request(
        self,
        session: str,
        tenant: str | None,
        prepared: Sequence[Prepared],
        heard: Heard | Recorded | None = None,
    ) -> Request:
        """An append ready to be committed: its keys are durable. `heard` is what its author had heard."""
        self.database.check_open()  # in a forked child the keystore's lock may be held for ever
        wanted = len(prepared) + sum([len(item.blobs) for item in prepared])
        if not self.sessions.known(session):
            wanted += 1  # for its opening: it may turn out to be new inside the transaction
        try:
            slots = self.keystore.take(wanted, self._highest_slot)
        except StoreError:
            self.database.check_usable()  # what became of the store explains what became of its keys
            raise
        return Request(session, tenant, prepared, iter(slots), heard)

    def _gather(self) -> None:
        """Let those whom the last commit woke come with their next, if that is what they do: a sync serves them all.

        Each yield lets other threads run until they wait; with none to run it takes a microsecond or two.
        """
        deadline = time.monotonic() + _GATHER_SECONDS
        for _ in range(self._together_last - 1):
            if len(self._waiting) >= self._together_last or time.monotonic() > deadline:
                return
            time.sleep(0)

    def _together(self) -> list[Request]:
        requests: list[Request] = []
        drafts = 0
        while self._waiting and (not requests or drafts + len(self._waiting[0].prepared) <= _MOST_DRAFTS):
            requests.append(self._waiting.popleft())
            drafts += len(requests[-1].prepared)
        self._together_last = len(requests)
        return requests

    def _commit(self, requests: Sequence[Request]) -> None:
        """Commit requests in one transaction, and settle each: recorded, or with the error that is its own."""
        committed = False
        try:
            with self.database.write() as connection:
                self._begin(connection)
                self._look(connection)
                if len(requests) == 1:
                    self._record(connection, requests[0])
                else:
                    self._record_all(connection, requests)
            committed = True
            self._settle(requests)
        except ConvlogError as error:
            self._fail(requests, error)
        except BaseException as error:
            # The interrupt is this thread's. To those who wait with it, it says what became of their appends.
            committed = committed or getattr(error, "committed", False)
            raise error from None
        finally:
            # Nobody waits for ever for a leader that was interrupted.
            for request in requests:
                if not request.settled and committed:
                    self._settle(requests)
                elif not request.settled:
                    interrupted = StoreIOError(self.database.path, "interrupted before it was committed")
                    self._fail(requests, interrupted)

    def _begin(self, connection: Connection) -> None:
        """What comes first in each transaction that seals. Raises StoreError where the keystore is not the store's any more."""
        self.keystore.check_usable()
        self._context.heads.refresh(connection)

    def _record_all(self, connection: Connection, requests: Sequence[Request]) -> None:
        """Record several appends. Neighbours that nothing can refuse share a batch: their rows go in together."""
        shared: Batch | None = None
        for request in requests:
            session = self._session_of_plain(connection, request)
            if shared is not None and session is not shared.session:
                shared.flush()
                shared = None
            if session is None:
                self._record_apart(connection, request)
                continue
            try:
                shared = shared or Batch(self._context, connection, session)
            except Refused:  # the session was removed: that is said to each append by itself
                self._record_apart(connection, request)
            else:
                self._add(shared, request)
        if shared is not None:
            shared.flush()

    def _session_of_plain(self, connection: Connection, request: Request) -> SessionRow | None:
        """The session of an append that nothing in the tables can refuse; None of one that must be looked at."""
        session = self.sessions.known(request.session)
        if session is None or (request.tenant is not None and session.tenant != request.tenant):
            return None
        if request.heard is not None or self._context.heads.mode(connection, session) != listening.OFF:
            return None
        return session if all(item.is_plain for item in request.prepared) else None

    def _look(self, connection: Connection) -> None:
        """Take note of erasures that are not done, in `undone`: their redactor lives, or is dead."""
        heads, now = self._context.heads, time.monotonic()
        if heads.moved and now - self._looked >= LOOK_SECONDS:
            heads.moved, self._looked = False, now
            self.undone = frozenset(intent for (intent,) in fetch(connection, SELECT_UNDONE))

    def look_again(self) -> None:
        """Look for erasures that are not done at a later append too, whether or not anybody commits."""
        self.undone, self._context.heads.moved = frozenset(), True

    def _record_apart(self, connection: Connection, request: Request) -> None:
        connection.execute(SAVEPOINT)
        try:
            self._record(connection, request)
        except Refused as refused:
            connection.execute(ROLLBACK_TO)
            self._context.heads.forget()
            request.error = refused
        connection.execute(RELEASE)

    def _record(self, connection: Connection, request: Request) -> None:
        batch = self._open(connection, request)
        self._add(batch, request)
        batch.flush()

    def _add(self, batch: Batch, request: Request) -> None:
        prepared, appended, before = request.prepared, request.appended, len(batch.slots)
        request.batch = batch
        batch.use(request.slots)
        hears = batch.listening(request.heard)
        try:
            for item in prepared:
                appended.append(batch.add(item, hears))
        except Refused as refused:
            raise (refused.at(len(appended)) if len(prepared) > 1 else refused) from None
        if hears is not None:
            hears.record()
        request.last, request.used = batch.seq, batch.slots[before:]

    def _open(self, connection: Connection, request: Request) -> Batch:
        row = self.sessions.find_for(connection, request.session, request.tenant)
        if row is not None:
            return Batch(self._context, connection, row)
        fresh: dict[str, int] = {}
        tenant = None if request.tenant is None else self.names.intern(connection, request.tenant, fresh)
        row = self.sessions.insert(connection, request.session, request.tenant, tenant)
        batch = Batch(self._context, connection, row)
        batch.use(request.slots)
        opening = Draft(type="mutation", agent=request.prepared[0].envelope["agent"], kind="session-opened")
        batch.add(prepare(opening, self.keystore.pepper))
        return batch

    def record_inside(self, connection: Connection, session: str, prepared: Prepared) -> int:
        """Record an event of an existing session inside the caller's write block; its position.

        The caller says `forget_heads` once the block is committed or rolled back.
        """
        slots = iter(self.keystore.take(1 + len(prepared.blobs), lambda: value(connection, HIGHEST_SLOT)))
        self._begin(connection)
        batch = Batch(self._context, connection, self.sessions.require(connection, session))
        batch.use(slots)
        batch.add(prepared)
        batch.flush()
        return batch.pos

    def record_decision(self, session: str, decide: Callable[[Connection], Prepared]) -> None:
        """Record the event that `decide` makes of what it reads, in the transaction that it reads in.

        What `decide` raises leaves nothing written.
        """
        with self._leading:
            try:
                with self.database.write() as connection:
                    self.record_inside(connection, session, decide(connection))
            except (
                BaseException
            ):  # whatever it was, the rows are rolled back: what is remembered of them is wrong
                self.forget_heads()
                raise

    def record_readings(self, session: str, noted: Sequence[Noted]) -> None:
        """Write readings that informed no append. Of a session that is not there, or another tenant's, there is none."""
        fresh: dict[str, int] = {}
        committed = False
        try:
            with self._leading, self.database.write() as connection:
                row = self.sessions.of(self.tenant).find(connection, session)
                if row is not None:
                    require_there(connection, row.number)
                    for one in noted:
                        readings.write(
                            connection,
                            row.number,
                            one,
                            lambda text: self.names.intern(connection, text, fresh),
                        )
            committed = True
            self.names.remember(fresh)
        finally:
            for one in noted:
                one.settle(committed=committed)

    def record_fork(self, session: str, name: str, base: int, opening: Prepared) -> Event:
        """Make the session `name`, which shares the events of `session` up to `base`, and record its opening.

        Raises InvalidEvent when there is a session of that name.
        """
        slots = self.keystore.take(1, self._highest_slot)
        with self._leading:
            try:
                with self.database.write() as connection:
                    self._begin(connection)
                    if self.sessions.find_for(connection, name, self.tenant) is not None:
                        raise InvalidEvent("/session", f"{name} exists, and a session id is used once")
                    of, fresh = self.sessions.require(connection, session), dict[str, int]()
                    tenant = None if of.tenant is None else self.names.intern(connection, of.tenant, fresh)
                    row = self.sessions.insert_fork(connection, name, of, base, tenant)
                    batch = Batch(self._context, connection, row)
                    batch.use(iter(slots))
                    event = batch.add(opening).event
                    batch.flush()
            except BaseException:  # the rows are rolled back, as in `record_decision`
                self.forget_heads()
                raise
            batch.committed()
        return event

    def head_of(self, session: SessionRow) -> int | None:
        """The last seq of a session, where this handle appended it and nobody else committed since; else None.

        Asks the tables nothing, and waits for nobody.
        """
        heads = self._context.heads
        head = heads.sessions.get(session.number)
        return None if head is None or not self.database.is_unmoved(heads.version) else head[0]

    def forget_heads(self) -> None:
        """Read the ends of the chains from the tables again."""
        self._context.heads.forget()

    def _settle(self, requests: Sequence[Request]) -> None:
        batch: Batch | None = None
        for request in requests:
            if request.error is None and request.batch is not None:
                if request.batch is not batch:
                    batch = request.batch
                    batch.committed()
                self.keystore.give_back(list(request.slots))
            request.end(committed=request.error is None)

    def _fail(self, requests: Sequence[Request], error: ConvlogError) -> None:
        self._context.heads.forget()
        for request in requests:
            request.error = request.error or error
            request.end(committed=False)

    def _highest_slot(self) -> int:
        with self.database.read() as connection:
            highest: int = value(connection, HIGHEST_SLOT)
        return highest
