"""status: what a store is and how it is doing. Looks, and changes nothing but the WAL's length."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, Final

from convlog_sqlite import schema
from convlog_sqlite.database import SQLITE_VERSION
from convlog_sqlite.filesystem import filesystem_kind
from convlog_sqlite.instants import id_text
from convlog_sqlite.locks import holders
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.store import copies, opening
from convlog_sqlite.store.reader import Reader

# The bytes of `-shm` that SQLite locks for its readers: sqlite.org/walformat.html, section 2.2.
_READ_MARKS: Final = range(123, 128)


def status(store: opening.Store, reader: Reader, mirror: Mirror | None) -> dict[str, Any]:
    """JSON values. Sizes are bytes; processes are ids of this machine."""
    directory = store.directory
    pos, _ = reader.store_head()
    found: dict[str, Any] = {
        "store": str(directory) if directory else ":memory:",
        "store_id": id_text(reader.store_id),
        "schema": len(schema.known()),
        "sqlite": SQLITE_VERSION,
        "events": pos,
        "sessions": len(reader.session_ids()),
        "removed_sessions": len(reader.removed_sessions()),
        "keystore": _keystore(store),
    }
    if directory is not None:
        found |= {
            "filesystem": filesystem_kind(directory),
            "private": stat.S_IMODE(directory.stat().st_mode) & 0o077 == 0,
            "database": {"bytes": _size(directory / opening.DATABASE)},
            "wal": _wal(store, directory),
            "handles": holders(directory / opening.OPEN),
            "writer": holders(directory / opening.GATE),
        }
    if mirror is not None:
        found["mirror"] = _mirror(reader, mirror)
        with store.database.read() as connection:
            found["exports"] = copies.exports(connection)
    return found


def _keystore(store: opening.Store) -> dict[str, Any]:
    keystore = store.keystore
    return {
        "path": str(store.keystore_path) if store.keystore_path else ":memory:",
        "protection": keystore.header.protection,
        "locked": keystore.locked,
        "generation": keystore.header.generation,
        "slots": keystore.slots,
        "bytes": _size(store.keystore_path) if store.keystore_path else 0,
    }


def _wal(store: opening.Store, directory: Path) -> dict[str, Any]:
    """Frames that a checkpoint could not move are held by a reader: its process is among `readers`."""
    found: dict[str, Any] = {"bytes": _size(directory / f"{opening.DATABASE}-wal")}
    if not store.database.read_only:
        frames, moved = store.database.checkpoint()
        found |= {"frames": frames, "pinned_frames": frames - moved}
    found["readers"] = holders(directory / f"{opening.DATABASE}-shm", _READ_MARKS)
    return found


def _mirror(reader: Reader, mirror: Mirror) -> dict[str, Any]:
    sizes = {session: _size(mirror.path(session)) for session in reader.session_ids()}
    return {
        "enabled": mirror.enabled,
        "path": str(mirror.root),
        "plaintext": True,
        "exporter": holders(mirror.root),
        "files": sum(1 for size in sizes.values() if size),
        "bytes": sum(sizes.values()),
        "problem": mirror.problem,
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
