r"""The header of a keystore: whose it is, and the master key, bare or wrapped.

Format 1, big-endian, in two copies of 4096 bytes each:

       0   8  magic "CONVLOGK"        8  2  format version, 1
      10   2  how the master key is kept: 0 bare, 1 under a key, 2 under a passphrase; see `kek`
      12   4  zero                   16 16  store id
      32   8  generation: rises when the file is replaced by one with other keys
      40  40  master key (bare: 32 bytes and 8 zeros)
      80  40  pepper, wrapped under the master key
     120   4  change: rises whenever a header is written anew
     124   1  the act that did it: 0 none, 1 rotate, 2 rekey, 3 import, 4 replace-lost
     125  21  scrypt: log2 of the cost 1 | block size 2 | parallelism 2 | salt 16; zero without a passphrase
     146 256  the agent that answers for the act, UTF-8, then zeros
     402  78  zero
     480  32  SHA-256 of bytes 0 to 479

The valid copy with the highest generation, then change, counts; one damaged copy does no harm. Act and agent
stand here because the log is told afterwards: what a crash left untold is told by the next open.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass, replace
from typing import Final

from convlog_sqlite import sealing
from convlog_sqlite.kek import BARE, KEY, NO_SCRYPT, PASSPHRASE, UNWRAPPED, Scrypt, Wrapping

COPY_BYTES: Final = 4096
ACTS: Final = {"rotate": 1, "rekey": 2, "import": 3, "replace-lost": 4}
ACT_NAMES: Final = {code: name for name, code in ACTS.items()}
LONGEST_NAME: Final = 256  # bytes of the agent's name
GENERATION: Final = struct.Struct(">16sQ")  # store id and generation, at 16
_MAGIC: Final = b"CONVLOGK"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">8sHH4x16sQ40s40sIBBHH16s256s78x32s")

_PROTECTION: Final = {
    BARE: "none: without a key-encryption key sealing serves erasure, not secrecy",
    KEY: "a key-encryption key from a file or a command",
    PASSPHRASE: "a passphrase, through scrypt",
}


@dataclass(frozen=True, slots=True, repr=False)  # it holds keys: reprs end up in logs
class Header:
    """One header copy. `kept` says how the master key is kept: 0 is bare."""

    kept: int
    store_id: bytes
    generation: int
    master: bytes
    pepper: bytes
    change: int = 0
    act: int = 0
    by: str = ""
    scrypt: Scrypt = NO_SCRYPT

    @classmethod
    def new(cls, store_id: bytes, wrapping: Wrapping = UNWRAPPED) -> Header:
        """A header with a new master key and a new pepper."""
        master = os.urandom(sealing.KEY_BYTES)
        pepper = sealing.wrap(master, os.urandom(sealing.KEY_BYTES))
        return cls(wrapping.kept, store_id, 1, wrapping.wrap(master), pepper, scrypt=wrapping.scrypt)

    @property
    def age(self) -> tuple[int, int]:
        """Generation and change: of two copies the one with the higher counts."""
        return self.generation, self.change

    @property
    def protection(self) -> str:
        """How the master key is kept, for people."""
        return _PROTECTION.get(self.kept, "something that this convlog does not know")

    def master_key(self, key: bytes | None) -> bytes | None:
        """The master key, opened with `key`; None when it does not open."""
        if self.kept == BARE:
            return self.master[: sealing.KEY_BYTES]
        return None if key is None else sealing.unwrap(key, self.master)

    def wrapped_by(self, wrapping: Wrapping, master: bytes) -> Header:
        """The same with `master`, which may be another one, kept under `wrapping`; the pepper is not touched."""
        return replace(self, kept=wrapping.kept, scrypt=wrapping.scrypt, master=wrapping.wrap(master))

    def done(self, act: str, by: str, generation: int, change: int) -> Header:
        """The same, as `act` of agent `by` leaves it."""
        return replace(self, act=ACTS[act], by=by, generation=generation, change=change)

    def to_bytes(self) -> bytes:
        """Two equal copies: all that stands before the first slot."""
        data = _HEADER.pack(
            _MAGIC, _VERSION, self.kept, self.store_id, self.generation, self.master, self.pepper,
            self.change, self.act, *self.scrypt, self.by.encode(), b"",
        )  # fmt: skip
        copy = (data[:480] + hashlib.sha256(data[:480]).digest()).ljust(COPY_BYTES, b"\0")
        return copy + copy

    @classmethod
    def from_bytes(cls, data: bytes) -> Header | None:
        """The header in one copy, or None when it is damaged. A newer format is damaged to us too."""
        if len(data) < _HEADER.size:
            return None
        (
            magic, version, kept, store_id, generation, master, pepper, change, act, log_n, r, p, salt, by, digest,
        ) = _HEADER.unpack_from(data)  # fmt: skip
        if magic != _MAGIC or version != _VERSION or hashlib.sha256(data[:480]).digest() != digest:
            return None
        agent = by.rstrip(b"\0").decode(errors="replace")
        return cls(kept, store_id, generation, master, pepper, change, act, agent, Scrypt(log_n, r, p, salt))


def is_of_newer_format(data: bytes) -> bool:
    """Whether a copy is whole and a later convlog wrote it: it is damaged to us, and not ours to mend."""
    version = int.from_bytes(data[8:10], "big")
    return data[:8] == _MAGIC and version > _VERSION and hashlib.sha256(data[:480]).digest() == data[480:512]
