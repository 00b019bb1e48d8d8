"""Projections of one open log: folds brought up to date, remembered, and kept as snapshots.

A handle remembers the state of each projection of a session and folds only what is new. What it appends itself it
folds in at once, so that who appends and asks in turn reads nothing anew. A fold that took
many events is kept as a snapshot, for the next handle to start from; where that cannot be written, nothing
is lost but time. No read block is open while a fold's code runs.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.database import MEMORY, Connection
from convlog_sqlite.errors import (
    InvalidEvent,
    ProjectionFailed,
    StoreError,
    UnknownProjection,
    UnknownReference,
)
from convlog_sqlite.events import Event, Live
from convlog_sqlite.projections.agents import AGENTS
from convlog_sqlite.projections.memories import MEMORIES
from convlog_sqlite.projections.plans import PLANS
from convlog_sqlite.projections.projection import Look, Projection
from convlog_sqlite.projections.states import STATE
from convlog_sqlite.projections.tasks import tasks
from convlog_sqlite.projections.unresolved import APPROVALS, OPEN
from convlog_sqlite.projections.work import CALLS, EFFECTS, THREADS
from convlog_sqlite.store import folding
from convlog_sqlite.store.committing import Writer
from convlog_sqlite.store.folding import Place
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.sessions import Segment, require_there
from convlog_sqlite.store.snapshots import Generation, Snapshots, Subject, generation

TASKS: Final = "tasks"
_SHIPPED: Final = (STATE, OPEN, PLANS, AGENTS, CALLS, EFFECTS, THREADS, APPROVALS, MEMORIES)
SHIPPED: Final[Mapping[str, Projection]] = {projection.name: projection for projection in _SHIPPED}
NAMES: Final = tuple(sorted([TASKS, *SHIPPED]))

SNAPSHOT_EVENTS: Final = 1000  # fewer are folded faster than a snapshot is written
_BYTES_AN_EVENT: Final = 512  # a large state is kept less often: at most this much is written for an event
_REMEMBERED: Final = 64
_NO_CONTENT: Final = Live(b"{}")


@dataclass(slots=True)
class _Standing:
    """A state as of `seq`, read under a generation of erasure. `kept` is the seq of the newest snapshot known,
    `due` the seq from which on the next one is worth trying.
    """

    seq: int
    state: Any
    read_under: Generation
    kept: int
    due: int


_Page = tuple[Segment, list[Any], int]


@dataclass(frozen=True, slots=True)
class _Now:
    """A session as it is when a state is asked for. `place` is None while it has no events.

    `news` is the page behind the seq up to which the state is remembered, read in the same block, and that seq.
    """

    place: Place | None
    generation: Generation
    news: tuple[int, _Page] | None = None


class Projections:
    """The projections of one open log. Safe to use from several threads."""

    def __init__(self, reader: Reader, snapshots: Snapshots, writer: Writer) -> None:
        self._reader, self._snapshots, self._writer = reader, snapshots, writer
        self._own: dict[str, Projection] = {}
        self._standing: OrderedDict[tuple[int, Projection], _Standing] = OrderedDict()
        self._tasks: dict[tuple[tuple[str, str], ...], Projection] = {}
        self._threads = threading.RLock()  # a fold may ask for another state

    def register(self, projection: Projection) -> None:
        """Let a projection be asked for by its name. Raises InvalidEvent where a shipped one has it."""
        _check_own(projection)
        self._own[projection.name] = projection

    @property
    def names(self) -> Sequence[str]:
        """Every projection that can be asked for by name."""
        return sorted([*NAMES, *self._own])

    def state(
        self, session: str, wanted: str | Projection, at: int | None = None, *, rebuild: bool = False
    ) -> Any:
        """What callers see of a projection, as of seq `at`.

        Raises UnknownProjection, UnknownReference, SessionRemoved, ProjectionFailed.

        `rebuild` uses no remembered state and no snapshot, and replaces them.
        """
        self._reader.database.check_usable()  # first: the lock of a forked handle may be held by no one
        with self._threads:
            projection = self.find(wanted)
            if at is None and not rebuild and (known := self._known(session, projection)) is not None:
                state, place = known
                return _shown(projection, state, Look(self._reader, place))
            now = self._now(session, None if rebuild else projection)
            state = self._folded(now, projection, at, rebuild=rebuild)
            return _shown(projection, state, Look(self._reader, now.place))

    def _known(self, session: str, projection: Projection) -> tuple[Any, Place] | None:
        """The state that is remembered, where it is that of the last event: nobody but this handle appended since."""
        row = self._writer.sessions.known(session)
        standing = None if row is None else self._standing.get((row.number, projection))
        # A fold of content hangs on what was erased, too.
        if row is None or standing is None or not _is_taken_in(projection) or standing.seq >= standing.due:
            return None
        if self._writer.head_of(row) != standing.seq:
            return None
        return standing.state, Place(row, tuple(reversed(row.line)), standing.seq)

    def take_in(self, session: str, events: Sequence[Event]) -> None:
        """Fold what this handle appended into the states that it follows on. Waits for nobody, and never raises."""
        row = self._writer.sessions.known(session)
        if row is None or not self._standing or not self._threads.acquire(blocking=False):
            return
        try:
            for key, standing in list(self._standing.items()):
                if key[0] == row.number and _is_taken_in(key[1]):
                    self._take_in(key, standing, events)
        finally:
            self._threads.release()

    def _take_in(self, key: tuple[int, Projection], standing: _Standing, events: Sequence[Event]) -> None:
        projection = key[1]
        del self._standing[key]  # what is interrupted or fails half way is folded anew
        try:
            for event in events:
                if event.seq != standing.seq + 1:
                    break
                bare = Event(event.envelope_bytes, _NO_CONTENT)
                if projection.needs(bare):
                    found = projection.fold(standing.state, bare)
                    standing.state = standing.state if found is None else found
                standing.seq += 1
        except Exception:  # noqa: BLE001 the event stands; who asks for the state folds it anew, and is told
            return
        self._standing[key] = standing

    def folded(self, session: str, wanted: str, upto: int) -> Any:
        """The bare state of a projection at a seq, folded from the first event on; nothing is kept."""
        now = self._now(session)
        projection = self.find(wanted)
        return self._advance(now, projection, self._begin(now, projection, upto, rebuild=True), upto)

    def kept(self, session: str, wanted: str) -> tuple[int, Any] | None:
        """The seq and the bare state of the newest snapshot of a projection, if there is one."""
        now = self._now(session)
        if now.place is None:
            return None
        subject = _subject(now.place, self.find(wanted))
        return self._snapshots.newest(subject, now.place.head)

    def _now(self, session: str, projection: Projection | None = None) -> _Now:
        with self._reader.database.read() as connection:
            place = self._place(connection, session)
            return _Now(place, generation(connection), self._news(connection, place, projection))

    def _news(
        self, connection: Connection, place: Place | None, projection: Projection | None
    ) -> tuple[int, _Page] | None:
        """The page behind what is remembered: mostly all that is to be folded, and then one block is enough."""
        if place is None or projection is None:
            return None
        standing = self._standing.get((place.row.number, projection))
        if standing is None or standing.seq >= place.head:
            return None
        after, whole = standing.seq, projection.reads_content
        return after, folding.page(connection, place, projection.wanted, after, place.head, whole=whole)

    def _place(self, connection: Connection, session: str) -> Place | None:
        row = self._reader.row(connection, session)
        if row is None:
            return None
        require_there(connection, row.number)
        return folding.place_of(connection, row)

    def find(self, wanted: str | Projection) -> Projection:
        """The projection of a name. Raises UnknownProjection."""
        if isinstance(wanted, Projection):
            _check_own(wanted)
            return wanted
        if wanted == TASKS:
            return self._of_tasks()
        found = SHIPPED.get(wanted) or self._own.get(wanted)
        if found is None:
            raise UnknownProjection(wanted, self.names)
        return found

    def _of_tasks(self) -> Projection:
        with self._reader.database.read() as connection:
            kinds = folding.task_kinds(connection)
        key = tuple(kinds.items())
        if key not in self._tasks:
            self._tasks = {key: tasks(kinds)}
        return self._tasks[key]

    def _folded(self, now: _Now, projection: Projection, at: int | None, *, rebuild: bool) -> Any:
        place = now.place
        head = 0 if place is None else place.head
        if at is not None and not 0 <= at <= head:
            raise UnknownReference("at", f"seq {at}")
        if place is None:
            return projection.begin()
        key = (place.row.number, projection)
        # Taken out: what is interrupted or fails half way is folded anew.
        standing = None if rebuild else self._standing.pop(key, None)
        if standing is not None and projection.reads_content and standing.read_under != now.generation:
            standing = None  # it may hold what was erased
        if at is not None and at != head:
            return self._earlier(now, projection, at, key, standing, rebuild=rebuild)
        if standing is None or standing.seq > head:
            standing = self._begin(now, projection, head, rebuild=rebuild)
        standing.state = self._advance(now, projection, standing, head)
        standing.seq, standing.read_under = head, now.generation
        self._keep(place, projection, standing, rebuild=rebuild)
        self._remember(key, standing)
        return standing.state

    def _earlier(
        self,
        now: _Now,
        projection: Projection,
        at: int,
        key: tuple[int, Projection],
        standing: _Standing | None,
        *,
        rebuild: bool,
    ) -> Any:
        """The state at a seq that is not the last: folded for this call only."""
        if standing is not None:
            self._remember(key, standing)
            if standing.seq == at:
                return standing.state
        return self._advance(now, projection, self._begin(now, projection, at, rebuild=rebuild), at)

    def _begin(self, now: _Now, projection: Projection, upto: int, *, rebuild: bool) -> _Standing:
        """The newest snapshot at or before a seq, else the beginning."""
        kept = None
        if now.place is not None and not rebuild:
            kept = self._snapshots.newest(_subject(now.place, projection), upto)
        seq, state = kept if kept is not None else (0, projection.begin())
        return _Standing(seq, state, now.generation, seq, seq + SNAPSHOT_EVENTS)

    def _advance(self, now: _Now, projection: Projection, standing: _Standing, upto: int) -> Any:
        """The state once the events up to a seq are folded in."""
        state, after, whole = standing.state, standing.seq, projection.reads_content
        place, wanted, fold = now.place, projection.wanted, projection.fold
        while place is not None and after < upto:
            if now.news is not None and now.news[0] == after and now.news[1][2] <= upto:
                segment, rows, after = now.news[1]
            else:
                with self._reader.database.read() as connection:
                    segment, rows, after = folding.page(connection, place, wanted, after, upto, whole=whole)
            event: Event | None = None
            try:
                for event in folding.opened(self._reader.opener, segment, rows, whole=whole):
                    found = fold(state, event)
                    if found is not None:
                        state = found
                if not _is_shipped(projection):
                    strictjson.check(state)
            except Exception as error:
                if event is None or isinstance(error, StoreError):
                    raise
                raise ProjectionFailed(projection.name, event.seq, event.id, error) from error
        return state

    def _keep(self, place: Place, projection: Projection, standing: _Standing, *, rebuild: bool) -> None:
        database = self._reader.database
        if standing.seq < standing.due or database.read_only or database.path == MEMORY:
            return
        size = len(strictjson.dump(standing.state))
        standing.due = max(standing.seq + SNAPSHOT_EVENTS, standing.kept + size // _BYTES_AN_EVENT)
        if size > (standing.seq - standing.kept) * _BYTES_AN_EVENT:
            return
        # The state was asked for, not the snapshot: a full disk or a busy writer is no reason to fail.
        with contextlib.suppress(StoreError):
            subject = _subject(place, projection)
            if rebuild:
                self._snapshots.forget(subject)
            self._snapshots.keep(subject, standing.seq, standing.state, standing.read_under)
            standing.kept = standing.seq

    def _remember(self, key: tuple[int, Projection], standing: _Standing) -> None:
        self._standing[key] = standing
        while len(self._standing) > _REMEMBERED:
            self._standing.popitem(last=False)


def _check_own(projection: Projection) -> None:
    """Two folds under one name would go on from each other's snapshots."""
    if not isinstance(projection, Projection):
        raise InvalidEvent("/projection", "a Projection, or the name of one")
    if projection.name in NAMES:
        raise InvalidEvent("/name", "a projection of convlog's own has this name")


def _subject(place: Place, projection: Projection) -> Subject:
    return Subject(place.row, projection.name, projection.version)


def _shown(projection: Projection, state: Any, look: Look) -> Any:
    """What callers see: their own, whatever they do with it."""
    if _is_shipped(projection):
        shown = state if projection.render is None else projection.render(state, look)
        return strictjson.load(strictjson.dump(shown))
    copied = strictjson.load(strictjson.dump(state))
    if projection.render is None:
        return copied
    try:
        return projection.render(copied, look)
    except Exception as error:
        raise ProjectionFailed(projection.name, None, None, error) from error


def _is_taken_in(projection: Projection) -> bool:
    """Whether appends are folded in as they are made: no code of a caller's runs in them."""
    return not projection.reads_content and _is_shipped(projection)


def _is_shipped(projection: Projection) -> bool:
    return projection.name in NAMES
