"""Every error convlog raises: one tree, each leaf with the data needed to act on it.

    ConvlogError
    ├─ StoreError              the store could not do it
    │  ├─ StoreBusy            another process is writing; try again
    │  ├─ StoreFull            no space left; nothing of the call was written
    │  ├─ StoreReadOnly        the file, directory or handle cannot be written
    │  ├─ NotAStore            there is no convlog store at this place
    │  ├─ SchemaTooNew         written by a newer convlog
    │  ├─ StoreCorrupt         SQLite found the file damaged
    │  ├─ StoreIOError         the operating system refused a read, a write or a sync
    │  ├─ KeystoreUnusable     the keystore cannot be used
    │  │  ├─ KeystoreMissing    there is no file
    │  │  ├─ KeystoreForeign    it belongs to another store
    │  │  ├─ KeystoreDamaged    neither copy of its header is whole
    │  │  ├─ KeystoreTruncated  it ends inside its header
    │  │  ├─ KeystoreOlder      a copy from before the store was given new keys
    │  │  ├─ KeystoreLocked     the key-encryption key is not here
    │  │  ├─ WrongKey           another key-encryption key than the one that opens it
    │  │  └─ KeystoreReplaced   it was replaced while it was open
    │  ├─ KeySourceFailed      the key-encryption key cannot be had from where it should come
    │  ├─ StoreClosed          the handle was closed
    │  ├─ StoreReplaced        the database was replaced while it was open
    │  ├─ ForkedHandle         the handle was opened before fork() and is used in the child
    │  ├─ UnsupportedFilesystem  a file system on which WAL is not safe
    │  └─ UnsupportedPlatform  an operating system or SQLite that is not supported
    ├─ Refused                 refused whole, nothing was written
    │  ├─ InvalidEvent         a field breaks a rule
    │  ├─ EventTooLarge        over the limit for one event
    │  ├─ UnknownReference     names an event, session or blob that does not exist
    │  ├─ SessionRemoved       the session was there, and retention removed it
    │  ├─ UnknownProjection    no projection has this name
    │  ├─ IdempotencyConflict  the key was used for other content
    │  ├─ PairingError         the tool call cannot take this result
    │  ├─ StateConflict        what it was decided on no longer stands
    │  ├─ StaleContext         others wrote what its author has not heard
    │  ├─ NotAuthorized        no valid approval, or not this agent's to give
    │  ├─ PromotionRefused     rules forbid that a claim becomes memory
    │  ├─ EffectTransitionError  an effect does not go from that state to this one
    │  ├─ EffectClaimed        another worker holds the effect
    │  ├─ EffectCommitted      the effect took place; here is its result
    │  ├─ EffectInDoubt        the effect may have taken place
    │  ├─ EffectLapsed         the claim ran out before the tool was called
    │  ├─ EffectElsewhere      the effect belongs to the session that this one was forked from
    │  ├─ UnderHold            a hold forbids to erase it
    │  ├─ FilesLeft            an exported file is still there
    │  ├─ SubjectFenced        a fence forbids content about this person
    │  ├─ ScrubFailed          the caller's scrubbing function failed
    │  ├─ KeysAtRisk           keys would be lost or laid open, and nobody said so
    │  ├─ BackupRefused        a backup or a restore would lose or lay open something
    │  ├─ BudgetTooSmall       not even the newest event fits
    │  └─ MirrorBusy           another exporter keeps these files
    ├─ PayloadUnreadable       the event is known, its content is not
    │  ├─ PayloadErased        by a redaction: normal
    │  ├─ PayloadLocked        the key-encryption key is not here
    │  ├─ PayloadLost          the data key is gone without a redaction
    │  └─ PayloadCorrupt       the sealed bytes do not open
    ├─ NotPerformed            raised by a tool: it did nothing, for sure
    ├─ ProjectionFailed        the function of a projection raised
    ├─ NoReply                 nobody answered in the time given
    └─ ImportFailed            a foreign transcript could not be read

Errors are told apart by class and attributes, never by text. `str(error)` is one line.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Self


class ConvlogError(Exception):
    """Anything convlog raises on purpose."""


class StoreError(ConvlogError):
    """The store could not do it. `path` is the file or directory concerned."""

    rule = "the store cannot be used"

    def __init__(self, path: str | Path, rule: str | None = None) -> None:
        self.path = str(path)
        self.rule = rule or type(self).rule
        super().__init__(f"{self.path}: {self.rule}")


class StoreBusy(StoreError):
    """Another process held the lock for the whole waiting time. Nothing was written; try again.

    `holder` is its process id and `held_for` the seconds since it began, where they are known.
    """

    rule = "another process is writing; try again"

    def __init__(
        self,
        path: str | Path,
        rule: str | None = None,
        *,
        holder: int | None = None,
        held_for: float | None = None,
    ) -> None:
        self.holder, self.held_for = holder, held_for
        if holder is not None and held_for is not None:
            rule = f"process {holder} has been writing for {held_for:.1f} s; try again"
        super().__init__(path, rule)


class StoreFull(StoreError):
    """No space left on the device. Nothing of the call was written."""

    rule = "no space left on the device"


class StoreReadOnly(StoreError):
    """The file, its directory or this handle does not allow writing."""

    rule = "cannot be written: it is read-only"


class NotAStore(StoreError):
    """No convlog store is at this place, or the file there is something else."""

    rule = "not a convlog store"


class SchemaTooNew(StoreError):
    """The store was written by a newer convlog. `found` and `known` are schema versions."""

    def __init__(self, path: str | Path, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(
            path, f"schema {found} is newer than the {known} this convlog knows; upgrade convlog"
        )


class StoreCorrupt(StoreError):
    """SQLite found the file damaged. Run `convlog verify`, restore from a backup."""

    rule = "the database file is damaged"


class StoreIOError(StoreError):
    """The operating system refused a read, a write or a sync.

    After a failed sync nobody knows whether the event is on the disk: append again with the same
    idempotency key to settle it.
    """

    rule = "the operating system refused to read or write"


class KeystoreUnusable(StoreError):
    """The keystore cannot be used; the classes below say why. Never treated as "erased"."""


class KeystoreMissing(KeystoreUnusable):
    """There is no keystore where the store says. None is ever made in its place."""

    rule = (
        "the keystore is missing; the payloads need it: put it back, or an export with `convlog keys import`"
    )


class KeystoreForeign(KeystoreUnusable):
    """The keystore belongs to another store. It is left alone."""

    rule = "the keystore belongs to another store"


class KeystoreDamaged(KeystoreUnusable):
    """Neither copy of the keystore's header is whole, or the file is no keystore."""

    rule = "the keystore header is damaged; put a copy back, or an export with `convlog keys import`"


