"""convlog: the shared, append-only conversation log of a multi-agent system on one machine.

    from convlog_sqlite import ConversationLog

    with ConversationLog.open() as log:
        session = log.session("build-42")
        session.message("Add JWT auth.", agent="user", to=["orchestrator"])
        for event in session.tail(20):
            print(event.seq, event.agent, event.body)

Public is what can be imported from here, and nothing else.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from convlog_sqlite.acting import Attempt
from convlog_sqlite.backup import Backup
from convlog_sqlite.branching import Difference, StateDifference
from convlog_sqlite.budget import fit
from convlog_sqlite.drafts import ABSENT, Attachment, Draft, ForeignDraft, check_session_id
from convlog_sqlite.effects import CallKeys, Effect, Receipt, Recovery, Settlement
from convlog_sqlite.errors import (
    BackupRefused,
    BudgetTooSmall,
    ConvlogError,
    EffectClaimed,
    EffectCommitted,
    EffectElsewhere,
    EffectInDoubt,
    EffectLapsed,
    EffectTransitionError,
    EventTooLarge,
    FilesLeft,
    ForkedHandle,
    IdempotencyConflict,
    ImportFailed,
    InvalidEvent,
    KeysAtRisk,
    KeySourceFailed,
    KeystoreDamaged,
    KeystoreForeign,
    KeystoreLocked,
    KeystoreMissing,
    KeystoreOlder,
    KeystoreReplaced,
    KeystoreTruncated,
    KeystoreUnusable,
    MirrorBusy,
    NoReply,
    NotAStore,
    NotAuthorized,
    NotPerformed,
    PairingError,
    PayloadCorrupt,
    PayloadErased,
    PayloadLocked,
    PayloadLost,
    PayloadUnreadable,
    ProjectionFailed,
    PromotionRefused,
    Refused,
    SchemaTooNew,
    ScrubFailed,
    SessionRemoved,
    StaleContext,
    StateConflict,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreIOError,
    StoreReadOnly,
    StoreReplaced,
    SubjectFenced,
    UnderHold,
    UnknownProjection,
    UnknownReference,
    UnsupportedFilesystem,
    UnsupportedPlatform,
    WrongKey,
)
from convlog_sqlite.events import Corrupt, Erased, Event, Live, Locked, Lost, Payload
from convlog_sqlite.findings import Finding
from convlog_sqlite.importing import HARNESSES, ImportReport, import_transcripts
from convlog_sqlite.kek import KeySource
from convlog_sqlite.listeners import Listener, News
from convlog_sqlite.log import Anchor, ConversationLog
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.moment import Moment
from convlog_sqlite.participants import Participant
from convlog_sqlite.projections.differences import Discrepancy
from convlog_sqlite.projections.projection import Look, Projection
from convlog_sqlite.recalling import Seen
from convlog_sqlite.redaction import Redaction
from convlog_sqlite.remembering import Claim
from convlog_sqlite.replaying import Replayed
from convlog_sqlite.residue import Residue
from convlog_sqlite.retention import RetentionPolicy
from convlog_sqlite.scrubbing import Scrubber
from convlog_sqlite.session import Session
from convlog_sqlite.store.fences import Fence
from convlog_sqlite.store.listening import RECORDED
from convlog_sqlite.store.points import Point
from convlog_sqlite.store.reader import LeftOut, Page, SessionSummary
from convlog_sqlite.store.readings import Reading
from convlog_sqlite.store.reserved import Hold
from convlog_sqlite.store.sessions import RemovedSession
from convlog_sqlite.store.tracing import Edge, Trace
from convlog_sqlite.strictjson import parse as parse_json
from convlog_sqlite.verbs import EventKeys, Filters

if TYPE_CHECKING:
    from convlog_sqlite.aio import AsyncConversationLog, AsyncSession
    from convlog_sqlite.aio_joining import AsyncListener, AsyncParticipant
    from convlog_sqlite.aio_keys import AsyncStoreKeys
    from convlog_sqlite.aio_moment import AsyncMoment
    from convlog_sqlite.aio_views import AsyncSlice
    from convlog_sqlite.restoring import Restoration, restore
    from convlog_sqlite.store_keys import KeyChange, StoreKeys
    from convlog_sqlite.views.definition import Select, View
    from convlog_sqlite.views.explaining import Explanation
    from convlog_sqlite.views.shipped import describe_view
    from convlog_sqlite.views.slices import Slice

# Imported when first asked for: asyncio alone takes as long as the rest of the package; keys are seldom looked after.
_LATER: Final = {
    "AsyncConversationLog": "convlog_sqlite.aio",
    "AsyncListener": "convlog_sqlite.aio_joining",
    "AsyncMoment": "convlog_sqlite.aio_moment",
    "AsyncParticipant": "convlog_sqlite.aio_joining",
    "AsyncSession": "convlog_sqlite.aio",
    "AsyncStoreKeys": "convlog_sqlite.aio_keys",
    "KeyChange": "convlog_sqlite.store_keys",
    "Restoration": "convlog_sqlite.restoring",
    "AsyncSlice": "convlog_sqlite.aio_views",
    "Explanation": "convlog_sqlite.views.explaining",
    "Select": "convlog_sqlite.views.definition",
    "Slice": "convlog_sqlite.views.slices",
    "StoreKeys": "convlog_sqlite.store_keys",
    "View": "convlog_sqlite.views.definition",
    "describe_view": "convlog_sqlite.views.shipped",
    "restore": "convlog_sqlite.restoring",
}

__all__ = [
    "ABSENT",
    "HARNESSES",
    "RECORDED",
    "Anchor",
    "AsyncConversationLog",
    "AsyncListener",
    "AsyncMoment",
    "AsyncParticipant",
    "AsyncSession",
    "AsyncSlice",
    "AsyncStoreKeys",
    "Attachment",
    "Attempt",
    "Backup",
    "BackupRefused",
    "BudgetTooSmall",
    "CallKeys",
    "Claim",
    "ConversationLog",
    "ConvlogError",
    "Corrupt",
    "Difference",
    "Discrepancy",
    "Draft",
    "Edge",
    "Effect",
    "EffectClaimed",
    "EffectCommitted",
    "EffectElsewhere",
    "EffectInDoubt",
    "EffectLapsed",
    "EffectTransitionError",
    "Erased",
    "Event",
    "EventKeys",
    "EventTooLarge",
    "Explanation",
    "Fence",
    "FilesLeft",
    "Filters",
    "Finding",
    "ForeignDraft",
    "ForkedHandle",
    "Hold",
    "IdempotencyConflict",
    "ImportFailed",
    "ImportReport",
    "InvalidEvent",
    "KeyChange",
    "KeySource",
    "KeySourceFailed",
    "KeysAtRisk",
    "KeystoreDamaged",
    "KeystoreForeign",
    "KeystoreLocked",
    "KeystoreMissing",
    "KeystoreOlder",
    "KeystoreReplaced",
    "KeystoreTruncated",
    "KeystoreUnusable",
    "LeftOut",
    "Listener",
    "Live",
    "Locked",
    "Look",
    "Lost",
    "Mirror",
    "MirrorBusy",
    "Moment",
    "News",
    "NoReply",
    "NotAStore",
    "NotAuthorized",
    "NotPerformed",
    "Page",
    "PairingError",
    "Participant",
    "Payload",
    "PayloadCorrupt",
    "PayloadErased",
    "PayloadLocked",
    "PayloadLost",
    "PayloadUnreadable",
    "Point",
    "Projection",
    "ProjectionFailed",
    "PromotionRefused",
    "Reading",
    "Receipt",
    "Recovery",
    "Redaction",
    "Refused",
    "RemovedSession",
    "Replayed",
    "Residue",
    "Restoration",
    "RetentionPolicy",
    "SchemaTooNew",
    "ScrubFailed",
    "Scrubber",
    "Seen",
    "Select",
    "Session",
    "SessionRemoved",
    "SessionSummary",
    "Settlement",
    "Slice",
    "StaleContext",
    "StateConflict",
    "StateDifference",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreIOError",
    "StoreKeys",
    "StoreReadOnly",
    "StoreReplaced",
    "SubjectFenced",
    "Trace",
    "UnderHold",
    "UnknownProjection",
    "UnknownReference",
    "UnsupportedFilesystem",
    "UnsupportedPlatform",
    "View",
    "WrongKey",
    "check_session_id",
    "describe_view",
    "fit",
    "import_transcripts",
    "parse_json",
    "restore",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
