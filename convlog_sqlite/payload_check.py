"""Opening what is sealed and holding it to its envelope, for `verify`: the payload of an event and its blobs."""

from __future__ import annotations

import hashlib

from convlog_sqlite import canonical
from convlog_sqlite.events import Erased, Live, Lost, Payload
from convlog_sqlite.store import blobs
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.reading import Row

Fault = tuple[str, str]  # rule, detail


def payload_faults(
    reader: Reader,
    session: str,
    pos: int,
    row: Row,
    key: bytes | Payload | None,
    commitment: bytes,
    *,
    has_blobs: bool,
) -> list[Fault]:
    """What is wrong about the content of an event whose slot holds `key`; nothing where it is erased."""
    seq, event_id, _, slot, _ = row
    if key is None or slot is None:
        return [("payload-missing", "the sealed payload is not there")]
    if isinstance(key, Lost):
        return [("key-lost", f"slot {slot} holds no key, and no redaction says why")]
    if not isinstance(key, bytes):
        return []
    payload, salt = reader.opener.open(session, row, key)
    if not isinstance(payload, Live):
        return [("payload-corrupt", "the sealed payload does not open")]
    place = (reader.store_id, event_id, session, seq)
    broken, digests = _blob_digests(reader, pos, place) if has_blobs else ([], [])
    if canonical.commitment(salt, payload.data, digests) != commitment:
        broken.append(("commitment", "the content is not what the envelope commits to"))
    return broken


def _blob_digests(
    reader: Reader, pos: int, place: tuple[bytes, bytes, str, int]
) -> tuple[list[Fault], list[bytes]]:
    found: list[Fault] = []
    digests = []
    with reader.database.read() as connection:
        stored = [(blob, blobs.sealed_chunks(connection, blob)) for blob in blobs.rows_of(connection, pos)]
    for blob, chunks in stored:
        answer = blobs.unseal(reader.opener.keystore, blob, chunks, place)
        if isinstance(answer, Live):
            digests.append(hashlib.sha256(answer.data).digest())
        elif not isinstance(answer, Erased):
            rule = "key-lost" if isinstance(answer, Lost) else "payload-corrupt"
            found.append((rule, f"blob {blob.part} cannot be read"))
    return found, digests
