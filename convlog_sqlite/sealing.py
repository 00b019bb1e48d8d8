"""Seal and open; wrap and unwrap. Pure functions over bytes: no files, no database, no events.

A sealed box, format 1:  0x01 | nonce 12 | AES-256-GCM(key, nonce, salt 32 | content, associated data)

Why a random nonce although every key is used once: a rolled-back transaction, a restored database or a
forked process can seal twice under one slot, and a fixed nonce would then give both contents away.
Why AES-GCM although it does not commit to its key: the salted commitment in the chained envelope does.
Data keys are wrapped with AES-KW (RFC 3394), whose integrity check tells a wrong master key or a
damaged slot apart from a damaged payload.
"""

from __future__ import annotations

import hmac
import os
import struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

KEY_BYTES: Final = 32
SALT_BYTES: Final = 32
WRAPPED_BYTES: Final = 40
_PLACE_DOMAIN: Final = b"convlog/seal/1\0"
_ALGORITHM: Final = b"\x01"
_NONCE_BYTES: Final = 12
_OVERHEAD: Final = 1 + _NONCE_BYTES + SALT_BYTES + 16
_PLACE: Final = struct.Struct(">QQQ")

Cipher = AESGCM
"""A key made ready to seal with."""


class SealBroken(Exception):
    """The box does not open: wrong key, wrong place, or changed bytes. Stays inside the package."""


def place(store_id: bytes, event_id: bytes, session: str, seq: int, slot: int, part: int) -> bytes:
    """Associated data: ties a box to its store, event, session, position, slot and part.

    Part 0 is the payload; every chunk of every blob has a number of its own. All but the session's name, which
    stands last, have a fixed length, so no two places give the same bytes.
    """
    return _PLACE_DOMAIN + store_id + event_id + _PLACE.pack(seq, slot, part) + session.encode()


def seal(key: bytes | Cipher, content: bytes, bound_to: bytes, salt: bytes) -> bytes:
    """Seal `content` and its 32-byte `salt`."""
    cipher = Cipher(key) if isinstance(key, bytes) else key
    nonce = os.urandom(_NONCE_BYTES)
    return _ALGORITHM + nonce + cipher.encrypt(nonce, salt + content, bound_to)


class PayloadSeals:
    """The payloads of one session, opened one after the other: `unseal` for many, without what is the same for all."""

    __slots__ = ("_before", "_behind")

    def __init__(self, store_id: bytes, session: str) -> None:
        self._before, self._behind = _PLACE_DOMAIN + store_id, session.encode()

    def open(self, cipher: Cipher, box: bytes, event_id: bytes, seq: int, slot: int) -> bytes:
        """The content of a box. Raises SealBroken."""
        if len(box) < _OVERHEAD or not box.startswith(_ALGORITHM):
            raise SealBroken
        bound_to = self._before + event_id + _PLACE.pack(seq, slot, 0) + self._behind
        try:
            return cipher.decrypt(box[1:13], box[13:], bound_to)[SALT_BYTES:]
        except InvalidTag:
            raise SealBroken from None


def unseal(key: bytes | Cipher, box: bytes, bound_to: bytes) -> tuple[bytes, bytes]:
    """The (salt, content) of a box. Raises SealBroken."""
    if len(box) < _OVERHEAD or not box.startswith(_ALGORITHM):
        raise SealBroken
    cipher = Cipher(key) if isinstance(key, bytes) else key
    try:
        opened = cipher.decrypt(box[1:13], box[13:], bound_to)
    except InvalidTag:
        raise SealBroken from None
    return opened[:SALT_BYTES], opened[SALT_BYTES:]


def wrap(wrapping_key: bytes, key: bytes) -> bytes:
    """A 32-byte key as 40 wrapped bytes."""
    return aes_key_wrap(wrapping_key, key)


def unwrap(wrapping_key: bytes, wrapped: bytes) -> bytes | None:
    """The key inside 40 wrapped bytes, or None when they do not open under `wrapping_key`."""
    try:
        return aes_key_unwrap(wrapping_key, wrapped)
    except InvalidUnwrap:
        return None


def keyed_digest(pepper: bytes, domain: str, *parts: str) -> bytes:
    """A 32-byte digest that nobody without `pepper` can compute or test a guess against."""
    encoded = [part.encode() for part in parts]
    message = b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
    return hmac.digest(pepper, domain.encode() + b"\0" + message, "sha256")
