"""Sealing: what opens only in its own place, and keys that say when they are the wrong ones."""

import os

import pytest
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap
from hypothesis import given
from hypothesis import strategies as st

from convlog_sqlite import sealing

STORE, EVENT = b"s" * 16, b"e" * 16
PLACE = sealing.place(STORE, EVENT, "build-42", 7, 3, 0)
SALT = b"salt" * 8


def test_a_box_opens_in_its_place():
    """What was sealed comes back with its salt; the box is 61 bytes longer and shows nothing of it."""
    key = os.urandom(32)
    box = sealing.seal(key, b"content" * 9, PLACE, SALT)
    assert sealing.unseal(key, box, PLACE) == (SALT, b"content" * 9)
    assert len(box) == 63 + 61
    assert b"content" not in box
    assert SALT not in box


def test_sealing_twice_gives_two_boxes():
    """The nonce is new each time, so that a slot used twice gives nothing away."""
    assert len({sealing.seal(bytes(32), b"x", PLACE, SALT)[:13] for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "place",
    [
        sealing.place(b"t" * 16, EVENT, "build-42", 7, 3, 0),
        sealing.place(STORE, b"f" * 16, "build-42", 7, 3, 0),
        sealing.place(STORE, EVENT, "build-43", 7, 3, 0),
        sealing.place(STORE, EVENT, "build-42", 8, 3, 0),
        sealing.place(STORE, EVENT, "build-42", 7, 4, 0),
        sealing.place(STORE, EVENT, "build-42", 7, 3, 1),
    ],
    ids=["store", "event", "session", "seq", "slot", "part"],
)
def test_a_box_does_not_open_elsewhere(place):
    """A box is bound to its store, event, session, position, slot and part: each alone makes it broken."""
    box = sealing.seal(bytes(32), b"content", PLACE, SALT)
    with pytest.raises(sealing.SealBroken):
        sealing.unseal(bytes(32), box, place)


@given(st.integers(min_value=0, max_value=67), st.integers(min_value=1, max_value=255))
def test_every_changed_byte_breaks_the_seal(at, change):
    """Any byte of a box, changed, makes it broken."""
    box = bytearray(sealing.seal(bytes(32), b"content", PLACE, SALT))
    assert len(box) == 68
    box[at] ^= change
    with pytest.raises(sealing.SealBroken):
        sealing.unseal(bytes(32), bytes(box), PLACE)


@pytest.mark.parametrize("length", [0, 1, 13, 60, 67])
def test_a_box_that_was_cut_is_broken(length):
    """A box of any other length is broken, and no other error."""
    box = sealing.seal(bytes(32), b"content", PLACE, SALT)
    with pytest.raises(sealing.SealBroken):
        sealing.unseal(bytes(32), box[:length], PLACE)
    with pytest.raises(sealing.SealBroken):
        sealing.unseal(b"k" * 32, box, PLACE)


def test_a_wrapped_key_opens_under_its_master_key_only():
    """40 bytes open under the key that wrapped them; a changed or foreign one is None."""
    master, key = os.urandom(32), os.urandom(32)
    wrapped = sealing.wrap(master, key)
    assert len(wrapped) == sealing.WRAPPED_BYTES == 40
    assert sealing.unwrap(master, wrapped) == key
    assert sealing.unwrap(os.urandom(32), wrapped) is None
    for at in range(40):
        changed = bytearray(wrapped)
        changed[at] ^= 1
        assert sealing.unwrap(master, bytes(changed)) is None
    for other in (bytes(40), b"", wrapped[:32], wrapped + bytes(8), b"\xff" * 40):
        assert sealing.unwrap(master, other) is None


def test_aes_key_wrap_checks_integrity():
    """The library's key unwrap refuses a changed key: that is how a damaged slot is told apart."""
    wrapped = bytearray(aes_key_wrap(bytes(32), b"k" * 32))
    assert aes_key_unwrap(bytes(32), bytes(wrapped)) == b"k" * 32
    wrapped[-1] ^= 1
    with pytest.raises(InvalidUnwrap):
        aes_key_unwrap(bytes(32), bytes(wrapped))


def test_a_keyed_digest_needs_its_key_domain_and_parts():
    """Another key, another domain and other cuts between the parts each give another digest."""
    made = [
        sealing.keyed_digest(b"p" * 32, "d", "ab", "c"),
        sealing.keyed_digest(b"q" * 32, "d", "ab", "c"),
        sealing.keyed_digest(b"p" * 32, "e", "ab", "c"),
        sealing.keyed_digest(b"p" * 32, "d", "a", "bc"),
        sealing.keyed_digest(b"p" * 32, "d", "abc"),
        sealing.keyed_digest(b"p" * 32, "d", "abc", ""),
    ]
    assert len(set(made)) == len(made)


def tampered(log, change):
    """Run `change` behind the log's back, with the guards of the payload table taken off meanwhile."""
    with log._store.database.write() as connection:
        found = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'payload'"
        guards = connection.execute(found).fetchall()
        for name, _ in guards:
            connection.execute(f"DROP TRIGGER {name}")
        change(connection)
        for _, sql in guards:
            connection.execute(sql)


def exchanged(log, columns, one, two):
    """Let the payload rows of two events change places in some columns."""

    def change(connection):
        places = [
            connection.execute("SELECT pos FROM envelope WHERE id = ?", (bytes.fromhex(text),)).get
            for text in (one.id.replace("-", ""), two.id.replace("-", ""))
        ]
        rows = [
            connection.execute(f"SELECT {', '.join(columns)} FROM payload WHERE pos = ?", (pos,)).fetchall()[
                0
            ]
            for pos in places
        ]
        setting = ", ".join(f"{column} = ?" for column in columns)
        for pos, row in zip(places, reversed(rows), strict=True):
            connection.execute(f"UPDATE payload SET {setting} WHERE pos = ?", (*row, pos))

    tampered(log, change)


@pytest.mark.parametrize(
    "columns", [("sealed",), ("slot",), ("slot", "sealed")], ids=["ciphertexts", "slots", "both"]
)
def test_payloads_that_changed_places_are_corrupt(log, columns):
    """Exchanged ciphertexts, slots, or both together do not open: no event shows another's content."""
    session = log.session("s")
    one, two = (session.message(text, agent="a") for text in ("one", "two"))
    kept = session.message("three", agent="a")
    exchanged(log, columns, one, two)
    assert [event.answer for event in session.read(after=1)] == ["corrupt", "corrupt", "live"]
    assert [log.event(event.id).body for event in (one, two, kept)] == [None, None, "three"]
    assert {finding.rule for finding in log.verify("s")} >= {"payload-corrupt"}


def test_a_payload_that_is_gone_is_never_taken_for_erased(log):
    """A payload row that vanished is corrupt; its envelope and the other events stay readable."""
    session = log.session("s")
    gone, kept = (session.message(text, agent="a") for text in ("one", "two"))
    tampered(log, lambda connection: connection.execute("DELETE FROM payload WHERE pos = 4"))
    assert [event.answer for event in session.read(after=1)] == ["corrupt", "live"]
    assert log.event(gone.id).agent == "a"
    assert log.event(kept.id).body == "two"
