r"""The keystore `log.keys`: one fixed slot per sealed thing, so that a key can be destroyed in place.

File, format 1 (big-endian):

    0      header copy A, 4096 bytes       4096   header copy B, 4096 bytes
    8192   slot 0, 40 bytes                8192 + 40 n   slot n

    The header is described in `header`: whose the keystore is, and the master key, bare or wrapped.

    Slot   live    40 bytes of AES-KW(master key, data key)
           erased  "\xffERASED\xff" 8 | redaction event id 16 | Unix milliseconds 8 | reason code 2 | 6 zeros
           lost    anything else: zeros, a hole, past the end of the file, wrong bytes

A slot file and not a table, because every SQLite journal mode keeps a copy of the old page at the
moment a key is destroyed. Promises: a slot is given once and its key is on the disk before it is used;
a keystore is never made for a store that has events; a file replaced under an open process is noticed
at the next access; "no key here" is never taken for "erased".
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from convlog_sqlite import sealing
from convlog_sqlite.errors import (
    KeystoreDamaged,
    KeystoreForeign,
    KeystoreLocked,
    KeystoreReplaced,
    KeystoreTruncated,
    KeystoreUnusable,
    StoreClosed,
    StoreIOError,
    WrongKey,
    os_errors,
)
from convlog_sqlite.events import Erased, Locked, Lost
from convlog_sqlite.filesystem import PRIVATE_FILE, sync, sync_directory, write_all
from convlog_sqlite.header import COPY_BYTES, GENERATION, Header, is_of_newer_format
from convlog_sqlite.instants import from_milliseconds
from convlog_sqlite.kek import PASSPHRASE, UNWRAPPED, KeySource, Wrapping
from convlog_sqlite.slotfile import DiskFile, MemoryFile, SlotFile
from convlog_sqlite.vocabulary import REASON_NAMES

_ERASURE: Final = struct.Struct(">8s16sQH6x")
_ERASED: Final = b"\xffERASED\xff"
_GENERATIONS_AT: Final = (16, COPY_BYTES + 16)  # one for each copy of the header
SLOTS_AT: Final = 2 * COPY_BYTES
SLOT_BYTES: Final = 40
MAX_SLOTS: Final = 1 << 47  # chunk ids are slot * 65536
_LAST_INSTANT: Final = 253_402_300_799_999  # the end of year 9999, where datetime ends
_FIRST_LEASE: Final = 2  # a process that appends once, to a session that may be new
_LARGEST_LEASE: Final = 4096
_CIPHERS_AHEAD: Final = 16
_REMEMBERED: Final = 256  # ciphers of slots that were read

SlotAnswer = bytes | Erased | Locked | Lost


def erasure_record(by: bytes, milliseconds: int, reason: int) -> bytes:
    """The 40 bytes that overwrite a slot whose key is destroyed by redaction event `by`."""
    return _ERASURE.pack(_ERASED, by, milliseconds, reason)


def is_erased(slot: bytes) -> bool:
    """Whether the 40 bytes of a slot are the record of an erasure."""
    return slot[:8] == _ERASED and len(slot) == SLOT_BYTES


def create(path: Path, store_id: bytes, wrapping: Wrapping = UNWRAPPED) -> None:
    """Make a keystore for a new store, durable and private. Raises KeystoreUnusable if `path` exists."""
    with os_errors(path):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        except FileExistsError:
            raise KeystoreUnusable(path, "a keystore is here already; it is never overwritten") from None
        try:
            write_all(descriptor, Header.new(store_id, wrapping).to_bytes())
            sync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(path.parent)


class Keystore:
    """An open keystore. Safe to use from several threads."""

    def __init__(
        self, file: SlotFile, path: str, store_id: bytes | None, kek: KeySource | None = None
    ) -> None:
        """Read and check the header. `store_id` is the store that must own it (None: any)."""
        self._file, self._path, self._closed = file, path, False
        self._threads = threading.Lock()
        self._leased: deque[tuple[int, bytes]] = deque()
        self._ciphers: dict[int, sealing.Cipher] = {}
        # By slot: what it held when it was read, and the cipher of that.
        self._read: dict[int, tuple[bytes, sealing.Cipher]] = {}
        self._next_lease = _FIRST_LEASE
        try:
            self.header, self._master = self._unlocked(self._headers(store_id), kek)
        except BaseException:  # a prompt may be interrupted
            file.close()
            raise
        self._pepper = None if self._master is None else sealing.unwrap(self._master, self.header.pepper)

    @classmethod
    def open(
        cls, path: Path, store_id: bytes, *, writable: bool = True, kek: KeySource | None = None
    ) -> Keystore:
        """Open the keystore of `store_id`. Without the key-encryption key it is opened locked.

        Raises KeystoreMissing, KeystoreDamaged, KeystoreTruncated, KeystoreForeign, WrongKey, KeySourceFailed.
        """
        return cls(DiskFile(path, writable=writable), str(path), store_id, kek)

    def _headers(self, store_id: bytes | None) -> list[Header]:
        """The valid copies of the newest generation, the one that counts first."""
        with os_errors(self._path):
            is_cut = self._file.size() < SLOTS_AT
            copies = [Header.from_bytes(self._file.read(COPY_BYTES, at)) for at in (0, COPY_BYTES)]
        valid = sorted((copy for copy in copies if copy is not None), key=lambda copy: copy.age, reverse=True)
        if is_cut:
            raise KeystoreTruncated(self._path, "the keystore was cut: it ends inside its header")
        if not valid:
            raise KeystoreDamaged(self._path)
        if store_id is not None and valid[0].store_id != store_id:
            raise KeystoreForeign(self._path)
        if valid[0].kept == PASSPHRASE and not valid[0].scrypt.is_bearable:
            raise KeystoreDamaged(self._path, "the keystore asks for more of scrypt than any keystore does")
        return [copy for copy in valid if copy.generation == valid[0].generation]

    def _unlocked(self, copies: Sequence[Header], kek: KeySource | None) -> tuple[Header, bytes | None]:
        """The copy that opens and its master key. A crash amid a rotation leaves one for the old key, one for the new."""
        tried = False
        for header in copies:
            key = None if kek is None or not header.kept else kek.key(header.kept, header.scrypt)
            master = header.master_key(key)
            if master is not None:
                return header, master
            tried = tried or key is not None
        if tried:
            raise WrongKey(self._path)
        return copies[0], None

    def require_master(self) -> bytes:
        """The master key. Raises KeystoreLocked."""
        if self._master is None:
            raise KeystoreLocked(self._path)
        return self._master

    def check_usable(self) -> None:
        """Raise KeystoreLocked, KeystoreReplaced or StoreClosed when nothing can be sealed."""
        self._check_identity()
        self.require_master()

    def rewrap(self, wrapping: Wrapping, act: str, by: str, change: int) -> None:
        """Keep the same master key under another wrapping, in both header copies, one after the other.

        Each copy is synced before the next is touched, and the one that may be the only good one comes last: a
        crash leaves a copy that opens with the old key or with the new. `change` is the least that the log
        knows nothing of yet. Raises KeystoreLocked.
        """
        master = self.require_master()
        self._check_identity()
        with os_errors(self._path):
            try:
                self._file.lock()
                newest = self._headers(None)[0]
                header = newest.wrapped_by(wrapping, master).done(
                    act, by, newest.generation, max(change, newest.change + 1)
                )
                self._write_copies(header)
            finally:
                self._file.unlock()

    def mend(self) -> None:
        """Write both header copies anew where one is damaged, or was left by a rotation that a crash ended.

        Not where the key at hand opens the older copy only: the newer one belongs to another key.
        """
        good = self.header.to_bytes()[:COPY_BYTES]
        with os_errors(self._path):
            found = [self._file.read(COPY_BYTES, at) for at in (0, COPY_BYTES)]
            if all(copy == good or is_of_newer_format(copy) for copy in found):
                return
            try:
                self._file.lock()
                newest = self._headers(None)[0]
                if newest.age == self.header.age:
                    self._write_copies(newest)
            finally:
                self._file.unlock()

    def _write_copies(self, header: Header) -> None:
        copy = header.to_bytes()[:COPY_BYTES]
        is_first_good = Header.from_bytes(self._file.read(COPY_BYTES, 0)) == self.header
        for at in (COPY_BYTES, 0) if is_first_good else (0, COPY_BYTES):
            self._file.write(copy, at)
            self._file.sync()
            if self._file.read(COPY_BYTES, at) != copy:
                raise StoreIOError(self._path, "the header does not read back as it was written")
        self.header = header

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
        return max(0, self._file.size() - SLOTS_AT + SLOT_BYTES - 1) // SLOT_BYTES

    @property
    def pepper(self) -> bytes:
        """The secret of every keyed digest. Raises KeystoreLocked, KeystoreDamaged."""
        if self._pepper is None:
            if self.locked:
                raise KeystoreLocked(self._path)
            raise KeystoreDamaged(self._path, "the keystore's pepper is damaged")
        return self._pepper

    def _check_identity(self) -> None:
        if self._closed:
            raise StoreClosed(self._path)
        try:
            expected = GENERATION.pack(self.header.store_id, self.header.generation)
            is_ours = self._file.is_still(expected, _GENERATIONS_AT)
        except OSError:
            with os_errors(self._path):
                raise
        if not is_ours:
            raise KeystoreReplaced(self._path)

    def take(self, count: int, highest_known: Callable[[], int]) -> list[tuple[int, bytes]]:
        """`count` new (slot, data key) pairs, durable on disk and never given before.

        Keys are leased in growing blocks, so that one sync serves many events. A lease starts behind
        both the end of the file and `highest_known()`, the highest slot in the database: a database or
        a keystore restored from an older copy never gives a slot twice. Whoever commits what was sealed with them says
        `check_usable` in the same transaction: once for all that it commits.
        """
        with self._threads:
            missing = count - len(self._leased)
            if missing > 0:
                self._check_identity()
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
        master = self.require_master()
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
                self._file.write(wrapped, SLOTS_AT + first * SLOT_BYTES)
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
                    self._file.write(record, SLOTS_AT + slot * SLOT_BYTES)
                self._file.sync()
                kept = [slot for slot, record in records.items() if self._one(slot) != record]
            finally:
                self._file.unlock()
        self._read.clear()
        if kept:
            raise StoreIOError(self._path, f"slot {kept[0]} does not read back as erased")

    def read(self, slots: Sequence[int]) -> list[SlotAnswer]:
        """What each slot holds, in the order asked: a data key, Erased, Lost or Locked.

        Always read from the file, so that an erasure by another process counts at once.
        """
        return [self._answer(data) for data in self._raw(slots)] if slots else []

    def ciphers(self, slots: Sequence[int]) -> list[sealing.Cipher | Erased | Locked | Lost]:
        """What `read` gives, with each key made ready to open with.

        The slots are read from the file every time. To unwrap a key and make a cipher of it takes longer than to
        open a payload, and who tails a session opens mostly the same ones again: so some ciphers are remembered,
        each for as long as its slot holds the very bytes that it was made of.
        """
        found: list[sealing.Cipher | Erased | Locked | Lost] = []
        known, is_few = self._read, len(slots) <= _REMEMBERED
        for slot, data in zip(slots, self._raw(slots) if slots else (), strict=True):
            held = known.get(slot)
            if held is not None and held[0] == data:
                found.append(held[1])
                continue
            answer = self._answer(data)
            if not isinstance(answer, bytes):
                known.pop(slot, None)
                found.append(answer)
                continue
            cipher = sealing.Cipher(answer)
            if is_few:
                if len(known) >= _REMEMBERED:
                    known.clear()
                known[slot] = data, cipher
            found.append(cipher)
        return found

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
                run = self._file.read((high - low + 1) * SLOT_BYTES, SLOTS_AT + low * SLOT_BYTES)
                return [run[(slot - low) * SLOT_BYTES : (slot - low + 1) * SLOT_BYTES] for slot in slots]
            return [self._one(slot) for slot in slots]

    def raw(self, first: int, count: int) -> bytes:
        """The bytes of up to `count` slots as they stand, from slot `first` on; a torn one ends short."""
        with os_errors(self._path):
            return self._file.read(count * SLOT_BYTES, SLOTS_AT + first * SLOT_BYTES)

    def _one(self, slot: int) -> bytes:
        return self._file.read(SLOT_BYTES, SLOTS_AT + slot * SLOT_BYTES)

    def _answer(self, data: bytes) -> SlotAnswer:
        if is_erased(data):
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
        self._read.clear()
        self._file.close()
