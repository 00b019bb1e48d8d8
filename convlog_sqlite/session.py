"""Session: one conversation, to append to and to read. Thin over the store.

The append verbs return the recorded `Event` once it is committed; at full durability it then survives
power loss. An exception means that nothing was written, except for `StoreIOError` from a failed sync,
where nobody can know: append again with the same `idempotency_key` to settle it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, Unpack

from convlog_sqlite import strictjson
from convlog_sqlite.budget import within
from convlog_sqlite.coordination import identity, reply
from convlog_sqlite.drafts import Draft
from convlog_sqlite.errors import NotAuthorized, UnknownReference
from convlog_sqlite.events import Event
from convlog_sqlite.follow import Waiter
from convlog_sqlite.joining import Joining
from convlog_sqlite.moment import DEFAULT_LIMIT, Moment
from convlog_sqlite.participants import Appending, Author
from convlog_sqlite.projections import differences
from convlog_sqlite.projections.differences import Discrepancy
from convlog_sqlite.projections.projection import Projection
from convlog_sqlite.remembering import Claim
from convlog_sqlite.replaying import Pace, Replayed, borders, marked, parts
from convlog_sqlite.store.blobs import FIRST_ATTACHMENT, WHOLE_VALUE
from convlog_sqlite.store.listening import RECORDED, Hears
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.reader import Page
from convlog_sqlite.store.reading import SCAN
from convlog_sqlite.verbs import Filters
from convlog_sqlite.vocabulary import ACCEPTANCES, DECISIONS, LAST_SEQ

if TYPE_CHECKING:
    from convlog_sqlite.views.definition import View
    from convlog_sqlite.views.slices import Slice

_FOLLOW_LIMIT: Final = 500


class Log(Appending, Protocol):
    """What a session needs of the log it belongs to."""

    def fork_session(self, session: str, new_id: str, at: Point | None, agent: str) -> Event: ...
    def waiter(self) -> Waiter: ...
    def state_of(self, session: str, wanted: str | Projection, at: int | None, *, rebuild: bool) -> Any: ...
    def memory(self, scope: str | None, *, session: str | None, whole: bool) -> list[Claim]: ...
    def through(
        self,
        session: str,
        view: View | str | None,
        *,
        reader: str | None,
        role: str | None,
        purpose: str | None,
        upto: int = LAST_SEQ,
        tenant: str | None = None,
    ) -> Slice: ...


class Session(Joining):
    """One session of a log. Made by `ConversationLog.session`; it exists in the store from its first event on."""

    _log: Log
    _hears: Hears = None

    def __init__(self, log: Log, session_id: str, tenant: str | None) -> None:
        self._log, self.id, self.tenant = log, session_id, tenant
        self._reader = log.reader

    def append(self, draft: Draft) -> Event:
        """Record one draft. With an idempotency key that was used before, the first event is returned.

        Raises Refused (InvalidEvent, UnknownReference, PairingError, IdempotencyConflict, EventTooLarge)
        and StoreError.
        """
        return self._log.append_drafts(self.id, self.tenant, [draft], self._hears)[0]

    def append_many(self, drafts: Iterable[Draft]) -> list[Event]:
        """Record drafts in one durable transaction, all or none, in order.

        Raises what `append` raises; `index` of a Refused says which draft was at fault.
        """
        drafts = list(drafts)
        return self._log.append_drafts(self.id, self.tenant, drafts, self._hears) if drafts else []

    def informed(self) -> Session:
        """The session as one whose events say what the log knows that their author had read, whoever it is.

        For a program that appends for agents which listen elsewhere. Of an author who is not known to have read
        anything, nor to take part, an event says nothing.
        """
        informed = Session(self._log, self.id, self.tenant)
        informed._hears = RECORDED
        return informed

    def _claims(self, scope: str | None, *, whole: bool) -> list[Claim]:
        return self._log.memory(scope, session=self.id, whole=whole) if self.head else []

    def bound(self, author: Author) -> Session:
        """The session as one in which `author` writes: everything that is recorded goes through it."""
        return _Bound(self, author)

    def _other(self, session_id: str) -> Session:
        return Session(self._log, session_id, self.tenant)

    @property
    def head(self) -> int:
        """The seq of the last event, 0 while there is none."""
        return self._reader.head(self.id)

    def tail(
        self,
        n: int = 20,
        *,
        before: int | None = None,
        pairs: bool = False,
        max_chars: int | None = None,
        brief: bool = False,
        max_scan: int = SCAN,
        **filters: Unpack[Filters],
    ) -> Page:
        """The last `n` events (before seq `before`), ascending, at the same cost in any length of session.

        With `pairs`, calls that are answered in the window and stand in front of it, or do not match the
        filters, are added, so that no result stands without its call. `Page.next` is the `before` of the page in front.

        With `max_chars`, the newest of them that fit in so many characters, pairs kept whole and long content cut;
        `Page.left_out` says what is not there. Counted is what `Page.lines` gives, with `brief` its brief lines. See
        `convlog_sqlite.budget`. Raises BudgetTooSmall.
        """
        page = self._reader.tail(self.id, n, before, filters, max_scan)
        return within(self._reader, self.id, page, pairs, max_chars, brief)

    def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = DEFAULT_LIMIT,
        max_scan: int = SCAN,
        **filters: Unpack[Filters],
    ) -> Page:
        """Up to `limit` events between seq `after` and `before`, both exclusive, ascending.

        `Page.next` is the `after` of the next page, None at the end.
        """
        return self._reader.read(self.id, after, before, limit, filters, max_scan)

    def jsonl(self, *, after: int = 0, before: int | None = None, inherited: bool = False) -> Iterator[bytes]:
        """The canonical lines, each with its newline, in constant memory.

        Those of the session itself, as its mirror holds them; with `inherited`, in front of them those that a
        fork shares, which name the session that they belong to.
        """
        return self._reader.lines(self.id, after, before, own=not inherited)

    def event(self, seq: int) -> Event | None:
        """The event at `seq`, or None."""
        page = self._reader.read(self.id, seq - 1, seq + 1, 1, {})
        return page[0] if page else None

    def open_calls(self, *, after: int = 0, limit: int = DEFAULT_LIMIT) -> Page:
        """Tool calls that have no result yet, ascending.

        In a fork also those that it shares: there a read looks at a bounded number of events, and `Page.next`
        says where to go on.
        """
        return self._reader.open_calls(self.id, after, limit)

    def at(self, point: Point) -> Moment:
        """The session as it was at a point, state included, to be read like the session itself.

        A point is an event or its id, a seq, or an instant (an aware datetime or RFC 3339). An instant stands
        for the last event whose `ts` is not after it, that with the largest seq. Raises UnknownReference when
        there was nothing yet and for what does not exist, InvalidEvent for an event of another session.
        """
        return Moment.of(self._reader, self.id, point, self._log)

    def through(
        self,
        view: View | str | None = None,
        *,
        reader: str | None = None,
        role: str | None = None,
        purpose: str | None = None,
    ) -> Slice:
        """The session as a view shows it to the agent `reader`, to be read like the session itself.

        `view` is a View, the name of one (`worker`, or a version of it: `worker@2`), or None: that of `role`, else
        of the reader's role. `purpose` is what it is read for; a view may fix it. Raises UnknownReference for a
        view or role that nobody defined, NotAuthorized for a reader without a role and where the view is not for this
        session or purpose, InvalidEvent where a view takes a reader and none is named.
        """
        who: Any = {"reader": reader, "role": role, "purpose": purpose}
        return self._log.through(self.id, view, tenant=self.tenant, **who)

    def fork(self, new_id: str, at: Point | None = None, *, agent: str) -> Session:
        """A new session that shares the events up to a point (default: all there are), by reference.

        It takes the same time in any length of session. The fork's seq goes on from there, and every read of
        it goes on in what it shares; a call that waits there may be answered in each branch, an effect is
        moved only where it was proposed, and idempotency keys are each session's own. What is shared still belongs to the session that it was appended to:
        there it is redacted and expires, for both, unless a hold covers the fork. Raises InvalidEvent when
        there is a session `new_id`, and what `at` raises.
        """
        return Session(self._log, self._log.fork_session(self.id, new_id, at, agent).session, self.tenant)

    def replay(
        self,
        *,
        start: Point | None = None,
        end: Point | None = None,
        speed: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[Replayed]:
        """The events from `start` to `end`, both included, in order, each marked as intent or as fact.

        They come as far apart as they happened, `speed` times as fast; None: as fast as it goes. What is
        appended meanwhile does not belong to it. `sleep` and `clock` count seconds. See
        `convlog_sqlite.replaying` for the marks. Raises what `at` raises, and ValueError for a speed.
        """
        pace = Pace(speed, clock)
        after, upto = borders(self._reader, self.id, start, end)
        return self._replayed(marked(self._reader, self.id, after, upto), pace, sleep)

    def _replayed(
        self, found: Iterator[Replayed], pace: Pace, sleep: Callable[[float], None]
    ) -> Iterator[Replayed]:
        for replayed in found:
            for seconds in parts(pace.wait(replayed.event)):
                sleep(seconds)
            yield replayed

    def state(
        self, projection: str | Projection = "state", *, at: Point | None = None, rebuild: bool = False
    ) -> Any:
        """What a projection says of the session, as of now, or of a point `at`: JSON values, the caller's own.

        `state` is what stands for each state key, `open` all that is unresolved; `ConversationLog.projections`
        lists the others. Only what is new since the last call, or since a snapshot, is folded; `rebuild` starts
        from the first event. Raises UnknownProjection, UnknownReference for a seq beyond the end, SessionRemoved, and
        ProjectionFailed when a projection of the caller's raised.
        """
        seq = at if at is None or isinstance(at, int) else self.at(at).seq
        return self._log.state_of(self.id, projection, seq, rebuild=rebuild)

    def against(self, given: Mapping[str, Any], *, at: Point | None = None) -> list[Discrepancy]:
        """Where a map of state keys to values, kept beside the log, is not what the log gives; all of it.

        Raises InvalidEvent for what is no JSON, and UnknownReference as `state` does.
        """
        strictjson.check(given, "")
        return list(differences.from_values(given, self.state(at=at)))

    def content(self, event: Event) -> Any:
        """The main content of an event, whole also where the line holds a preview of it.

        Raises PayloadUnreadable.
        """
        payload = (self._reader.event(event.id) if event.cut else event).require_payload()
        if "truncated" in payload:
            return strictjson.load(self._reader.blob(event, WHOLE_VALUE))
        return next((payload[key] for key in ("body", "args", "result", "value") if key in payload), None)

    def attachment(self, event: Event, index: int = 0) -> bytes:
        """The bytes of one attachment. Raises UnknownReference, PayloadUnreadable."""
        if index < 0:
            raise UnknownReference("attachments", str(index))
        return self._reader.blob(event, FIRST_ATTACHMENT + index)

    def ask(
        self, body: str, *, agent: str, to: str, task_id: str | None = None, timeout: float | None = None
    ) -> Event:
        """Ask another agent, and wait for its reply: the first event of another that has the request as its parent.

        Raises NoReply, whose `request` can be waited for again with `reply_to`.
        """
        return self.reply_to(self.request(body, agent=agent, to=to, task_id=task_id), timeout=timeout)

    def reply_to(self, request: Event | str, *, timeout: float | None = None) -> Event:
        """Wait for the first event of another agent that has `request` as its parent. Raises NoReply."""
        waiter = self._log.waiter()
        try:
            return self.reply_by(waiter, request, timeout)
        finally:
            waiter.close()

    def approved(self, proposal: Event | str, *, timeout: float | None = None) -> Event:
        """Wait until a proposal is accepted; the event that accepts it, to be named in `authorized_by`.

        Raises NotAuthorized when it is rejected, NoReply when neither came in `timeout` seconds.
        """
        waiter = self._log.waiter()
        try:
            return self.approval_by(waiter, proposal, timeout)
        finally:
            waiter.close()

    def reply_by(self, waiter: Waiter, request: Event | str, timeout: float | None) -> Event:
        """What `reply_to` does, until `waiter` is interrupted; the caller closes it."""
        return reply(self._reader, waiter, identity(request), timeout, frozenset())

    def approval_by(self, waiter: Waiter, proposal: Event | str, timeout: float | None) -> Event:
        """What `approved` does, until `waiter` is interrupted; the caller closes it."""
        answer = reply(self._reader, waiter, identity(proposal), timeout, DECISIONS)
        if answer.performative not in ACCEPTANCES:
            raise NotAuthorized(
                answer.agent, f"the proposal was answered by {answer.performative} {answer.id}"
            )
        return answer

    def follow(
        self,
        after: int | None = None,
        *,
        timeout: float | None = None,
        through: Slice | None = None,
        **filters: Unpack[Filters],
    ) -> Iterator[Event]:
        """Events as any process appends them, in order, none missed.

        Starts behind seq `after` (default: behind the events there are now). Ends when nothing was
        appended for `timeout` seconds; without one it goes on for ever. With `through`, what that slice
        selects. Nothing in the database stays open while the caller's code runs.
        """
        return self._followed(self.head if after is None else after, timeout, filters, through)

    def _followed(
        self, after: int, timeout: float | None, filters: Filters, through: Slice | None
    ) -> Iterator[Event]:
        # The waiter is made when the first event is asked for: its first answer is "look", so none is missed.
        for page in self.follow_pages(self._log.waiter(), after, timeout, filters, through):
            yield from page

    def follow_pages(
        self,
        waiter: Waiter,
        after: int,
        timeout: float | None,
        filters: Filters,
        through: Slice | None = None,
    ) -> Generator[Page, None, None]:
        """What `follow` does, a page at a time, until `waiter` is interrupted; closes it at the end."""
        read = self.read if through is None else through.selected
        idle_since = time.monotonic()
        try:
            while True:
                head = self.head
                while after < head:
                    page = read(after=after, before=head + 1, limit=_FOLLOW_LIMIT, **filters)
                    yield page
                    after = head if page.next is None else page.next
                    idle_since = time.monotonic()
                left = None if timeout is None else timeout - (time.monotonic() - idle_since)
                if (left is not None and left <= 0) or not waiter.wait(left):
                    return
        finally:
            waiter.close()

    def __repr__(self) -> str:
        return f"<session {self.id}>"


class _Bound(Session):
    def __init__(self, session: Session, author: Author) -> None:
        super().__init__(session._log, session.id, session.tenant)  # noqa: SLF001 it is one of them
        self._author = author

    def append(self, draft: Draft) -> Event:
        return self._author.append(draft)

    def append_many(self, drafts: Iterable[Draft]) -> list[Event]:
        return self._author.append_many(drafts)
