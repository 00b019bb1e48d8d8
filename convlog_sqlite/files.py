"""Files of lines: how one ends, how lines are put behind it, how it is made anew, how it is destroyed.

A line is written whole or taken back. What a file held is overwritten where it lies, by `replacement` and
`destroy`, so that removing a name is not all that happens to erased text. File systems that never write in
place (btrfs, ZFS, APFS), snapshots and flash memory may keep the old bytes all the same.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from convlog_sqlite import strictjson
from convlog_sqlite.filesystem import PRIVATE_FILE, sync, sync_directory, write_all

AHEAD: Final = ".ahead-"  # between a file's name and the moment when it was set aside

_BLOCK: Final = 1 << 16
_ZEROS: Final = bytes(1 << 20)  # overwritten at once


@contextlib.contextmanager
def made_anew(path: Path) -> Iterator[int]:
    """A descriptor to write to; when the block ends what it wrote is durable and stands at `path`."""
    aside = _new(path)
    descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        yield descriptor
        sync(descriptor)
        aside.rename(path)
    except BaseException:  # an interrupt too leaves no half file behind
        aside.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


class Replacement:
    """A file that is written aside, through `descriptor`, to stand in the place of `path`. See `replacement`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self.descriptor = path, descriptor
        self.is_put = False

    def begin(self) -> bool:
        """Destroy what lies beside the file; whether there is a file to be replaced.

        What lies there is what a crash left, and what was set aside because it was ahead of the log. Called,
        like `put`, while nobody else writes there.
        """
        path, old = self._path, _old(self._path)
        if _is_same(old, path):
            old.unlink()  # a crash came before the new file: these bytes are still those of the file
        for left_behind in (_new(path), old, *aside(path)):
            destroy(left_behind)
        return path.exists()

    def put(self) -> None:
        """Let the file stand in its place, durable; its old bytes have another name now, and are still there."""
        os.link(self._path, _old(self._path), follow_symlinks=False)
        sync(self.descriptor)
        _rewritten(self._path).rename(self._path)
        self.is_put = True
        sync_directory(self._path.parent)


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[Replacement]:
    """A file to be written and put in the place of `path`; when the block ends, what `path` held is destroyed.

    A second name keeps the old bytes in sight, so that a crash before they are overwritten does not lose them:
    the next call finds them. One at a time: the caller sees to that.
    """
    new = _rewritten(path)
    destroy(new)
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_FILE)
    made = Replacement(path, descriptor)
    try:
        yield made
    finally:
        os.close(descriptor)
        if not made.is_put:
            destroy(new)
    if made.is_put:
        destroy(_old(path))


def destroy_all(path: Path) -> None:
    """Destroy a file and everything that may lie beside it."""
    for left_behind in beside(path):
        destroy(left_behind)


def beside(path: Path) -> list[Path]:
    """A file, if it is there, and what may lie beside it of what it held."""
    names = (path, _new(path), _old(path), _rewritten(path))
    return [name for name in names if name.exists() or name.is_symlink()] + aside(path)


def aside(path: Path) -> list[Path]:
    """What was set aside because it was ahead of the log."""
    return sorted(path.parent.glob(f"{path.name}{AHEAD}*"))


def destroy(path: Path) -> None:
    """Overwrite and remove a file, if it is there."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(descriptor).st_size
        for at in range(0, size, len(_ZEROS)):
            os.pwrite(descriptor, _ZEROS[: size - at], at)
        sync(descriptor)
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
    path.unlink()


def _new(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _rewritten(path: Path) -> Path:
    return path.with_name(f".{path.name}.rewritten")


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except FileNotFoundError:
        return False


def append_whole(descriptor: int, data: bytes) -> None:
    """Append `data` whole, or leave the file as it was."""
    size = os.fstat(descriptor).st_size
    try:
        write_all(descriptor, data)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def last_line(descriptor: int) -> bytes | None:
    """The last complete line, with its newline; a torn tail behind it is cut off. None in an empty file."""
    end = os.fstat(descriptor).st_size
    blocks: list[bytes] = []
    at, newlines = end, 0
    while at > 0 and newlines < 2:
        step = min(_BLOCK, at)
        at -= step
        blocks.append(os.pread(descriptor, step, at))
        newlines += blocks[-1].count(b"\n")
    tail = b"".join(reversed(blocks))
    whole = tail.rfind(b"\n") + 1
    if at + whole != end:
        os.ftruncate(descriptor, at + whole)
    if not whole:
        return None
    return tail[tail.rfind(b"\n", 0, whole - 1) + 1 : whole]


def seq_of(line: bytes) -> int | None:
    """The seq that a line names, or None when it is no line of ours."""
    try:
        parsed = strictjson.load(line)
    except ValueError:
        return None
    seq = parsed.get("seq") if isinstance(parsed, dict) else None
    return seq if type(seq) is int and seq > 0 else None
