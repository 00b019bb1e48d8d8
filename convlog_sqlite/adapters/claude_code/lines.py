"""The lines of a transcript file as records, damaged ones reported and skipped.

Files are read as bytes and split at newlines only. One line is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from convlog_sqlite.adapters.claude_code.counting import LEFT, RECOVERED, SKIPPED, ImportCounts
from convlog_sqlite.adapters.claude_code.values import Reader, Unreadable
from convlog_sqlite.errors import ImportFailed

MAX_LINE: Final = 64 * 1024 * 1024  # bytes; a longer line is damaged
_CHUNK: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a file and its bytes. `line` counts from 1."""

    value: dict[str, Any]
    raw: bytes
    line: int


def records(path: Path, counts: ImportCounts) -> Iterator[Record]:
    """The records of `path` in file order. Raises ImportFailed when the file cannot be read."""
    counts.files += 1
    reader = Reader()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file), start=1):
                reader.altered = 0
                yield from _line_records(path, number, line, reader, counts)
                counts.altered += reader.altered
    except OSError as error:
        raise ImportFailed(path, 0, error.strerror or str(error)) from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with their newline; one that is too long is cut short behind MAX_LINE bytes."""
    while line := file.readline(MAX_LINE + 1):
        yield line
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            rest = file.readline(_CHUNK)
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(_CHUNK)


def _line_records(
    path: Path, number: int, line: bytes, reader: Reader, counts: ImportCounts
) -> Iterator[Record]:
    ended = line.endswith(b"\n")
    data = line.strip()
    if not data:
        counts.blank_lines += 1
        return
    counts.lines += 1
    if len(line) > MAX_LINE:
        counts.problem(path, number, f"longer than {MAX_LINE} bytes", SKIPPED)
        return
    try:
        value, damage = reader.one(data)
    except Unreadable as error:
        if ended:
            yield from _saved(path, number, data, reader, counts, str(error))
        else:
            reader.altered = 0
            counts.problem(path, number, "cut off: the line does not end yet", LEFT)
        return
    if damage:
        counts.problem(path, number, damage, RECOVERED)
    if isinstance(value, dict):
        yield Record(value, data, number)
    else:
        counts.non_object(path, number)


def _saved(
    path: Path, number: int, data: bytes, reader: Reader, counts: ImportCounts, reason: str
) -> Iterator[Record]:
    reader.altered = 0
    try:
        found, damage = reader.several(data)
    except Unreadable as error:
        reader.altered = 0
        counts.problem(
            path, number, f"{error} ({reason})" if str(error) == "not JSON" else str(error), SKIPPED
        )
        return
    objects = [(value, raw) for value, raw in found if isinstance(value, dict)]
    counts.problem(path, number, damage if objects else reason, RECOVERED if objects else SKIPPED)
    for value, raw in objects:
        yield Record(value, raw, number)
