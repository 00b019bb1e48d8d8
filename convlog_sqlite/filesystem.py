"""Files that survive a crash, locks that die with their holder, and file systems that cannot carry a log.

Nothing here ever opens `log.db`, `log.db-wal` or `log.db-shm`: closing any descriptor of those files
drops every POSIX lock that SQLite holds on them in this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
from pathlib import Path
from typing import Final

from convlog_sqlite.errors import (
    UnsupportedFilesystem,
    UnsupportedPlatform,
    os_errors,
)

PRIVATE_DIRECTORY: Final = 0o700
PRIVATE_FILE: Final = 0o600

# Write-ahead logging needs memory shared by all processes that use the file; these cannot give it.
_UNSAFE_FILESYSTEMS: Final = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|drvfs|fuse\.sshfs|virtiofs|vboxsf|afs|ceph|lustre"
)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def check_platform() -> None:
    """Refuse an operating system without POSIX locks and file descriptors."""
    if sys.platform not in ("linux", "darwin"):
        raise UnsupportedPlatform(sys.platform)


def sync(descriptor: int) -> None:
    """Return once the data of the file is on the disk; on macOS past the drive's own cache too."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        fcntl.fcntl(descriptor, full)
    else:
        os.fdatasync(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(path: Path) -> None:
    """Create `path` and its parents; only the last is made private, and an existing one is left as it is."""
    with os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=PRIVATE_DIRECTORY)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, in one call where the system takes it in one."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def filesystem_kind(path: Path, mountinfo: str = "/proc/self/mountinfo") -> str | None:
    """The type of the file system that holds `path` (ext4, tmpfs, nfs4, …), or None where unknown."""
    try:
        lines = Path(mountinfo).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    target = os.path.realpath(path)
    best, kind = -1, None
    for line in lines:
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        mount = _OCTAL.sub(lambda code: chr(int(code[1], 8)), left.split()[4])
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        # The later of two mounts on one point covers the earlier.
        if inside and len(mount) >= best:
            best, kind = len(mount), right.split()[0]
    return kind


def check_filesystem(path: Path) -> None:
    """Refuse network and pass-through file systems, unless CONVLOG_ALLOW_FILESYSTEM names the type."""
    kind = filesystem_kind(path)
    if kind and _UNSAFE_FILESYSTEMS.fullmatch(kind) and os.environ.get("CONVLOG_ALLOW_FILESYSTEM") != kind:
        raise UnsupportedFilesystem(path, kind)


def keep_private(path: Path) -> None:
    """Make the database file readable by its owner only. By path: it is never opened for this."""
    path.chmod(0o600)
