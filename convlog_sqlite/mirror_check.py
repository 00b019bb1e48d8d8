"""Comparing a mirror file with the log, for `verify`: whatever differs is named, nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from convlog_sqlite import tombstones
from convlog_sqlite.errors import StoreCorrupt
from convlog_sqlite.findings import Finding
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.store.reader import Reader

_LOOKS: Final = 5  # at a file that is replaced while it is looked at
_BLOCK: Final = 1 << 20


def mirror_findings(reader: Reader, mirror: Mirror, session: str) -> Iterator[Finding]:
    """Compare a mirror file with the log. One that is being rewritten for an erasure is compared again."""
    try:
        yield from _compared(reader, mirror, session)
    except StoreCorrupt as damaged:
        yield Finding("mirror-differs", f"it could not be compared: {damaged.rule}", session)


def _compared(reader: Reader, mirror: Mirror, session: str) -> list[Finding]:
    found: list[Finding] = []
    for _ in range(_LOOKS):
        file = _file_of(mirror, session)
        found = list(_compare(reader, mirror, session))
        if found and tombstones.is_pending(reader, session, mirror.root.name):
            return [Finding("mirror-behind", "an erasure is pending", session, severity="note")]
        # Asked after that: an erasure that is pending no longer has replaced the file by then.
        if not found or file == _file_of(mirror, session):
            break
    return found


def _file_of(mirror: Mirror, session: str) -> int:
    try:
        return mirror.path(session).stat().st_ino
    except OSError:
        return 0


def _compare(reader: Reader, mirror: Mirror, session: str) -> Iterator[Finding]:
    """Compare a mirror file with the log, block by block."""
    row = reader.find_session(session)
    seq = 0 if row is None else row.base  # a fork's file holds its own lines only
    try:
        file = mirror.path(session).open("rb")
    except FileNotFoundError:
        yield Finding("mirror-behind", "there is no file", session, severity="note")
        return
    except OSError as error:
        yield Finding("mirror-differs", f"the file cannot be read: {error.strerror}", session)
        return
    with file:
        while True:
            block = list(reader.lines(session, seq, seq + 1 + 500))
            expected = b"".join(block)
            found = file.read(len(expected) or _BLOCK)
            if not block:
                if found and next(reader.lines(session, seq), None) is not None:
                    file.seek(-len(found), 1)  # an append landed while we looked
                    continue
                while found and b"\n" not in found:  # a torn tail alone is cut at the next step
                    found = file.read(_BLOCK)
                if found:
                    yield Finding("mirror-differs", "the file goes on where the log ends", session, seq)
                return
            if found != expected:
                whole = found[: found.rfind(b"\n") + 1]
                if expected.startswith(whole) and len(found) < len(expected):
                    yield Finding("mirror-behind", "the file lags", session, severity="note")
                else:
                    pairs = zip(block, found.splitlines(keepends=True), strict=False)
                    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                    yield Finding(
                        "mirror-differs",
                        "the file is not what the log says: `convlog export --mirror` makes it anew",
                        session,
                        seq + same + 1,
                    )
                return
            seq += len(block)