class KeystoreTruncated(KeystoreUnusable):
    """The keystore ends inside its header."""


class KeystoreOlder(KeystoreUnusable):
    """A copy of the keystore from before a rekey: generation `found`, and the log knows `known`."""

    def __init__(self, path: str | Path, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(
            path, f"an older keystore: generation {found}, the log knows {known}; see `convlog keys`"
        )


class KeystoreLocked(KeystoreUnusable):
    """The master key is wrapped, and the key-encryption key is not here: nothing can be sealed or opened."""

    rule = "the keystore is locked: its key-encryption key is not here; see `convlog keys status`"


class WrongKey(KeystoreUnusable):
    """The key-encryption key that was given is not the one that opens this keystore."""

    rule = (
        "the key-encryption key is not the one that opens this keystore; without any, envelopes can be read"
    )


class KeystoreReplaced(KeystoreUnusable):
    """The keystore was replaced or removed under the open handle. Nothing was written; open the store again."""

    rule = "the keystore was replaced while it was open; open the store again"


class KeySourceFailed(StoreError):
    """A file, command or prompt did not give a key-encryption key. `path` is the file, or says which source."""


class StoreClosed(StoreError):
    """The handle was closed; open the store again."""

    rule = "the handle is closed"


class StoreReplaced(StoreError):
    """The database was replaced or removed under the open handle. Nothing was written; open the store again."""

    rule = "replaced or removed while it was open; open the store again"


class ForkedHandle(StoreError):
    """The handle was opened before fork(). SQLite handles do not survive a fork: open a new one in the child."""

    rule = "opened before fork(); open the store again in this process"


class UnsupportedFilesystem(StoreError):
    """The store lies on a file system where write-ahead logging is not safe. `kind` names it."""

    def __init__(self, path: str | Path, kind: str) -> None:
        self.kind = kind
        super().__init__(
            path,
            f"{kind} is a network or pass-through file system, where write-ahead logging can corrupt; "
            "use a local disk, or set CONVLOG_ALLOW_FILESYSTEM=" + kind,
        )


class UnsupportedPlatform(StoreError):
    """The operating system or the SQLite library is not supported."""

    rule = "convlog runs on Linux and macOS with SQLite 3.51.3 or newer"


class Refused(ConvlogError):
    """The input was refused whole and nothing was written. `index` counts from 0 in a batch, else None."""

    index: int | None = None

    def at(self, index: int) -> Self:
        """The same error, said of draft `index` of a batch."""
        self.index = index
        return self

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.index is None else f"draft {self.index + 1}: {text}"


class InvalidEvent(Refused):
    """A field breaks a rule. `pointer` is a JSON pointer (RFC 6901) to the place, `rule` says what holds there."""

    def __init__(self, pointer: str, rule: str) -> None:
        self.pointer, self.rule = pointer, rule
        super().__init__(f"{pointer or '/'}: {rule}")


class EventTooLarge(Refused):
    """The event's payload is `size` bytes where `limit` are allowed."""

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(f"the event is {size} bytes; at most {limit} are allowed (attachments apart)")


class UnknownReference(Refused):
    """`field` names a `value` that does not exist."""

    def __init__(self, field: str, value: str) -> None:
        self.field, self.value = field, value
        super().__init__(f"/{field}: {value!r} does not exist")


class SessionRemoved(Refused):
    """The session was removed by retention; its id is never given again.

    `policy` is the policy with its version (`old@2`), `since` when that was decided, RFC 3339, and `by` the id of
    the event in `_store` that records it, which comes a moment later.
    """

    def __init__(self, session: str, policy: str, since: str, by: str) -> None:
        self.session, self.policy, self.since, self.by = session, policy, since, by
        super().__init__(f"session {session!r} was removed at {since} by retention policy {policy}")


class UnknownProjection(Refused):
    """No projection is called `name`. `known` are those that there are."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(f"/projection: {name!r} does not exist; there are {', '.join(self.known)}")


class IdempotencyConflict(Refused):
    """The idempotency key was used before for other content. `first` is the id of that event."""

    def __init__(self, first: str) -> None:
        self.first = first
        super().__init__(f"/idempotency_key: already used for other content, by event {first}")


class PairingError(Refused):
    """A tool_result names a call that cannot take it. `call_id` is the call, `rule` says why."""

    def __init__(self, call_id: str, rule: str) -> None:
        self.call_id, self.rule = call_id, rule
        super().__init__(f"/call_id: {call_id} {rule}")


class StateConflict(Refused):
    """`state_key` does not stand as the caller expected. `heads` are the ids of the mutations that stand there.

    For a task that another agent holds, `holder` is that agent.
    """

    def __init__(self, state_key: str, heads: Sequence[str], *, holder: str | None = None) -> None:
        self.state_key, self.heads, self.holder = state_key, tuple(heads), holder
        found = ", ".join(self.heads) or "nothing"
        held = "" if holder is None else f"; {holder} holds it"
        super().__init__(f"/state_key: {state_key} stands at {found}, which was not expected{held}")


class StaleContext(Refused):
    """`agent` had heard the session up to seq `seen`, and not what others wrote since that it was to see.

    `seq` and `event` are those of the oldest such event. Listen, decide anew, and append again.
    """

    def __init__(self, agent: str, seen: int, seq: int, event: str) -> None:
        self.agent, self.seen, self.seq, self.event = agent, seen, seq, event
        super().__init__(
            f"{agent} has heard the session up to seq {seen}, and not event {seq} ({event}); listen first"
        )


class NotAuthorized(Refused):
    """`agent` may not do it. `rule` says what would be needed."""

    def __init__(self, agent: str, rule: str) -> None:
        self.agent, self.rule = agent, rule
        super().__init__(f"{agent} is not authorized: {rule}")


class PromotionRefused(Refused):
    """The claim does not become memory. `rules` are all that refuse it: (code, id of the event it is about or None).

    `vocabulary.PROMOTION_RULES` says what each code means.
    """

    def __init__(self, rules: Sequence[tuple[str, str | None]]) -> None:
        self.rules = tuple(rules)
        said = (code if event is None else f"{code} ({event})" for code, event in self.rules)
        super().__init__(f"the claim does not become memory: {', '.join(said)}")


class EffectTransitionError(Refused):
    """Effect `effect` is `found` and cannot become `wanted`."""

    def __init__(self, effect: str, found: str, wanted: str) -> None:
        self.effect, self.found, self.wanted = effect, found, wanted
        super().__init__(f"/effect: {effect} is {found} and cannot become {wanted}")


class EffectClaimed(Refused):
    """`worker` attempts effect `effect`, until `until` (RFC 3339); `fence` is the seq of its claim."""

    def __init__(self, effect: str, worker: str, until: str, fence: int) -> None:
        self.effect, self.worker, self.until, self.fence = effect, worker, until, fence
        super().__init__(f"/effect: {effect} is held by {worker} until {until}")


class EffectCommitted(Refused):
    """Effect `effect` took place already: the event `committed` says so and holds its result."""

    def __init__(self, effect: str, committed: str) -> None:
        self.effect, self.committed = effect, committed
        super().__init__(f"/effect: {effect} took place already, see {committed}")


class EffectInDoubt(Refused):
    """Effect `effect` was attempted by `worker` (event `attempted`), and nothing says whether it took place.

    It is never attempted again before that is settled: see `Session.recover`.
    """

    def __init__(self, effect: str, worker: str, attempted: str) -> None:
        self.effect, self.worker, self.attempted = effect, worker, attempted
        super().__init__(f"/effect: {effect} was attempted by {worker} and may have taken place")


class EffectLapsed(Refused):
    """The claim on effect `effect` no longer held when the tool was to be called, so it was not called.

    `found` is what the effect was by then: `attempted` when its lease had run out, which is settled as
    `not_happened`, so that it may be proposed anew; else what somebody settled it to be.
    """

    def __init__(self, effect: str, found: str) -> None:
        self.effect, self.found = effect, found
        super().__init__(
            f"/effect: the claim on {effect} no longer held before the tool was called; nothing was done"
        )


class EffectElsewhere(Refused):
    """Effect `effect` was proposed in `session`, from which this one was forked, and moves only there.

    The outside world has no branches: what took place for one took place for all of them.
    """

    def __init__(self, effect: str, session: str) -> None:
        self.effect, self.session = effect, session
        super().__init__(f"/effect: {effect} belongs to the session {session} and moves only there")


class UnderHold(Refused):
    """`count` of the events are under the holds `holds` (their ids), so none of them was erased."""

    def __init__(self, holds: Sequence[str], count: int) -> None:
        self.holds, self.count = tuple(holds), count
        events = "1 event is" if count == 1 else f"{count} events are"
        super().__init__(f"{events} under hold {', '.join(self.holds)}; release or override it to erase them")


class FilesLeft(Refused):
    """An export cannot be forgotten: `files` of it, some or all, are still in `directory`."""

    def __init__(self, directory: str | Path, files: Sequence[str | Path]) -> None:
        self.directory, self.files = str(directory), tuple(map(str, files))
        super().__init__(f"{directory}: exported files are still there, such as {self.files[0]}")


class SubjectFenced(Refused):
    """The draft names a person about whom nothing more is to be recorded. `subject` is the keyed digest of the
    name, `pointer` the place in the draft, `fence` the id of the event that placed the fence.
    """

    def __init__(self, pointer: str, subject: str, fence: str) -> None:
        self.pointer, self.subject, self.fence = pointer, subject, fence
        super().__init__(f"{pointer}: fence {fence} forbids content about this person")


class ScrubFailed(Refused):
    """The caller's scrubbing function failed at `pointer`. `cause` says how, and never what it was given."""

    def __init__(self, pointer: str, cause: str) -> None:
        self.pointer, self.cause = pointer, cause
        super().__init__(f"{pointer or '/'}: the scrubbing function failed: {cause}")


class BudgetTooSmall(Refused):
    """Not even the newest event fits in `max_chars` characters, cut as far as it can be; `smallest` is what works."""

    def __init__(self, max_chars: int, smallest: int) -> None:
        self.max_chars, self.smallest = max_chars, smallest
        super().__init__(
            f"/max_chars: {max_chars} characters hold no event; the smallest that works is {smallest}"
        )


class KeysAtRisk(Refused):
    """Keys in the file `path` would be lost or laid open: `risk` is bare, live, present, foreign or exists."""

    def __init__(self, path: str | Path, risk: str, rule: str) -> None:
        self.path, self.risk, self.rule = str(path), risk, rule
        super().__init__(f"{path}: {rule}")


class BackupRefused(Refused):
    """Nothing was backed up or restored at `path`. `risk` is `exists`, `no-directory`, `bare-keys`, `other-store`,
    `no-keys`, `faults` or `erasure-pending`; `rule` says it in words.
    """

    def __init__(self, path: str | Path, risk: str, rule: str) -> None:
        self.path, self.risk, self.rule = str(path), risk, rule
        super().__init__(f"{path}: {rule}")


class MirrorBusy(Refused):
    """Another exporter keeps the files in `path`; there is one at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        super().__init__(f"{path}: another exporter keeps these files")


class PayloadUnreadable(ConvlogError):
    """The event `event_id` is known, its content cannot be read."""

    reason = "unreadable"

    def __init__(self, event_id: str) -> None:
        self.event_id = event_id
        super().__init__(f"{event_id}: content is {self.reason}")


class PayloadErased(PayloadUnreadable):
    """Erased by redaction `by` at `at` for `why`: the normal state after `convlog redact`."""

    reason = "erased"

    def __init__(self, event_id: str, by: str, at: str, why: str) -> None:
        self.by, self.at, self.why = by, at, why
        super().__init__(event_id)


class PayloadLocked(PayloadUnreadable):
    """The keystore is locked by a key-encryption key that is not here."""

    reason = "locked"


class PayloadLost(PayloadUnreadable):
    """The data key is gone, and no redaction says why."""

    reason = "lost"


class PayloadCorrupt(PayloadUnreadable):
    """The sealed bytes do not open with their key, or do not match the envelope."""

    reason = "corrupt"


class NotPerformed(ConvlogError):
    """To be raised by the tool of an effect that knows that it did nothing: `reason` says why.

    The effect is then compensated (`not_happened`) and its key is free. Any other exception leaves it in doubt.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"nothing was done: {reason}")


