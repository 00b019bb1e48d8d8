"""Searching files for what was erased: content and keys, byte for byte, from a process of its own.

A process that has the database open must not open its files by name: closing them would drop SQLite's locks.
So the search runs in a child, which reads every file below the places that it is told, and has no SQLite.

What is searched for stands in the pipe to the child and in its memory, nowhere else. Sealed bytes are not
searched for: without their key they say nothing, and an older WAL may hold them until it is truncated.
"""

from __future__ import annotations

import json
import mmap
import re
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from convlog_sqlite.errors import StoreIOError

SEARCHED_EVENTS: Final = 1000  # each mark is a pass over every file
_SHORTEST: Final = 12  # bytes: less is found anywhere by chance
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_EVENT_OF_LINE: Final = re.compile(rb'{"v":\d+,"id":"([0-9a-f-]{36})"')


@dataclass(frozen=True, slots=True, repr=False)  # it holds what was erased: reprs end up in logs
class Mark:
    """Bytes that must be in no file: `what` is content or key, `event` whose they are."""

    event: str
    what: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Residue:
    """A file that still holds `what` (content or key) of an erased event. Never the bytes themselves."""

    path: str
    event: str
    what: str


def marks_of(event_id: str, payload: bytes, keys: Iterable[bytes]) -> Iterator[Mark]:
    """What to search for: the keys, the payload as it stands in a line, and every longer text in it."""
    for key in keys:
        yield Mark(event_id, "key", key)
    texts = {payload[1:-1], *(found[0][1:-1] for found in _TEXT.finditer(payload))}
    for text in texts:
        if len(text) >= _SHORTEST:
            yield Mark(event_id, "content", text)


def search(marks: Sequence[Mark], places: Iterable[Path]) -> list[Residue]:
    """Look for marks in every file below places, in a child process. Raises StoreIOError when it fails."""
    names = [str(place) for place in places]
    pieces = [[mark.event, mark.what, b64encode(mark.data).decode()] for mark in marks]
    said = json.dumps({"marks": pieces, "places": names}).encode()
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=said, capture_output=True, check=False)  # noqa: S603 it is this very module
    if done.returncode:
        raise StoreIOError(names[0], f"the search for residue failed with status {done.returncode}")
    return [Residue(*found) for found in json.loads(done.stdout)]


def _files(places: Iterable[str]) -> Iterator[Path]:
    for place in map(Path, places):
        if place.is_file():
            yield place
        yield from sorted(path for path in place.rglob("*") if path.is_file() and not path.is_symlink())


def _residue(path: Path, marks: Sequence[Mark], erased: frozenset[bytes]) -> Iterator[Residue]:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for mark in marks:
                at = data.find(mark.data)
                while at >= 0 and _is_of_another(data, at, erased):
                    at = data.find(mark.data, at + 1)
                if at >= 0:
                    yield Residue(str(path), mark.event, mark.what)


def _is_of_another(data: mmap.mmap, at: int, erased: frozenset[bytes]) -> bool:
    """Whether it stands in the line of an event that was not erased: two events may say the same."""
    begin = data.rfind(b"\n", 0, at) + 1
    found = _EVENT_OF_LINE.match(data[begin : begin + 80])
    return found is not None and found[1] not in erased


def _main() -> None:
    wanted: dict[str, Any] = json.load(sys.stdin)
    marks = [Mark(event, what, b64decode(data)) for event, what, data in wanted["marks"]]
    erased = frozenset(mark.event.encode() for mark in marks)
    found: list[list[str]] = []
    for path in _files(wanted["places"]):
        try:
            found += [[one.path, one.event, one.what] for one in _residue(path, marks, erased)]
        except FileNotFoundError:
            continue  # gone meanwhile
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main()
