"""Values too long for the line, and attachments: sealed in chunks, apart from the payload.

Owns the tables `blob` and `chunk`. Part 1 of an event is its whole value, where the line holds a
preview; parts 2 and up are attachments. Each blob has its own slot, so its own key. The associated data
of a chunk holds its number and whether it is the last, so that chunks cannot be left out or exchanged.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from convlog_sqlite import sealing, strictjson
from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.drafts import Attachment
from convlog_sqlite.events import Corrupt, Live, Payload
from convlog_sqlite.keystore import MAX_SLOTS, Keystore

INSERT_BLOB: Final = "INSERT INTO blob (pos, part, id, slot, chunks) VALUES (?, ?, ?, ?, ?)"
INSERT_CHUNK: Final = "INSERT INTO chunk (id, sealed) VALUES (?, ?)"
SELECT_BLOBS: Final = "SELECT part, id, slot, chunks FROM blob WHERE pos = ? ORDER BY part"
SELECT_CHUNK: Final = "SELECT sealed FROM chunk WHERE id = ?"

CHUNK_BYTES: Final = 1 << 20
MAX_CHUNKS: Final = 1 << 16
WHOLE_VALUE: Final = 1
_MAX_PARTS: Final = 1 << 31
FIRST_ATTACHMENT: Final = 2
_NO_SALT: Final = bytes(sealing.SALT_BYTES)  # a blob's digest stands in the salted commitment of its event


@dataclass(frozen=True, slots=True, repr=False)  # never content: reprs end up in logs
class Blob:
    """A blob to be written. `id` is 16 random bytes."""

    part: int
    id: bytes
    content: bytes

    @property
    def digest(self) -> bytes:
        """What the event's commitment says of it."""
        return hashlib.sha256(self.content).digest()


@dataclass(frozen=True, slots=True)
class BlobRow:
    """A blob as the tables know it."""

    part: int
    id: bytes
    slot: int
    chunks: int

    @property
    def is_possible(self) -> bool:
        """Whether an append may have written this row: a changed one may say anything."""
        return 0 < self.chunks <= MAX_CHUNKS and 0 <= self.slot < MAX_SLOTS and 0 < self.part < _MAX_PARTS


def whole_value(content: bytes) -> Blob:
    """The blob of a value whose line holds only a preview. `content` is the value's JSON."""
    return Blob(WHOLE_VALUE, os.urandom(16), content)


def of_attachments(attachments: Sequence[Attachment]) -> list[Blob]:
    """One blob each, in order."""
    return [Blob(FIRST_ATTACHMENT + n, os.urandom(16), item.content) for n, item in enumerate(attachments)]


def preview(value: Any, encoded: bytes, limit: int) -> tuple[str, dict[str, int]]:
    """Head and tail of a value cut at code points, and the `truncated` key that goes with them.

    A text is cut as it is; any other value as its JSON. `kept` counts bytes of UTF-8.
    """
    text = value if isinstance(value, str) else encoded.decode()
    source = text.encode()
    # A short text can be long as JSON, where a control character takes six bytes: cut it all the same.
    limit = min(limit, len(source) // 2)
    head = source[: limit * 3 // 4].decode("utf-8", "ignore")
    tail = source[len(source) - limit // 4 :].decode("utf-8", "ignore")
    kept = len(head.encode()) + len(tail.encode())
    cut = f"{head}\n[… {len(source) - kept} bytes left out …]\n{tail}"
    return cut, {"bytes": len(source), "kept": kept}


def insert(
    connection: Connection, blob: Blob, pos: int, slot: int, key: bytes, place: tuple[bytes, bytes, str, int]
) -> None:
    """Write one blob. `place` is (store id, event id, session, seq)."""
    pieces = [blob.content[at : at + CHUNK_BYTES] for at in range(0, len(blob.content), CHUNK_BYTES)] or [b""]
    connection.execute(INSERT_BLOB, (pos, blob.part, blob.id, slot, len(pieces)))
    for number, piece in enumerate(pieces):
        bound_to = _bound_to(place, slot, blob.part, number, len(pieces))
        connection.execute(
            INSERT_CHUNK, (slot * MAX_CHUNKS + number, sealing.seal(key, piece, bound_to, _NO_SALT))
        )


def rows_of(connection: Connection, pos: int) -> list[BlobRow]:
    """The blobs of the event at `pos`, by part."""
    return [BlobRow(*row) for row in fetch(connection, SELECT_BLOBS, (pos,))]


def sealed_chunks(connection: Connection, row: BlobRow) -> list[bytes | None]:
    """The sealed chunks of a blob; None stands for one that is missing."""
    found: list[bytes | None] = []
    if not row.is_possible:
        return [None]
    for number in range(row.chunks):
        chunk = fetch(connection, SELECT_CHUNK, (row.slot * MAX_CHUNKS + number,))
        found.append(chunk[0][0] if chunk else None)
    return found


def unseal(
    keystore: Keystore, row: BlobRow, chunks: Sequence[bytes | None], place: tuple[bytes, bytes, str, int]
) -> Payload:
    """The content of a blob as `Live`, or the answer that says why it cannot be read."""
    key = keystore.read([row.slot])[0]
    if not isinstance(key, bytes):
        return key
    if not row.is_possible:
        return Corrupt()
    pieces = []
    for number, chunk in enumerate(chunks):
        try:
            bound_to = _bound_to(place, row.slot, row.part, number, len(chunks))
            pieces.append(sealing.unseal(key, chunk or b"", bound_to)[1])
        except sealing.SealBroken:
            return Corrupt()
    return Live(b"".join(pieces))


def _bound_to(place: tuple[bytes, bytes, str, int], slot: int, part: int, number: int, count: int) -> bytes:
    store_id, event_id, session, seq = place
    last = number == count - 1
    return sealing.place(store_id, event_id, session, seq, slot, (part << 32) + (number << 1 | last) + 1)


def decoded(content: bytes) -> Any:
    """The value that a whole-value blob holds."""
    return strictjson.load(content)