class ProjectionFailed(ConvlogError):
    """The function of projection `projection` raised; `__cause__` is what. The log is as it was.

    `seq` and `event_id` are those of the event it was given, None where it was its `render`.
    """

    def __init__(self, projection: str, seq: int | None, event_id: str | None, cause: BaseException) -> None:
        self.projection, self.seq, self.event_id = projection, seq, event_id
        where = "when it was rendered" if event_id is None else f"on event {event_id} (seq {seq})"
        super().__init__(f"projection {projection!r} failed {where}: {type(cause).__name__}")


class NoReply(ConvlogError):
    """Nobody answered event `request` within `seconds`. It stands in the log and may be answered yet."""

    def __init__(self, request: str, seconds: float) -> None:
        self.request, self.seconds = request, seconds
        super().__init__(f"{request}: no reply within {seconds:g} s; it may be answered yet")


class ImportFailed(ConvlogError):
    """A foreign transcript could not be read. `line` counts from 1; 0 stands for the whole file."""

    def __init__(self, file: str | Path, line: int, rule: str) -> None:
        self.file, self.line, self.rule = str(file), line, rule
        super().__init__(f"{file}:{line}: {rule}" if line else f"{file}: {rule}")


_BY_ERRNO: dict[int, type[StoreError]] = {
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreFull,
    errno.EFBIG: StoreFull,
    errno.EACCES: StoreReadOnly,
    errno.EPERM: StoreReadOnly,
    errno.EROFS: StoreReadOnly,
    errno.ENOTDIR: NotAStore,
}


class Translating(ABC):
    """A block that names foreign errors as ours. A class and no generator: an append enters several."""

    __slots__ = ("_path",)

    def __init__(self, path: str | Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        found = None if error is None else self._translation(error)
        if found is not None:
            raise found from error

    @abstractmethod
    def _translation(self, error: BaseException) -> StoreError | None:
        """Ours for a foreign error, None for one that passes."""


class os_errors(Translating):  # noqa: N801 a block, and read as one
    """Turn an OSError inside the block into the StoreError that `_BY_ERRNO` names for it."""

    __slots__ = ()

    def _translation(self, error: BaseException) -> StoreError | None:
        if not isinstance(error, OSError):
            return None
        kind = _BY_ERRNO.get(error.errno or 0, StoreIOError)
        rule = None if kind is not StoreIOError else (error.strerror or str(error))
        return kind(error.filename or self._path, rule)
