"""Keystore files written aside and put in the place of another, for a caller that has the store to itself.

    .log.keys.convlog-next-<store>   the new one, until it is whole and synced
    .log.keys.convlog-last-<store>   a second name of the old one, until its bytes are overwritten

At each moment the keystore's own name is that of a whole keystore, the old or the new. What a crash left is
overwritten and removed by `clean`: both hold keys.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from convlog_sqlite import files, sealing
from convlog_sqlite.errors import StoreIOError, os_errors
from convlog_sqlite.filesystem import PRIVATE_FILE, sync, sync_directory, write_all
from convlog_sqlite.header import COPY_BYTES, Header
from convlog_sqlite.keystore import SLOT_BYTES, SLOTS_AT, Keystore, is_erased
from convlog_sqlite.slotfile import DiskFile

_LOST: Final = bytes(SLOT_BYTES)
_AT_ONCE: Final = 4096  # slots in memory
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP)


def rekeyed(old: Keystore, master: bytes) -> Iterator[bytes]:
    """The slots of a keystore with their keys wrapped under another master key; erasures stay, and lost stays lost."""
    old_master = old.require_master()
    for slots in _blocks(old, None):
        yield b"".join(_rewrapped(theirs, old_master, master) for _, theirs in slots)


def merged(source: Keystore, current: DiskFile | None, own: bytes | None) -> Iterator[bytes]:
    """The slots of `source`, with what the keystore in its place knows, whose master key is `own`, if it is known.

    An erasure that either of them records counts. Where both have a key, a slot was given once: they are the same.
    """
    master = source.require_master()
    for slots in _blocks(source, current):
        yield b"".join(_better(mine, theirs, own or master, master) for mine, theirs in slots)


def copied(source: Keystore) -> Iterator[bytes]:
    """The slots as they are, whether or not the keystore is locked."""
    for slots in _blocks(source, None):
        yield b"".join(theirs for _, theirs in slots)


def _blocks(source: Keystore, current: DiskFile | None) -> Iterator[list[tuple[bytes, bytes]]]:
    """(slot of `current`, slot of `source`), many at a time; one that is torn or not there is as lost ones are."""
    here = 0 if current is None else max(0, current.size() - SLOTS_AT) // SLOT_BYTES
    count = max(source.slots, here)
    for first in range(0, count, _AT_ONCE):
        wanted = min(_AT_ONCE, count - first)
        mine = b"" if current is None else current.read(wanted * SLOT_BYTES, SLOTS_AT + first * SLOT_BYTES)
        yield list(zip(_split(mine, wanted), _split(source.raw(first, wanted), wanted), strict=True))


def _split(data: bytes, count: int) -> Iterator[bytes]:
    whole = len(data) // SLOT_BYTES
    for number in range(count):
        yield data[number * SLOT_BYTES : (number + 1) * SLOT_BYTES] if number < whole else _LOST


def _rewrapped(slot: bytes, old: bytes, new: bytes) -> bytes:
    if is_erased(slot):
        return slot
    key = sealing.unwrap(old, slot)
    return _LOST if key is None else sealing.wrap(new, key)


def _better(mine: bytes, theirs: bytes, own: bytes, master: bytes) -> bytes:
    if is_erased(mine) or is_erased(theirs):
        return mine if is_erased(mine) else theirs
    key = sealing.unwrap(own, mine)
    return theirs if key is None else sealing.wrap(master, key)


def slots_in(path: Path) -> int:
    """How many whole slots a keystore file has."""
    with os_errors(path):
        return max(0, path.stat().st_size - SLOTS_AT) // SLOT_BYTES


def belongs_to(file: DiskFile, store_id: bytes) -> bool:
    """Whether a keystore whose header may be damaged still says that it is this store's."""
    return any(file.read(len(store_id), at + 16) == store_id for at in (0, COPY_BYTES))


def write(path: Path, header: Header, slots: Iterable[bytes]) -> None:
    """Write a keystore to a new, private file; it is synced and read back. Nothing stays of what failed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        written = hashlib.sha256()
        for data in itertools.chain((header.to_bytes(),), slots):
            write_all(descriptor, data)
            written.update(data)
        sync(descriptor)
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(os.dup(descriptor), "rb") as again:
            if hashlib.file_digest(again, "sha256").digest() != written.digest():
                raise StoreIOError(path, "the keystore does not read back as it was written")
    except BaseException:  # an interrupt too leaves no keys behind
        files.destroy(path)
        raise
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def put_in_place(path: Path, header: Header, slots: Iterable[bytes]) -> None:
    """Put a new keystore in place of the one at `path`, if there is one, whose bytes are then overwritten.

    `slots` may still read the old one: it is there until the new one is whole.
    """
    path = Path(os.path.realpath(path))
    clean(path, header.store_id)
    following, last = _asides(path, header.store_id)
    with os_errors(path):
        write(following, header, slots)
        if path.exists():
            _give_to_the_same(path, following)
            try:
                os.link(path, last)
            except OSError as error:
                if error.errno not in _NO_LINKS:  # without links its blocks are freed, not overwritten
                    raise
        sync_directory(path.parent)
        following.rename(path)
        sync_directory(path.parent)
        files.destroy(last)
        sync_directory(path.parent)


def _give_to_the_same(old: Path, new: Path) -> None:
    """Who could open the old file can open the new one, though somebody else (root) wrote it."""
    before, now = old.stat(), new.stat()
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        os.chown(new, before.st_uid, before.st_gid)
    new.chmod(before.st_mode & 0o777)


def clean(path: Path, store_id: bytes) -> None:
    """Overwrite and remove what a crash left beside the keystore. For who knows that nobody is at it."""
    path = Path(os.path.realpath(path))
    following, last = _asides(path, store_id)
    with os_errors(path), contextlib.suppress(FileNotFoundError):  # another process cleans too
        if os.path.lexists(following):
            files.destroy(following)
        if os.path.lexists(last) and path.exists():  # else it is the only one
            if last.samefile(path):
                last.unlink()
            else:
                files.destroy(last)


def _asides(path: Path, store_id: bytes) -> tuple[Path, Path]:
    # Named for the store: `--keys` may point among the keystores of others.
    place = store_id.hex()[:16]
    return (
        path.with_name(f".{path.name}.convlog-next-{place}"),
        path.with_name(f".{path.name}.convlog-last-{place}"),
    )
