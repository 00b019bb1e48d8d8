"""Clock readings as the log writes them, and event ids that carry one.

Clocks are data: what they say orders nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

Clock = Callable[[], int]
"""Gives nanoseconds since the Unix epoch."""

_VERSION_7 = 0x7 << 76 | 0b10 << 62  # version and variant
_RANDOM_BITS = 0xFFF << 64 | (1 << 62) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

system_clock: Clock = time.time_ns


def from_microseconds(microseconds: int) -> str:
    """RFC 3339 in UTC with six digits and Z."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    return f"{_to_second(seconds)}.{fraction:06d}Z"


@lru_cache(maxsize=64)
def _to_second(seconds: int) -> str:
    # Events come many to a second: the calendar is worked out once for each.
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


def from_milliseconds(milliseconds: int) -> str:
    """RFC 3339 in UTC with six digits and Z."""
    return from_microseconds(milliseconds * 1000)


def to_microseconds(instant: str) -> int:
    """The inverse of `from_microseconds`. Raises ValueError."""
    return (datetime.fromisoformat(instant) - _EPOCH) // timedelta(microseconds=1)


def new_event_id(nanoseconds: int) -> bytes:
    """A UUID of version 7 (RFC 9562, section 5.7): 48 bits of Unix milliseconds, then random bits."""
    milliseconds = (nanoseconds // 1_000_000) & 0xFFFF_FFFF_FFFF
    random = int.from_bytes(os.urandom(10), "big") & _RANDOM_BITS
    return (milliseconds << 80 | random | _VERSION_7).to_bytes(16, "big")


def derived_event_id(digest: bytes) -> bytes:
    """A UUID of version 8 (RFC 9562, section 5.8) made of a keyed digest."""
    data = bytearray(digest[:16])
    data[6] = data[6] & 0x0F | 0x80
    data[8] = data[8] & 0x3F | 0x80
    return bytes(data)


def id_text(data: bytes) -> str:
    """16 bytes as the text form of a UUID."""
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_bytes(text: str) -> bytes:
    """The inverse of `id_text`. Raises ValueError."""
    return bytes.fromhex(text.replace("-", ""))
