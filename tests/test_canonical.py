"""The one byte form: golden vectors, and the format made anew from its description."""

import ast
import hashlib
import hmac
import json
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convlog_sqlite import canonical

CHECKOUT = Path(__file__).parent.parent
VECTORS = Path(__file__).parent / "vectors"
MAKER = CHECKOUT / "tools" / "make_vectors"


def maker():
    """tools/make_vectors as a module."""
    spec = spec_from_loader("make_vectors", SourceFileLoader("make_vectors", str(MAKER)))
    module = module_from_spec(spec)
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # no cache beside a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = kept
    return module


GIVES = maker().GIVES
GOLDEN = [(name, case) for name in GIVES for case in json.loads((VECTORS / name).read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("file", "case"), GOLDEN, ids=[f"{file}: {case['name']}" for file, case in GOLDEN])
def test_the_bytes_of_a_golden_vector(file, case):
    """Fixed inputs give the bytes that files written by this format version hold."""
    assert GIVES[file](case["given"]) == case["gives"]


def test_every_vector_file_is_tested():
    """A file of vectors that no test reads is a mistake."""
    strings = {
        node.value
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    files = {path.name for path in VECTORS.iterdir()}
    assert files
    assert files - set(GIVES) <= strings
    assert set(GIVES) <= files


def test_no_two_vectors_have_one_name():
    """A name says which vector failed."""
    for path in VECTORS.iterdir():
        names = [case["name"] for case in json.loads(path.read_text(encoding="utf-8"))]
        assert len(set(names)) == len(names), path.name


def test_the_vectors_are_as_their_tool_writes_them():
    """tools/make_vectors finds nothing to change."""
    done = subprocess.run(
        [sys.executable, MAKER], cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_key_stands_in_a_golden_line():
    """The lines pin every envelope key and every payload key, and all forms of a line."""
    lines = [json.loads(case["gives"]["line"]) for file, case in GOLDEN if file == "lines.json"]
    keys = set().union(*lines)
    assert keys == {*canonical.ENVELOPE_KEYS, *canonical.PAYLOAD_KEYS, "redacted", "unreadable"}
    assert {line["type"] for line in lines} == {"message", "tool_call", "tool_result", "mutation"}


def test_the_digests_are_made_as_they_are_described():
    """Commitment, leaf, link and origin follow from their description with nothing but hashlib and hmac."""
    salt, payload, blob, store = os.urandom(32), b'{"body":"hi"}', os.urandom(32), os.urandom(16)
    plain = hmac.new(salt, b"convlog/payload/1\0" + payload, hashlib.sha256).digest()
    assert canonical.commitment(salt, payload) == plain
    head = b"convlog/payload+blobs/1\0" + len(payload).to_bytes(8, "big") + payload
    with_blob = hmac.new(salt, head + blob, hashlib.sha256).digest()
    assert canonical.commitment(salt, payload, [blob]) == with_blob
    envelope = b'{"v":1}'
    leaf = hashlib.sha256(b"\x00" + (7).to_bytes(8, "big") + envelope + plain).digest()
    assert canonical.leaf(envelope, plain) == leaf
    assert canonical.link(salt, leaf) == hashlib.sha256(b"\x01" + salt + leaf).digest()
    origin = hashlib.sha256(b"\x02convlog/chain/1\0" + store + b"build-42").digest()
    assert canonical.origin(store, "build-42") == origin


@given(st.permutations(canonical.ENVELOPE_KEYS), st.permutations(canonical.PAYLOAD_KEYS))
def test_the_order_of_keys_is_always_the_same(envelope, payload):
    """In whatever order keys are given, they are written in the one canonical order."""
    written = canonical.envelope_bytes(dict.fromkeys(envelope, 1))
    assert list(json.loads(written)) == list(canonical.ENVELOPE_KEYS)
    assert written.startswith(b'{"v":')
    assert list(json.loads(canonical.payload_bytes(dict.fromkeys(payload, 1)))) == list(
        canonical.PAYLOAD_KEYS
    )


def test_a_commitment_says_which_blobs_belong_to_the_payload():
    """Other blobs, another order, or a payload that ends in a blob's digest commit to something else."""
    salt, one, two = bytes(32), b"1" * 32, b"2" * 32
    made = [
        canonical.commitment(salt, b"{}"),
        canonical.commitment(salt, b"{}", [one]),
        canonical.commitment(salt, b"{}", [one, two]),
        canonical.commitment(salt, b"{}", [two, one]),
        canonical.commitment(salt, b"{}" + one, [two]),
        canonical.commitment(salt, b"{}" + one + two),
        canonical.commitment(b"\1" * 32, b"{}"),
    ]
    assert len(set(made)) == len(made)


def test_the_place_of_an_event_in_a_chain_counts():
    """Two events in the other order, or in another session or store, give another chain."""
    one, two, store = b"1" * 32, b"2" * 32, b"s" * 16
    start = canonical.origin(store, "a")
    assert canonical.link(canonical.link(start, one), two) != canonical.link(canonical.link(start, two), one)
    starts = {start, canonical.origin(store, "b"), canonical.origin(store), canonical.origin(b"t" * 16, "a")}
    assert len(starts) == 4
