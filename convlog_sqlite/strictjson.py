"""JSON in and out without silent change.

`parse` reads text from outside and refuses what would not come back the same: duplicate keys, NaN and
infinities, integers beyond 64 bits, numbers that a 64-bit float cannot carry, lone surrogates, nesting
beyond 200. `check` holds a Python value to the same rules. Both name the place with a JSON pointer
(RFC 6901). `dump` gives the one byte form.

orjson alone is not enough (each has a test): it writes NaN as null, reads large integers as floats and
drops the first of two equal keys, all without a word.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

from convlog_sqlite.errors import InvalidEvent
from convlog_sqlite.vocabulary import MAX_INTEGER, MAX_NESTING, MIN_INTEGER

_TYPE_NAMES: Final[dict[type, str]] = {bytes: "bytes", set: "a set", tuple: "a tuple (use a list)"}

DUPLICATE: Final = "this key stands twice in one object"
NUMBER: Final = "this number would not come back the same (64-bit integers and floats only)"
NOT_FINITE: Final = "NaN and infinities are not JSON"
BIG_INTEGER: Final = "integers beyond 64 bits are refused; write it as a string"
SURROGATE: Final = "a lone surrogate is not Unicode text"
NESTING: Final = f"nested deeper than {MAX_NESTING} levels"
KEY: Final = "object keys are strings"


def escape(key: str) -> str:
    """One step of a JSON pointer; what cannot be printed is shown escaped."""
    printable = key.encode("utf-8", "backslashreplace").decode()
    return printable.replace("~", "~0").replace("/", "~1")


def dump(value: Any) -> bytes:
    """The byte form of a checked value: UTF-8, no white space, keys in the order given."""
    return orjson.dumps(value)


def same(one: Any, other: Any) -> bool:
    """Whether two checked values are the same JSON. 1, 1.0 and true differ; the order of keys does not count."""
    return orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(other, option=orjson.OPT_SORT_KEYS)


def load(data: bytes) -> Any:
    """The value of bytes that `dump` made: already held to the rules, so the fast parser is safe."""
    return orjson.loads(data)


def check(value: Any, pointer: str = "") -> None:
    """Refuse a value that is not strict JSON. Costs about 0.1 µs a node; the pointer is built only on refusal."""
    if type(value) is str and value.isascii():
        return
    if not _sound(value, 0):
        _locate(value, pointer, 0)
        raise InvalidEvent(pointer, "not a JSON value")  # unreachable unless the two walks disagree


def _sound(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is str:
        return value.isascii() or _is_text(value)
    if kind is bool or value is None:
        return True
    if kind is int:
        return bool(MIN_INTEGER <= value <= MAX_INTEGER)
    if kind is float:
        return math.isfinite(value)
    if depth >= MAX_NESTING:
        return False
    if kind is dict:
        return all(
            type(key) is str and _sound(key, depth) and _sound(item, depth + 1) for key, item in value.items()
        )
    return kind is list and all(_sound(item, depth + 1) for item in value)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _locate(value: Any, pointer: str, depth: int) -> None:
    """Raise InvalidEvent for the first unsound place in `value`."""
    kind = type(value)
    if isinstance(value, _Refusal):
        raise InvalidEvent(pointer, value.rule)
    if kind is str:
        if not _is_text(value):
            raise InvalidEvent(pointer, SURROGATE)
    elif kind is int:
        if not MIN_INTEGER <= value <= MAX_INTEGER:
            raise InvalidEvent(pointer, BIG_INTEGER)
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidEvent(pointer, NOT_FINITE)
    elif kind is dict or kind is list:
        if depth >= MAX_NESTING:
            raise InvalidEvent(pointer, NESTING)
        _locate_inside(value, pointer, depth)
    elif kind is not bool and value is not None:
        name = _TYPE_NAMES.get(kind, f"a {kind.__module__}.{kind.__qualname__}")
        raise InvalidEvent(pointer, f"{name} is not a JSON value")


def _locate_inside(value: Any, pointer: str, depth: int) -> None:
    if type(value) is list:
        for number, item in enumerate(value):
            _locate(item, f"{pointer}/{number}", depth + 1)
        return
    for key, item in value.items():
        if type(key) is not str:
            raise InvalidEvent(pointer, KEY)
        if not _is_text(key):
            raise InvalidEvent(f"{pointer}/{escape(key)}", SURROGATE)
        _locate(item, f"{pointer}/{escape(key)}", depth + 1)


class _Refusal:
    """Stands in a parsed tree where something must be refused, until the walk finds its pointer."""

    def __init__(self, rule: str) -> None:
        self.rule = rule


def _integer(token: str) -> int | _Refusal:
    # 20 digits hold every 64-bit integer; int() of a longer token may be refused by Python itself.
    if len(token) > 21 or not MIN_INTEGER <= (number := int(token)) <= MAX_INTEGER:
        return _Refusal(BIG_INTEGER)
    return number


def _float(token: str) -> float | _Refusal:
    number = float(token)
    try:
        same = math.isfinite(number) and Decimal(repr(number)) == Decimal(token)
    except InvalidOperation:  # an exponent that not even Decimal holds
        same = False
    return number if same else _Refusal(NUMBER)


def _constant(_token: str) -> _Refusal:
    return _Refusal(NOT_FINITE)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                result[key] = _Refusal(DUPLICATE)
            seen.add(key)
    return result


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)


def parse(text: str | bytes) -> Any:
    """The value of one JSON text, refused with a pointer where it would not come back the same."""
    try:
        source = text.decode() if isinstance(text, bytes) else text
        value = _DECODER.decode(source)
    except UnicodeDecodeError as error:
        raise InvalidEvent("", f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise InvalidEvent("", f"not JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise InvalidEvent("", NESTING) from None
    check(value)
    return value
