"""JSON as it is found in files, made into values that the log accepts.

Where a value would be refused it is replaced by the nearest one that is not, and counted: lone surrogates
by U+FFFD; NaN, infinities and numbers that 64 bits cannot hold by their text; what is nested too deeply by
its JSON text. Of two equal keys the last one counts, as for every program that reads these files.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

from convlog_sqlite.vocabulary import MAX_INTEGER, MAX_NAME, MAX_NESTING, MIN_INTEGER

DEEPEST: Final = MAX_NESTING - 10  # a record's parts may come to stand a few levels deeper in an event
MAX_PIECES: Final = 1000  # objects taken from one line

_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = " \t\r\n\0"
_SPACE: Final = re.compile(r"[ \t\r\n\0]*")
# orjson rounds such numbers without a word; within strings the match only costs time.
_LONG_NUMBER: Final = re.compile(rb"\d[\d.]{16}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_KEBAB: Final = re.compile(r"[^a-z0-9]+")
_WORD_BREAK: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9.+_-]{1,100}/[A-Za-z0-9.+_-]{1,100}", re.ASCII)


class Unreadable(Exception):
    """These bytes hold no JSON value. The argument is the reason."""


class Reader:
    """Reads lines; `altered` counts the values it had to replace."""

    def __init__(self) -> None:
        self.altered = 0
        self._decoder = json.JSONDecoder(
            parse_int=self._integer, parse_float=self._float, parse_constant=self._constant
        )
        self._lenient = json.JSONDecoder(
            parse_int=self._integer, parse_float=self._float, parse_constant=self._constant, strict=False
        )

    def one(self, line: bytes) -> tuple[Any, str | None]:
        """The one value of `line`, and what was wrong with its encoding. Raises Unreadable."""
        data = line.removeprefix(_BOM)
        if not _LONG_NUMBER.search(data):
            try:
                value = orjson.loads(data)
            except orjson.JSONDecodeError:
                pass
            else:
                deep = data.count(b"{") + data.count(b"[") > DEEPEST
                return (self._repaired(value, 0) if deep else value), None
        text, damage = self._decoded(data)
        try:
            value = self._decoder.decode(text)
        except json.JSONDecodeError as error:
            raise Unreadable(f"not JSON at character {error.pos}: {error.msg}") from None
        except RecursionError:
            raise Unreadable("nested too deeply to be read") from None
        return self._repaired(value, 0), damage

    def several(self, line: bytes) -> tuple[list[tuple[Any, bytes]], str]:
        """What can be saved of a damaged line: its leading values, each with its bytes, and what is wrong.

        Raises Unreadable when nothing can be saved.
        """
        text, damage = self._decoded(line.removeprefix(_BOM))
        found: list[tuple[Any, bytes]] = []
        reason = damage or ("NUL bytes" if "\0" in text else "control characters in a string")
        place = 0
        while len(found) < MAX_PIECES:
            place = _SPACE.match(text, place).end()  # type: ignore[union-attr]  # matches anywhere
            if place >= len(text):
                break
            try:
                value, end = self._lenient.raw_decode(text, place)
            except (json.JSONDecodeError, RecursionError):
                reason = f"damaged from character {place} on"
                break
            found.append((self._repaired(value, 0), text[place:end].encode()))
            place = end
        if not found:
            raise Unreadable("only NUL bytes" if not text.strip(_BLANK) else "not JSON")
        if len(found) > 1 and not reason.startswith("damaged"):
            reason = f"{len(found)} objects on one line"
        return found, reason

    def _decoded(self, data: bytes) -> tuple[str, str | None]:
        try:
            return data.decode(), None
        except UnicodeDecodeError as error:
            self.altered += 1
            return data.decode("utf-8", "replace"), f"invalid UTF-8 at byte {error.start}"

    def _integer(self, token: str) -> int | str:
        if len(token) <= 20 and MIN_INTEGER <= (number := int(token)) <= MAX_INTEGER:
            return number
        self.altered += 1
        return token

    def _float(self, token: str) -> float | str:
        number = float(token)
        try:
            if math.isfinite(number) and (len(token) <= 16 or Decimal(repr(number)) == Decimal(token)):
                return number
        except InvalidOperation:  # an exponent that not even Decimal holds
            pass
        self.altered += 1
        return token

    def _constant(self, token: str) -> str:
        self.altered += 1
        return token

    def _repaired(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict | list):
            if depth >= DEEPEST:
                self.altered += 1
                return self._text(_json_text(value))
            if isinstance(value, list):
                return [self._repaired(item, depth + 1) for item in value]
            return {self._text(key): self._repaired(item, depth + 1) for key, item in value.items()}
        return value

    def _text(self, value: str) -> str:
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            self.altered += 1
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return "(nested too deeply)"


def name(value: Any) -> str | None:
    """`value` as a name the log accepts; None when it is not text or nothing of it is left."""
    if not isinstance(value, str):
        return None
    if 0 < len(value) <= MAX_NAME and not _CONTROL.search(value):
        return value
    return _CONTROL.sub("_", value[:MAX_NAME]) or None


def kind(value: Any) -> str:
    """`claude-` and `value` in kebab case, as the kind of a mutation; what is no plain word is `claude-record`."""
    if isinstance(value, str) and len(value) <= 64:
        word = _NOT_KEBAB.sub("-", _WORD_BREAK.sub("-", value).lower()).strip("-")
        if word:
            return f"claude-{word}"
    return "claude-record"


def media_type(value: Any) -> str:
    """`value` if it is a media type, else the one that promises nothing."""
    return value if isinstance(value, str) and _MEDIA_TYPE.fullmatch(value) else "application/octet-stream"
