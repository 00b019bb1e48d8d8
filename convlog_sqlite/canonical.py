r"""The one byte form of an event, version 1: envelope, payload, commitment, leaf and chain.

Envelope   one JSON object, UTF-8, no white space, the keys of ENVELOPE_KEYS in that order, absent keys
           left out. It begins with `{"v":1,`.
Payload    one JSON object with the keys of PAYLOAD_KEYS in that order, absent keys left out.
Commitment HMAC-SHA256(salt, "convlog/payload/1\0" | payload), or where blobs belong to the event
           HMAC-SHA256(salt, "convlog/payload+blobs/1\0" | u64 length of payload | payload | SHA-256 of
           each blob in turn). The 32-byte salt exists only inside the sealed payload and dies with its
           key: then the commitment says nothing about the content any more.
Leaf       SHA-256(0x00 | u64 length of envelope | envelope | commitment)
Chain      SHA-256(0x01 | chain before | leaf). Before the first event stands
           SHA-256(0x02 | "convlog/chain/1\0" | store id | scope), where scope is the session id, or
           nothing for the chain over the whole store. Before the first event of a fork stands the chain
           after the event that it was forked at: the fork vouches for what it shares.

The domain bytes 0, 1, 2 keep a leaf, a link and an origin from ever being taken for one another
(RFC 9162, section 2.1, for the idea). Lengths are big-endian. Both byte forms are made once, at append,
and are never serialised again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from convlog_sqlite import strictjson
from convlog_sqlite.vocabulary import FORMAT_VERSION

ENVELOPE_KEYS: Final = (
    "v", "id", "seq", "ts", "session", "tenant", "agent", "role", "type", "to", "performative",
    "thread_id", "task_id", "parent_id", "links", "correlation_id", "traceparent", "content_type",
    "tool", "call_id", "status", "kind", "state_key", "effect", "seen", "model", "sensitivity",
    "purposes", "subjects", "source",
)  # fmt: skip
_REST_KEYS: Final = ENVELOPE_KEYS[ENVELOPE_KEYS.index("agent") :]
PAYLOAD_KEYS: Final = ("body", "args", "result", "value", "truncated", "attachments", "usage", "meta")

_PAYLOAD_DOMAIN: Final = b"convlog/payload/1\0"
_BLOBS_DOMAIN: Final = b"convlog/payload+blobs/1\0"
_CHAIN_DOMAIN: Final = b"\x02convlog/chain/1\0"
_SHA256_BLOCK: Final = 64
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))
_LENGTH: Final = struct.Struct(">Q")


def envelope_bytes(keys: dict[str, Any]) -> bytes:
    """The envelope of `keys`, in canonical order; keys that are no envelope keys are left out."""
    where = envelope_place(keys["session"], keys.get("tenant"))
    return join_envelope(keys["id"], keys["seq"], keys["ts"], where, envelope_rest(keys))


@lru_cache(maxsize=256)
def envelope_place(session: str, tenant: str | None) -> bytes:
    """The members `session` and `tenant`: the same for every event of a session."""
    keys = {"session": session} if tenant is None else {"session": session, "tenant": tenant}
    return strictjson.dump(keys)[1:-1]


def envelope_rest(keys: dict[str, Any]) -> bytes:
    """The members from `agent` on and the closing brace: what can be made before the event has its place."""
    return strictjson.dump({key: keys[key] for key in _REST_KEYS if key in keys})[1:]


def join_envelope(event_id: str, seq: int, ts: str, where: bytes, rest: bytes) -> bytes:
    """The envelope of an event whose place is known. An id and an instant hold nothing that JSON escapes."""
    return f'{{"v":{FORMAT_VERSION},"id":"{event_id}","seq":{seq},"ts":"{ts}",'.encode() + where + b"," + rest


def payload_bytes(keys: dict[str, Any]) -> bytes:
    """The payload of `keys`, in canonical order; keys that are no payload keys are left out."""
    return strictjson.dump({key: keys[key] for key in PAYLOAD_KEYS if key in keys})


def commitment(salt: bytes, payload: bytes, blobs: Sequence[bytes] = ()) -> bytes:
    """What the envelope's leaf says of the payload. `blobs` are the SHA-256 digests of the event's blobs."""
    if not blobs:
        return _hmac(salt, _PAYLOAD_DOMAIN + payload)
    head = _BLOBS_DOMAIN + _LENGTH.pack(len(payload))
    return _hmac(salt, head + payload + b"".join(blobs))


def _hmac(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104) under a key of at most 64 bytes.

    By two plain digests, which an append makes anyway: the way through OpenSSL's HMAC takes twice as long.
    """
    padded = key.ljust(_SHA256_BLOCK, b"\0")
    inner = hashlib.sha256(padded.translate(_INNER_PAD) + message).digest()
    return hashlib.sha256(padded.translate(_OUTER_PAD) + inner).digest()


def leaf(envelope: bytes, payload_commitment: bytes) -> bytes:
    """The digest of one event, without its place."""
    return hashlib.sha256(b"\0" + _LENGTH.pack(len(envelope)) + envelope + payload_commitment).digest()


def link(before: bytes, event_leaf: bytes) -> bytes:
    """The chain after an event, from the chain before it."""
    return hashlib.sha256(b"\x01" + before + event_leaf).digest()


def origin(store_id: bytes, scope: str = "") -> bytes:
    """The chain before the first event of session `scope`, or of the whole store."""
    return hashlib.sha256(_CHAIN_DOMAIN + store_id + scope.encode()).digest()
