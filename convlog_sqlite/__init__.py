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

from convlog_sqlite.drafts import ABSENT, Attachment, Draft, ForeignDraft, check_session_id
from convlog_sqlite.errors import (
    ConvlogError,
    EffectClaimed,
    EffectCommitted,
    EffectInDoubt,
    EffectTransitionError,
    EventTooLarge,
    ForkedHandle,
    IdempotencyConflict,
    ImportFailed,
    InvalidEvent,
    KeystoreUnusable,
    MirrorBusy,
    NoReply,
    NotAStore,
    NotAuthorized,
    PairingError,
    PayloadCorrupt,
    PayloadErased,
    PayloadLocked,
    PayloadLost,
    PayloadUnreadable,
    ProjectionFailed,
    Refused,
    SchemaTooNew,
    StateConflict,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreIOError,
    StoreReadOnly,
    StoreReplaced,
    UnderHold,
    UnknownProjection,
    UnknownReference,
    UnsupportedFilesystem,
    UnsupportedPlatform,
)
from convlog_sqlite.events import Corrupt, Erased, Event, Live, Locked, Lost, Payload
from convlog_sqlite.findings import Finding
from convlog_sqlite.importing import HARNESSES, ImportReport, import_transcripts
from convlog_sqlite.log import Anchor, ConversationLog
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.projections.differences import Difference
from convlog_sqlite.projections.projection import Look, Projection
from convlog_sqlite.redaction import Redaction
from convlog_sqlite.residue import Residue
from convlog_sqlite.retention import RetentionPolicy
from convlog_sqlite.session import EventKeys, Filters, Session
from convlog_sqlite.store.reader import Page, SessionSummary
from convlog_sqlite.store.reserved import Hold
from convlog_sqlite.store.tracing import Edge, Trace
from convlog_sqlite.strictjson import parse as parse_json

if TYPE_CHECKING:
    from convlog_sqlite.aio import AsyncConversationLog, AsyncSession

# Imported when first asked for: asyncio alone takes as long as the rest of the package.
_LATER: Final = {"AsyncConversationLog": "convlog_sqlite.aio", "AsyncSession": "convlog_sqlite.aio"}

__all__ = [
    "ABSENT",
    "HARNESSES",
    "Anchor",
    "AsyncConversationLog",
    "AsyncSession",
    "Attachment",
    "ConversationLog",
    "ConvlogError",
    "Corrupt",
    "Difference",
    "Draft",
    "Edge",
    "EffectClaimed",
    "EffectCommitted",
    "EffectInDoubt",
    "EffectTransitionError",
    "Erased",
    "Event",
    "EventKeys",
    "EventTooLarge",
    "Filters",
    "Finding",
    "ForeignDraft",
    "ForkedHandle",
    "Hold",
    "IdempotencyConflict",
    "ImportFailed",
    "ImportReport",
    "InvalidEvent",
    "KeystoreUnusable",
    "Live",
    "Locked",
    "Look",
    "Lost",
    "Mirror",
    "MirrorBusy",
    "NoReply",
    "NotAStore",
    "NotAuthorized",
    "Page",
    "PairingError",
    "Payload",
    "PayloadCorrupt",
    "PayloadErased",
    "PayloadLocked",
    "PayloadLost",
    "PayloadUnreadable",
    "Projection",
    "ProjectionFailed",
    "Redaction",
    "Refused",
    "Residue",
    "RetentionPolicy",
    "SchemaTooNew",
    "Session",
    "SessionSummary",
    "StateConflict",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreIOError",
    "StoreReadOnly",
    "StoreReplaced",
    "Trace",
    "UnderHold",
    "UnknownProjection",
    "UnknownReference",
    "UnsupportedFilesystem",
    "UnsupportedPlatform",
    "check_session_id",
    "import_transcripts",
    "parse_json",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
