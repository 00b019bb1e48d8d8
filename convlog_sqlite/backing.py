"""Backups: the database in one file that stands by itself, made while others write, and looked through.

    out/monday.db          the database: envelopes, and payloads that are sealed
    out/monday.db.keys     with `with_keys` only: a copy of the keystore

Both are made beside their place, under names that begin with a dot, and get their own when they are whole, synced
and verified: the database last. A database alone is opened by the store's own keystore, so that an erasure
reaches every backup that was ever made. It does not reach a copy of the keystore: that is why one is asked for.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from convlog_sqlite import copying, files, rekeying
from convlog_sqlite.copying import Checked, Progress, silent
from convlog_sqlite.errors import (
    BackupUnusable,
    DestinationExists,
    KeysAtRisk,
    NotAStore,
    StoreBusy,
    StoreIOError,
    os_errors,
)
from convlog_sqlite.filesystem import sync_directory
from convlog_sqlite.kek import BARE
from convlog_sqlite.keystore import Keystore
from convlog_sqlite.locks import FileLock
from convlog_sqlite.redaction import Redactor
from convlog_sqlite.store import opening

KEYS_SUFFIX: Final = ".keys"
_ASIDE: Final = ".{name}.convlog-backup"
_KEYS_ASIDE: Final = ".{name}.convlog-backup-keys"
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP)
_BARE: Final = (
    "whoever has the copy of the keys can read all; set a key with `convlog keys rotate`, or say so"
)


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was made. `events` are all up to position `pos`, where the store's chain was `chain`.

    `keys` is the copy of the keystore, if one was asked for. `verified` says that the file, as it stands, was looked
    through: SQLite's integrity check, and the chains over every envelope.
    """

    path: str
    events: int
    pos: int
    chain: str
    bytes: int
    verified: bool
    keys: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The backup as JSON values."""
        return asdict(self)


def back_up(
    store: opening.Store,
    redactor: Redactor,
    destination: Path,
    *,
    with_keys: bool,
    bare_keys: bool,
    progress: Progress = silent,
) -> Backup:
    """Make a backup of an open store. See `ConversationLog.backup`."""
    if store.directory is None or store.keystore_path is None:
        raise NotAStore(":memory:", "an ephemeral log has nothing to back up")
    if with_keys:
        _check_keys(store, destination, bare_keys=bare_keys)
    with os_errors(destination), _aside(destination) as aside:
        size = copying.copy(store.directory / opening.DATABASE, aside, progress)
        found = copying.check(aside, progress)
        if found.problems:
            raise BackupUnusable(
                store.directory / opening.DATABASE,
                "damaged",
                f"the copy is damaged, and was removed: {found.problems[0]}; run `convlog verify`",
                found.problems,
            )
        keys = None
        if with_keys:
            # An erasure that is decided comes before the copy of its key, or is not begun until it is made.
            with redactor.at_rest():
                keys = _copy_keys(store, destination, bare_keys=bare_keys)
                _put(aside, destination)
        else:
            _put(aside, destination)
        return _said(destination, keys, size, found)


def keys_of(destination: Path) -> Path:
    """Where the copy of the keystore is that belongs to a backup."""
    return destination.with_name(destination.name + KEYS_SUFFIX)


def _said(destination: Path, keys: Path | None, size: int, found: Checked) -> Backup:
    return Backup(
        str(destination),
        found.events,
        found.events,
        found.chain.hex(),
        size,
        verified=True,
        keys=None if keys is None else str(keys),
    )


def _check_keys(store: opening.Store, destination: Path, *, bare_keys: bool) -> None:
    if store.keystore.header.kept == BARE and not bare_keys:
        raise KeysAtRisk(keys_of(destination), "bare", _BARE)


@contextlib.contextmanager
def _aside(destination: Path) -> Iterator[Path]:
    """An empty file beside the destination, for one process at a time; nothing stays of what failed.

    What a killed backup left there is removed. Raises DestinationExists, StoreBusy.
    """
    aside = destination.with_name(_ASIDE.format(name=destination.name))
    with contextlib.closing(_locked(aside)):
        try:
            _clean(destination, aside)
            for path in (destination, keys_of(destination)):
                if os.path.lexists(path):
                    raise DestinationExists(path)
            yield aside
        finally:
            _clean(destination, aside)
            copying.remove(aside)


def _locked(aside: Path) -> FileLock:
    """A new file, empty and ours alone. What a killed backup left is never written to: it may have a second name."""
    while True:
        if aside.is_symlink():
            raise StoreIOError(aside, "a symbolic link is not followed")
        lock = FileLock(aside)
        if not lock.try_acquire():
            lock.close()
            raise StoreBusy(aside, "another backup is being made there")
        if lock.is_named():
            if not aside.stat().st_size:
                return lock
            copying.remove(aside)
        lock.close()


def _clean(destination: Path, aside: Path) -> None:
    """Take away the second name of a copy of keys; where the database did not come to its place, the copy itself."""
    keys = keys_of(destination)
    keys_aside = destination.with_name(_KEYS_ASIDE.format(name=destination.name))
    if not os.path.lexists(keys_aside):
        return
    if keys.exists() and keys.samefile(keys_aside):
        if destination.exists() and destination.samefile(aside):
            keys_aside.unlink()
            return
        keys.unlink()
    if keys_aside.lstat().st_nlink > 1:
        keys_aside.unlink()  # the copy was moved since
    else:
        files.destroy(keys_aside)


def _copy_keys(store: opening.Store, destination: Path, *, bare_keys: bool) -> Path:
    """Copy the keystore as it stands, locked or not, and give the copy its name. It has every slot of the database."""
    keys = keys_of(destination)
    aside = destination.with_name(_KEYS_ASIDE.format(name=destination.name))
    path = Path(store.keystore.path)
    with contextlib.closing(Keystore.open(path, store.writer.store_id, writable=False)) as keystore:
        if keystore.header.kept == BARE and not bare_keys:
            raise KeysAtRisk(keys, "bare", _BARE)
        rekeying.write(aside, keystore.header, rekeying.copied(keystore))
    _link(aside, keys)
    return keys


def _put(aside: Path, destination: Path) -> None:
    _link(aside, destination)
    sync_directory(destination.parent)


def _link(aside: Path, path: Path) -> None:
    try:
        os.link(aside, path)
    except FileExistsError:
        raise DestinationExists(path) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        aside.rename(path)  # no second names here: what was there was looked at when it began
