r"""The keystore `log.keys`: one fixed slot per sealed thing, so that a key can be destroyed in place.

File, format 1 (big-endian):

    0      header copy A, 4096 bytes       4096   header copy B, 4096 bytes
    8192   slot 0, 40 bytes                8192 + 40 n   slot n

    Header   0   8  magic "CONVLOGK"        8  2  format version, 1
            10   2  how the master key is kept: 0 bare, anything else wrapped by a key-encryption key
            12   4  zero                   16 16  store id
            32   8  generation: rises when the file is replaced by a rekeyed one
            40  40  master key (bare: 32 bytes and 8 zeros)
            80  40  pepper, wrapped under the master key
           120 360  parameters of the key-encryption key, zero when bare
           480  32  SHA-256 of bytes 0 to 479
    The valid copy with the higher generation counts; one damaged copy does no harm.

    Slot   live    40 bytes of AES-KW(master key, data key)
           erased  "\xffERASED\xff" 8 | redaction event id 16 | Unix milliseconds 8 | reason code 2 | 6 zeros
           lost    anything else: zeros, a hole, past the end of the file, wrong bytes

A slot file and not a table, because every SQLite journal mode keeps a copy of the old page at the
moment a key is destroyed. Promises: a slot is given once and its key is on the disk before it is used;
a keystore is never made for a store that has events; a file replaced under an open process is noticed
at the next access; "no key here" is never taken for "erased".
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from convlog_sqlite import sealing
from convlog_sqlite.errors import (
    KeystoreUnusable,
    StoreBusy,
    StoreClosed,
    StoreIOError,
    StoreReadOnly,
    os_errors,
)
from convlog_sqlite.events import Erased, Locked, Lost
from convlog_sqlite.filesystem import PRIVATE_FILE, sync, sync_directory, write_all
from convlog_sqlite.instants import from_milliseconds
from convlog_sqlite.vocabulary import REASON_NAMES

_MAGIC: Final = b"CONVLOGK"
_HEADER: Final = struct.Struct(">8sHH4x16sQ40s40s360x32s")
_GENERATION: Final = struct.Struct(">16sQ")
_COPY: Final = 4096
_GENERATIONS_AT: Final = (16, _COPY + 16)  # one for each copy of the header
_ERASURE: Final = struct.Struct(">8s16sQH6x")
_ERASED: Final = b"\xffERASED\xff"
_SLOTS_AT: Final = 2 * _COPY
SLOT_BYTES: Final = 40
MAX_SLOTS: Final = 1 << 47  # chunk ids are slot * 65536
_LAST_INSTANT: Final = 253_402_300_799_999  # the end of year 9999, where datetime ends
_LOCK_SECONDS: Final = 10.0  # held for one write and one sync
_FIRST_LEASE: Final = 2  # a process that appends once, to a session that may be new
_LARGEST_LEASE: Final = 4096
_CIPHERS_AHEAD: Final = 16

SlotAnswer = bytes | Erased | Locked | Lost


class SlotFile(Protocol):
    """Where the bytes of a keystore live."""

    def read(self, count: int, offset: int) -> bytes: ...
    def write(self, data: bytes, offset: int) -> None: ...
    def size(self) -> int: ...
    def sync(self) -> None: ...
    def lock(self) -> None: ...
    def unlock(self) -> None: ...
    def is_still(self, data: bytes, places: Sequence[int]) -> bool:
        """Whether this is still the file of its name, and holds `data` at one of `places`."""

    def close(self) -> None: ...


class DiskFile:
    """The keystore on disk."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._name = os.fspath(path)
        try:
            self._descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        except FileNotFoundError:
            raise KeystoreUnusable(
                path, "the keystore is missing; restore it, the payloads need it"
            ) from None
        except PermissionError:
            raise StoreReadOnly(path) from None
        except OSError as error:
            raise KeystoreUnusable(path, error.strerror) from error
        found = os.fstat(self._descriptor)
        self._identity = (found.st_dev, found.st_ino)

    def read(self, count: int, offset: int) -> bytes:
        return os.pread(self._descriptor, count, offset)

    def write(self, data: bytes, offset: int) -> None:
        view, at = memoryview(data), offset
        while view:
            done = os.pwrite(self._descriptor, view, at)
            view, at = view[done:], at + done

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        sync(self._descriptor)

    def lock(self) -> None:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreBusy(self._name, "another process holds the keystore; try again") from None
                time.sleep(0.001)

    def unlock(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def is_still(self, data: bytes, places: Sequence[int]) -> bool:
        # Asked at every access: two calls of the system, and little around them.
        for at in places:
            if os.pread(self._descriptor, len(data), at) == data:
                break
        else:
            return False
        try:
            found = os.stat(self._name)  # noqa: PTH116 Path.stat takes ten times as long
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class MemoryFile:
    """The keystore of an ephemeral log: gone when the process ends, never on a disk."""

    def __init__(self, data: bytes) -> None:
        self._data = bytearray(data)

    def read(self, count: int, offset: int) -> bytes:
        return bytes(self._data[offset : offset + count])

    def write(self, data: bytes, offset: int) -> None:
        self._data.extend(bytes(max(0, offset + len(data) - len(self._data))))
        self._data[offset : offset + len(data)] = data

    def size(self) -> int:
        return len(self._data)

    def is_still(self, data: bytes, places: Sequence[int]) -> bool:
        return any(self.read(len(data), at) == data for at in places)

    def sync(self) -> None: ...
    def lock(self) -> None: ...
    def unlock(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, repr=False)  # it holds keys: reprs end up in logs
class Header:
    """One header copy. `kept` says how the master key is kept: 0 is bare."""

    kept: int
    store_id: bytes
    generation: int
    master: bytes
    pepper: bytes

    @classmethod
    def new(cls, store_id: bytes) -> Header:
        """A header with a new bare master key and a new pepper."""
        master = os.urandom(sealing.KEY_BYTES)
        return cls(0, store_id, 1, master + bytes(8), sealing.wrap(master, os.urandom(sealing.KEY_BYTES)))

    def to_bytes(self) -> bytes:
        """Two equal copies: all that stands before the first slot."""
        data = _HEADER.pack(
            _MAGIC, 1, self.kept, self.store_id, self.generation, self.master, self.pepper, b""
        )
        copy = (data[:480] + hashlib.sha256(data[:480]).digest()).ljust(_COPY, b"\0")
        return copy + copy

    @classmethod
    def from_bytes(cls, data: bytes) -> Header | None:
        """The header in one copy, or None when it is damaged. A newer format is damaged to us too."""
        if len(data) < _HEADER.size:
            return None
        magic, version, kept, store_id, generation, master, pepper, digest = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != 1 or hashlib.sha256(data[:480]).digest() != digest:
            return None
        return cls(kept, store_id, generation, master, pepper)


def erasure_record(by: bytes, milliseconds: int, reason: int) -> bytes:
    """The 40 bytes that overwrite a slot whose key is destroyed by redaction event `by`."""
    return _ERASURE.pack(_ERASED, by, milliseconds, reason)


def create(path: Path, store_id: bytes) -> None:
    """Make a keystore for a new store, durable and private. Raises KeystoreUnusable if `path` exists."""
    with os_errors(path):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        except FileExistsError:
            raise KeystoreUnusable(path, "a keystore is here already; it is never overwritten") from None
        try:
            write_all(descriptor, Header.new(store_id).to_bytes())
            sync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(path.parent)


class Keystore:
    """An open keystore. Safe to use from several threads."""

    def __init__(self, file: SlotFile, path: str, store_id: bytes | None) -> None:
        """Read and check the header. `store_id` is the store that must own it (None: any)."""
        self._file, self._path, self._closed = file, path, False
        self._threads = threading.Lock()
        self._leased: deque[tuple[int, bytes]] = deque()
        self._ciphers: dict[int, sealing.Cipher] = {}
        self._next_lease = _FIRST_LEASE
        with os_errors(path):
            copies = [Header.from_bytes(file.read(_COPY, at)) for at in (0, _COPY)]
        valid = [copy for copy in copies if copy is not None]
        if not valid:
            file.close()
            raise KeystoreUnusable(path, "the keystore header is damaged; restore the keystore from a copy")
        self.header = max(valid, key=lambda copy: copy.generation)
        if store_id is not None and self.header.store_id != store_id:
            file.close()
            raise KeystoreUnusable(path, "the keystore belongs to another store")
        self._master = None if self.header.kept else self.header.master[: sealing.KEY_BYTES]
        self._pepper = None if self._master is None else sealing.unwrap(self._master, self.header.pepper)

    @classmethod
    def open(cls, path: Path, store_id: bytes, *, writable: bool = True) -> Keystore:
        """Open the keystore of `store_id`. Raises KeystoreUnusable when missing, damaged or foreign."""
        return cls(DiskFile(path, writable=writable), str(path), store_id)

    @classmethod
    def in_memory(cls, store_id: bytes) -> Keystore:
        """A keystore that is never on a disk."""
        return cls(MemoryFile(Header.new(store_id).to_bytes()), ":memory:", store_id)

    @property
    def path(self) -> str:
        """The file, or `:memory:`."""
        return self._path

    @property
    def locked(self) -> bool:
        """True when the master key is wrapped by a key-encryption key that is not here."""
        return self._master is None

    @property
    def slots(self) -> int:
        """How many slots the file holds, leased ones included."""
        return max(0, self._file.size() - _SLOTS_AT + SLOT_BYTES - 1) // SLOT_BYTES

    @property
    def pepper(self) -> bytes:
        """The secret of every keyed digest. Raises KeystoreUnusable when locked or damaged."""
        if self._pepper is None:
            rule = "the keystore is locked" if self.locked else "the keystore's pepper is damaged"
            raise KeystoreUnusable(self._path, rule)
        return self._pepper

    def _check_identity(self) -> None:
        if self._closed:
            raise StoreClosed(self._path)
        try:
            expected = _GENERATION.pack(self.header.store_id, self.header.generation)
            is_ours = self._file.is_still(expected, _GENERATIONS_AT)
        except OSError:
            with os_errors(self._path):
                raise
        if not is_ours:
            raise KeystoreUnusable(
                self._path, "the keystore was replaced while it was open; open the store again"
            )

    def take(self, count: int, highest_known: Callable[[], int]) -> list[tuple[int, bytes]]:
        """`count` new (slot, data key) pairs, durable on disk and never given before.

        Keys are leased in growing blocks, so that one sync serves many events. A lease starts behind
        both the end of the file and `highest_known()`, the highest slot in the database: a database or
        a keystore restored from an older copy never gives a slot twice.
        """
        with self._threads:
            self._check_identity()
            missing = count - len(self._leased)
            if missing > 0:
                self._lease(max(missing, self._next_lease), highest_known())
                self._next_lease = min(self._next_lease * 8, _LARGEST_LEASE)
            return [self._leased.popleft() for _ in range(count)]

    def cipher(self, slot: int, key: bytes) -> sealing.Cipher:
        """The cipher of what `take` gave.

        Made for those that will be taken next too: behind a sync the way to a cipher is out of the processor's
        caches, and the first costs as much as ten more.
        """
        found = self._ciphers.pop(slot, None)
        if found is None and self._leased and self._leased[0][0] not in self._ciphers:
            with self._threads:
                following = list(itertools.islice(self._leased, _CIPHERS_AHEAD))
            self._ciphers = {slot: sealing.Cipher(key) for slot, key in following}
        return found or sealing.Cipher(key)

    def give_back(self, unused: list[tuple[int, bytes]]) -> None:
        """Return what `take` gave and nothing was sealed with."""
        if not unused:
            return
        with self._threads:
            self._leased.extendleft(reversed(unused))

    def _lease(self, count: int, highest_known: int) -> None:
        master = self._master
        if master is None:
            raise KeystoreUnusable(self._path, "the keystore is locked")
        random = os.urandom(sealing.KEY_BYTES * count)
        keys = [random[at : at + sealing.KEY_BYTES] for at in range(0, len(random), sealing.KEY_BYTES)]
        wrapped = b"".join(sealing.wrap(master, key) for key in keys)
        with os_errors(self._path):
            try:
                self._file.lock()  # inside: an interrupt may come when it is held
                # A torn slot at the end, left by a full disk or a crash, is rounded up and never used.
                first = max(self.slots, highest_known + 1)
                if first >= MAX_SLOTS:
                    raise KeystoreUnusable(self._path, "the database names a slot that no keystore can hold")
                self._file.write(wrapped, _SLOTS_AT + first * SLOT_BYTES)
                self._file.sync()
            finally:
                self._file.unlock()
        self._leased.extend(zip(range(first, first + count), keys, strict=True))

    def destroy(self, records: Mapping[int, bytes]) -> None:
        """Overwrite slots with the records of their erasure. When this returns the keys are gone from the disk.

        Raises StoreIOError when a write, the sync or the reading back failed: then nothing may be claimed.
        """
        self._check_identity()
        with os_errors(self._path):
            self._file.lock()
            try:
                for slot, record in records.items():
                    self._file.write(record, _SLOTS_AT + slot * SLOT_BYTES)
                self._file.sync()
                kept = [slot for slot, record in records.items() if self._one(slot) != record]
            finally:
                self._file.unlock()
        if kept:
            raise StoreIOError(self._path, f"slot {kept[0]} does not read back as erased")

    def read(self, slots: Sequence[int]) -> list[SlotAnswer]:
        """What each slot holds, in the order asked: a data key, Erased, Lost or Locked.

        Always read from the file, so that an erasure by another process counts at once.
        """
        return [self._answer(data) for data in self._raw(slots)] if slots else []

    def any_erased(self, slots: Sequence[int]) -> bool:
        """Whether the key of one of these slots was destroyed by now."""
        return any(data[:8] == _ERASED for data in self._raw(slots))

    def _raw(self, slots: Sequence[int]) -> list[bytes]:
        self._check_identity()
        low, high = min(slots), max(slots)
        with os_errors(self._path):
            if low < 0 or high >= self.slots:
                # A changed database may name any number: where there is no slot there is no key.
                known = range(self.slots)
                return [self._one(slot) if slot in known else b"" for slot in slots]
            if high - low <= 4 * len(slots) + 64:
                run = self._file.read((high - low + 1) * SLOT_BYTES, _SLOTS_AT + low * SLOT_BYTES)
                return [run[(slot - low) * SLOT_BYTES : (slot - low + 1) * SLOT_BYTES] for slot in slots]
            return [self._one(slot) for slot in slots]

    def _one(self, slot: int) -> bytes:
        return self._file.read(SLOT_BYTES, _SLOTS_AT + slot * SLOT_BYTES)

    def _answer(self, data: bytes) -> SlotAnswer:
        if data[:8] == _ERASED and len(data) == SLOT_BYTES:
            _, by, milliseconds, reason = _ERASURE.unpack(data)
            return Erased(
                str(uuid.UUID(bytes=by)),
                from_milliseconds(min(milliseconds, _LAST_INSTANT)),
                REASON_NAMES.get(reason, "unknown"),
            )
        if self._master is None:
            return Locked()
        return (sealing.unwrap(self._master, data) if len(data) == SLOT_BYTES else None) or Lost()

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._closed = True
        self._leased.clear()
        self._ciphers.clear()
        self._file.close()
