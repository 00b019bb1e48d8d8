"""Strict JSON: what is refused and where, and the traps of the fast parser that the rules rest on."""

import datetime as dt
import decimal
import enum
import json
import math
from collections import OrderedDict
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convlog_sqlite import ABSENT, InvalidEvent, errors, parse_json, strictjson
from convlog_sqlite.vocabulary import MAX_INTEGER, MAX_NESTING, MIN_INTEGER

VECTORS = Path(__file__).parent / "vectors"
TEXTS = json.loads((VECTORS / "texts.json").read_text(encoding="utf-8"))
VALUES = json.loads((VECTORS / "values.json").read_text(encoding="utf-8"))


class Colour(enum.IntEnum):
    """A number of another class."""

    RED = 1


class Name(str):
    """A text of another class."""

    __slots__ = ()


class Half(float):
    """A number of another class."""

    __slots__ = ()


def nested(levels, wrap, inside=1):
    """`inside` within so many lists or objects."""
    for _ in range(levels):
        inside = wrap(inside)
    return inside


# What values.json names and JSON cannot say; each stands under the key "a" of an object.
PYTHON = {
    "NaN": [math.nan],
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "70-bit integer": 2**70,
    "negative 70-bit integer": -(2**70),
    "lone surrogate": ["x", "\ud800"],
    "lone surrogate in a key": {"k\udc80": 1},
    "integer key": {1: "x"},
    "null key": {None: "x"},
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "set": {1},
    "datetime": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "tuple": [(1, 2)],
    "nesting 201": nested(MAX_NESTING, lambda item: [item]),
    "nesting of objects 201": nested(MAX_NESTING, lambda item: {"a": item}),
    "an object": object(),
    "a decimal": decimal.Decimal("1.5"),
    "an enumeration": Colour.RED,
    "a text of another class": Name("x"),
    "a key of another class": {Name("x"): 1},
    "a dict of another class": OrderedDict(x=1),
    "a number of another class": Half(0.5),
    "ABSENT": ABSENT,
}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(MIN_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def the_same(one, other):
    """Equal in type as well as in value, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(the_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(the_same, one, other))
    return one == other and (not isinstance(one, float) or math.copysign(1, one) == math.copysign(1, other))


@pytest.mark.parametrize("case", TEXTS, ids=[case["name"] for case in TEXTS])
@pytest.mark.parametrize("form", [str, str.encode], ids=["text", "bytes"])
def test_a_text_that_would_not_come_back_the_same_is_refused(case, form):
    """Each text of texts.json is refused with the class and the pointer that stand beside it."""
    with pytest.raises(getattr(errors, case["class"])) as refused:
        parse_json(form(case["text"]))
    assert case["pointer"] == refused.value.pointer
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("case", VALUES, ids=[case["name"] for case in VALUES])
def test_a_value_that_is_not_json_is_refused(case):
    """Each value of values.json is refused with the class and the pointer that stand beside it."""
    with pytest.raises(getattr(errors, case["class"])) as refused:
        strictjson.check({"a": PYTHON[case["name"]]})
    assert case["pointer"] == refused.value.pointer


def test_every_python_value_has_a_vector():
    """values.json and the values here name the same cases."""
    assert set(PYTHON) == {case["name"] for case in VALUES}


def test_text_that_is_not_utf_8_is_refused():
    """Bytes that are no UTF-8 are refused as a whole."""
    for data in (b'"\xff"', b'"\xed\xa0\x80"', '"x"'.encode("utf-16")):
        with pytest.raises(InvalidEvent):
            parse_json(data)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_nesting_beyond_the_interpreters_stack_is_refused_like_any_other(text):
    """A text nested a hundred thousand deep is an InvalidEvent, no RecursionError."""
    with pytest.raises(InvalidEvent):
        parse_json(text)


@given(json_values)
def test_json_comes_back_the_same_and_in_order(value):
    """What is checked comes back from its bytes equal in value, type and key order, through either parser."""
    strictjson.check(value)
    data = strictjson.dump(value)
    assert the_same(strictjson.load(data), value)
    assert the_same(parse_json(data), value)
    assert b"\n" not in data


@given(st.text(alphabet="0123456789-+.eE", max_size=12))
def test_a_number_is_refused_or_comes_back_the_same(text):
    """No text of digits, signs, points and exponents changes its value on the way in and out."""
    try:
        value = parse_json(text)
    except InvalidEvent:
        return
    assert decimal.Decimal(text) == decimal.Decimal(strictjson.dump(value).decode())


@given(json_values)
def test_both_walks_agree(value):
    """The walk that finds the place agrees with the one that only says yes or no."""
    spoiled = {"sound": value, "spoiled": [value, math.nan]}
    with pytest.raises(InvalidEvent) as refused:
        strictjson.check(spoiled, "/args")
    assert refused.value.pointer == "/args/spoiled/1"


def test_the_limits_themselves_are_allowed():
    """64-bit integers and 200 levels pass; the next does not."""
    strictjson.check([MIN_INTEGER, MAX_INTEGER])
    for wrap in (lambda item: [item], lambda item: {"a": item}):
        allowed = nested(MAX_NESTING, wrap)
        strictjson.check(allowed)
        assert the_same(strictjson.load(strictjson.dump({"args": allowed}))["args"], allowed)
        with pytest.raises(InvalidEvent):
            strictjson.check(nested(MAX_NESTING + 1, wrap))


def test_the_first_unsound_place_is_named():
    """Of two unsound places the pointer names the first, escaped as RFC 6901 says."""
    with pytest.raises(InvalidEvent) as refused:
        strictjson.check({"x/~": [1, math.inf], "y": math.nan}, "/meta")
    assert refused.value.pointer == "/meta/x~1~0/1"


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0, False), (1, 1.0), (0.0, -0.0), ([], {}), ("1", 1), (None, False)]
)
def test_the_same_json_is_more_than_equal_python(one, other):
    """Values that Python calls equal or false alike, and JSON does not, are told apart."""
    assert not strictjson.same({"a": [one]}, {"a": [other]})
    assert strictjson.same({"a": [one], "b": 1}, {"b": 1, "a": [one]})


# Traps of orjson. A test that fails here says that orjson changed, and that a rule may no longer be needed.


def test_orjson_writes_nan_as_null():
    """The fast writer loses NaN and infinities without a word."""
    assert orjson.dumps([math.nan, math.inf, -math.inf]) == b"[null,null,null]"


def test_orjson_reads_large_integers_as_floats():
    """The fast parser loses the last digits of an integer beyond 64 bits without a word."""
    assert orjson.loads(b"590295810358705651713") == 590295810358705651712.0
    assert type(orjson.loads(b"590295810358705651713")) is float


def test_orjson_drops_duplicate_keys():
    """The fast parser keeps the last of two equal keys without a word."""
    assert orjson.loads(b'{"a":1,"a":2}') == {"a": 2}


def test_orjson_reads_what_a_float_cannot_carry():
    """The fast parser rounds a fraction without a word."""
    assert orjson.loads(b"0.1000000000000000055") == 0.1


def test_orjson_writes_tuples_dates_and_enumerations():
    """The fast writer takes objects that would come back as something else."""
    assert orjson.dumps((1, 2)) == b"[1,2]"
    assert orjson.dumps(dt.date(2026, 1, 2)) == b'"2026-01-02"'
    assert orjson.dumps(Colour.RED) == b"1"


def test_orjson_holds_the_integers_and_depth_that_are_allowed():
    """The fast writer and parser carry every 64-bit integer and the deepest payload that is allowed."""
    assert orjson.loads(orjson.dumps([MIN_INTEGER, MAX_INTEGER])) == [MIN_INTEGER, MAX_INTEGER]
    deep = nested(MAX_NESTING + 1, lambda item: [item])
    assert orjson.loads(orjson.dumps(deep)) == deep
