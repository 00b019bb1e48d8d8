"""The keystore: what a slot answers, which files are refused, and that no slot is ever given twice."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from convlog_sqlite import (
    ConversationLog,
    Draft,
    Erased,
    KeystoreUnusable,
    Locked,
    Lost,
    PayloadLocked,
    StoreClosed,
    StoreError,
    keystore,
)
from convlog_sqlite.keystore import Header, Keystore, erasure_record

STORE = bytes(range(16))
BY = uuid.UUID("019b7d3a-5c2f-7abc-8def-0123456789ac")
FIRST = 8192


def nothing_known():
    """The highest slot that an empty database knows."""
    return -1


@pytest.fixture
def path(tmp_path):
    """A new keystore."""
    made = tmp_path / "log.keys"
    keystore.create(made, STORE)
    return made


@pytest.fixture
def opened(path):
    """The same, open."""
    keys = Keystore.open(path, STORE)
    yield keys
    keys.close()


def overwrite(path, at, data):
    """Write into a file, in place."""
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, data, at)
    os.close(descriptor)


def lock(path):
    """Rewrite the header as if a key-encryption key that is not here wrapped the master key."""
    header = Header.from_bytes(path.read_bytes())
    wrapped = Header(1, header.store_id, header.generation, os.urandom(40), header.pepper)
    overwrite(path, 0, wrapped.to_bytes())


# What a slot answers


def test_a_new_keystore_is_private_and_empty(path, opened):
    """A keystore holds two header copies and no slot, and nobody else may read it."""
    assert path.stat().st_size == FIRST
    assert opened.slots == 0
    assert not opened.locked
    assert len(opened.pepper) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_is_on_the_disk_before_it_is_given(path, opened):
    """Another handle finds each key that was given, under its slot; all keys differ."""
    taken = opened.take(20, nothing_known)
    assert [slot for slot, _ in taken] == list(range(20))
    other = Keystore.open(path, STORE)
    assert other.read(range(20)) == [key for _, key in taken]
    assert len({key for _, key in taken}) == 20
    other.close()


def test_each_answer_of_a_slot(path, opened):
    """Live, erased and lost slots are told apart, in whatever order and however far apart they are asked for."""
    (_, key), *_ = opened.take(6, nothing_known)
    overwrite(path, FIRST + 40, erasure_record(BY.bytes, 1_767_323_045_678, 2))
    overwrite(path, FIRST + 80, bytes(40))
    overwrite(path, FIRST + 120, os.urandom(40))
    overwrite(path, FIRST + 160, bytes([path.read_bytes()[FIRST + 160] ^ 1]))
    erased = Erased(str(BY), "2026-01-02T03:04:05.678000Z", "secret_leak")
    assert opened.read([0, 1, 2, 3, 4]) == [key, erased, Lost(), Lost(), Lost()]
    assert opened.read([10**6, 1, 0, 2, 0]) == [Lost(), erased, key, Lost(), key]
    assert opened.read([]) == []


def test_an_erasure_counts_at_the_next_read(path, opened):
    """A slot that another handle overwrote is erased at once: no key is remembered."""
    ((slot, key),) = opened.take(1, nothing_known)
    assert opened.read([slot]) == [key]
    overwrite(path, FIRST, erasure_record(BY.bytes, 0, 7))
    assert opened.read([slot]) == [Erased(str(BY), "1970-01-01T00:00:00.000000Z", "test")]


def test_a_remembered_cipher_counts_only_while_its_slot_holds_the_same(path, opened):
    """What another process writes there is the answer at the next read: erased, lost, another key, the same again."""
    taken = opened.take(3, nothing_known)
    slots = [slot for slot, _ in taken]
    place = FIRST + 40 * slots[1]
    whole = path.read_bytes()[place : place + 40]

    def texts():
        answers = opened.ciphers(slots)
        return [
            answer.encrypt(bytes(12), b"x", None) if isinstance(answer, AESGCM) else answer
            for answer in answers
        ]

    expected = [AESGCM(key).encrypt(bytes(12), b"x", None) for _, key in taken]
    assert texts() == expected
    assert [a is b for a, b in zip(opened.ciphers(slots), opened.ciphers(slots), strict=True)] == [True] * 3
    overwrite(path, place, erasure_record(BY.bytes, 0, 1))
    assert isinstance(texts()[1], Erased)
    overwrite(path, place, bytes(40))
    assert texts() == [expected[0], Lost(), expected[2]]
    other = FIRST + 40 * slots[2]
    overwrite(path, place, path.read_bytes()[other : other + 40])
    assert texts() == [expected[0], expected[2], expected[2]]
    overwrite(path, place, whole)
    assert texts() == expected
    opened.destroy({slots[0]: erasure_record(BY.bytes, 0, 1)})
    assert opened._read == {}
    lock(path)
    locked = Keystore.open(path, STORE)
    assert locked.ciphers(slots)[1:] == [Locked(), Locked()]
    locked.close()


def test_a_bounded_number_of_ciphers_is_remembered(opened):
    """Whoever reads page after page, and whoever reads all at once, is given every key."""
    slots = [slot for slot, _ in opened.take(700, nothing_known)]
    for start in range(0, 700, 50):
        assert all(isinstance(answer, AESGCM) for answer in opened.ciphers(slots[start : start + 50]))
        assert len(opened._read) <= 256
    before = dict(opened._read)
    assert all(isinstance(answer, AESGCM) for answer in opened.ciphers(slots))
    assert opened._read == before
    assert opened.ciphers([]) == []


def test_an_erasure_record_of_another_day_is_still_an_erasure(path, opened):
    """A reason this version does not know, or a time beyond the calendar, gives Erased and no error."""
    opened.take(1, nothing_known)
    for milliseconds, reason in ((2**64 - 1, 1), (0, 999)):
        overwrite(path, FIRST, erasure_record(BY.bytes, milliseconds, reason))
        (answer,) = opened.read([0])
        assert isinstance(answer, Erased)
        assert answer.by == str(BY)


def test_a_locked_keystore_answers_locked_and_never_erased_or_lost(path, opened):
    """Without the key-encryption key a slot is locked, whatever it holds; what was erased stays erased."""
    opened.take(3, nothing_known)
    overwrite(path, FIRST + 40, erasure_record(BY.bytes, 0, 7))
    lock(path)
    locked = Keystore.open(path, STORE)
    assert locked.locked
    assert locked.read([0, 2, 99]) == [Locked()] * 3
    assert isinstance(locked.read([1])[0], Erased)
    size = path.stat().st_size
    with pytest.raises(KeystoreUnusable):
        locked.take(1, nothing_known)
    with pytest.raises(KeystoreUnusable):
        _ = locked.pepper
    assert path.stat().st_size == size
    locked.close()


def test_a_truncated_file_loses_what_was_cut_and_nothing_else(path, opened):
    """Slots behind the end, and a torn one at the end, are lost; a new lease starts behind the torn one."""
    taken = opened.take(16, nothing_known)
    os.truncate(path, FIRST + 5 * 40 + 17)
    assert opened.read(range(7)) == [key for _, key in taken[:5]] + [Lost(), Lost()]
    other = Keystore.open(path, STORE)
    assert other.slots == 6
    assert [slot for slot, _ in other.take(2, nothing_known)] == [6, 7]
    assert other.read([5]) == [Lost()]
    other.close()


# Which files are refused


@pytest.mark.parametrize("damaged", [(0,), (4096,), (0, 4096)], ids=["copy A", "copy B", "both copies"])
@pytest.mark.parametrize("at", [0, 9, 16, 39, 41, 100, 300, 500])
def test_one_damaged_header_copy_does_no_harm(path, opened, damaged, at):
    """A header that one copy still holds is used; with both damaged the keystore is unusable."""
    ((slot, key),) = opened.take(1, nothing_known)
    pepper = opened.pepper
    for copy in damaged:
        byte = path.read_bytes()[copy + at]
        overwrite(path, copy + at, bytes([byte ^ 1]))
    if len(damaged) == 2:
        with pytest.raises(KeystoreUnusable):
            Keystore.open(path, STORE)
        return
    other = Keystore.open(path, STORE)
    assert (other.read([slot]), other.pepper) == ([key], pepper)
    other.close()
    assert opened.read([slot]) == [key]


@pytest.mark.parametrize("newer", [0, 4096], ids=["copy A", "copy B"])
def test_the_copy_of_the_higher_generation_counts(path, newer):
    """When a crash came between the two copies, the newer one is used."""
    old = Header.from_bytes(path.read_bytes())
    new = Header.new(STORE)
    new = Header(0, STORE, old.generation + 1, new.master, new.pepper)
    overwrite(path, newer, new.to_bytes()[:4096])
    with_both = Keystore.open(path, STORE)
    assert with_both.header == new
    assert len(with_both.take(1, nothing_known)) == 1
    with_both.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"x", bytes(8192), b"CONVLOGK" + bytes(8184), os.urandom(9000)],
    ids=["empty", "one byte", "zeros", "magic only", "noise"],
)
@pytest.mark.parametrize("writable", [True, False])
def test_what_is_no_keystore_is_unusable(path, content, writable):
    """A file that is something else is refused and left as it is."""
    path.write_bytes(content)
    with pytest.raises(KeystoreUnusable):
        Keystore.open(path, STORE, writable=writable)
    assert path.read_bytes() == content


def test_a_keystore_of_a_newer_format_is_unusable(path):
    """A header that says another format version is refused, not guessed at."""
    import hashlib

    data = bytearray(path.read_bytes()[:480])
    data[9] = 2
    newer = bytes(data) + hashlib.sha256(data).digest()
    for copy in (0, 4096):
        overwrite(path, copy, newer)
    with pytest.raises(KeystoreUnusable):
        Keystore.open(path, STORE)


@pytest.mark.parametrize("writable", [True, False])
def test_a_missing_keystore_is_unusable_and_not_made(tmp_path, writable):
    """Opening never creates: a keystore that is not there is an error."""
    with pytest.raises(KeystoreUnusable):
        Keystore.open(tmp_path / "log.keys", STORE, writable=writable)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writable", [True, False])
def test_a_directory_is_no_keystore(tmp_path, writable):
    """A directory of that name is refused as a StoreError."""
    with pytest.raises(StoreError):
        Keystore.open(tmp_path, STORE, writable=writable)


def test_a_keystore_of_another_store_is_unusable(path):
    """The keystore names its store, and no other may use it."""
    with pytest.raises(KeystoreUnusable):
        Keystore.open(path, b"another store id")


def test_a_keystore_is_never_overwritten(path):
    """Making one where one is fails and changes nothing."""
    before = path.read_bytes()
    with pytest.raises(KeystoreUnusable):
        keystore.create(path, os.urandom(16))
    assert path.read_bytes() == before


def test_a_damaged_pepper_is_said_and_slots_still_open(path):
    """A pepper that does not unwrap stops keyed digests, not the reading of payloads."""
    header = Header.from_bytes(path.read_bytes())
    overwrite(path, 0, Header(0, STORE, header.generation, header.master, os.urandom(40)).to_bytes())
    keys = Keystore.open(path, STORE)
    ((slot, key),) = keys.take(1, nothing_known)
    assert keys.read([slot]) == [key]
    with pytest.raises(KeystoreUnusable):
        _ = keys.pepper
    keys.close()


def replaced_by_a_copy(path):
    """Put another file in its place, as a restore does."""
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def rekeyed_in_place(path):
    """Put the header of a later generation in its place."""
    header = Header.from_bytes(path.read_bytes())
    fresh = Header.new(STORE)
    overwrite(path, 0, Header(0, STORE, header.generation + 1, fresh.master, fresh.pepper).to_bytes())


@pytest.mark.parametrize("change", [replaced_by_a_copy, rekeyed_in_place, os.unlink])
def test_a_keystore_replaced_under_an_open_handle_is_noticed(path, opened, change):
    """The next access after the file was replaced, rekeyed or removed fails; it reads and leases no slot."""
    opened.take(1, nothing_known)
    change(path)
    for access in (
        lambda: opened.read([0]),
        lambda: opened.ciphers([0]),
        lambda: opened.any_erased([0]),
        lambda: opened.destroy({}),
        lambda: opened.take(5000, nothing_known),
        opened.check_usable,
    ):
        with pytest.raises(KeystoreUnusable):
            access()


@pytest.mark.parametrize("change", [replaced_by_a_copy, rekeyed_in_place, os.unlink])
def test_nothing_is_sealed_for_a_keystore_that_was_replaced(store_path, change):
    """Not even with keys that were leased before, by whatever writes: an append, several at once, a fork, a label."""
    with ConversationLog.init(store_path, mirror=False) as log:
        session = log.session("s")
        for _ in range(20):
            first = session.message("x", agent="a")
        assert len(log._store.keystore._leased) > 8
        change(log.path / "log.keys")
        drafts = [Draft(type="message", agent="a", body="x")]
        for write in (
            lambda: session.message("y", agent="a"),
            lambda: session.append_many(drafts * 3),
            lambda: session.fork("f", agent="a"),
            lambda: log.label(first.id, sensitivity="restricted", by="a"),
            lambda: log.grant_role("a", "r", by="b"),
        ):
            with pytest.raises(KeystoreUnusable):
                write()
        assert all(
            isinstance(outcome, KeystoreUnusable)
            for outcome in log.append_together([("s", None, drafts), ("s", None, drafts)])
        )
        assert session.head == 21


def test_a_closed_keystore_says_so(opened):
    """Every use after close raises StoreClosed; closing twice is once."""
    opened.take(1, nothing_known)
    opened.close()
    opened.close()
    with pytest.raises(StoreClosed):
        opened.read([0])
    with pytest.raises(StoreClosed):
        opened.take(1, nothing_known)


# No slot twice


def test_a_lease_starts_behind_what_the_database_knows(opened):
    """With an older keystore restored, slots that the database has seen are not given again."""
    taken = opened.take(2, lambda: 99)
    assert [slot for slot, _ in taken] == [100, 101]
    assert opened.read([0, 99]) == [Lost(), Lost()]
    assert opened.read([100, 101]) == [key for _, key in taken]


def test_a_lease_starts_behind_what_the_keystore_holds(path, opened):
    """With an older database restored, slots that the keystore has seen are not given again."""
    opened.take(2, nothing_known)
    other = Keystore.open(path, STORE)
    assert other.take(1, lambda: 0)[0][0] >= 2
    other.close()


def test_leases_grow_and_their_rest_is_kept(path, opened):
    """The first lease is small, later ones grow, and the file grows by whole leases only."""
    sizes = set()
    for _ in range(400):
        opened.take(1, nothing_known)
        sizes.add(opened.slots)
    assert sorted(sizes) == [2, 18, 146, 1170]


def test_what_is_given_back_is_given_again_first(opened):
    """Slots that nothing was sealed with are used before a new lease."""
    taken = opened.take(2, nothing_known)
    opened.give_back(taken)
    assert opened.take(2, nothing_known) == taken


def test_two_handles_in_many_threads_never_give_one_slot_twice(path):
    """Eight threads on two handles take slots at once: all numbers differ, and each key is the one on the disk."""
    handles = [Keystore.open(path, STORE) for _ in range(2)]
    start = threading.Barrier(8)

    def taking(number):
        start.wait()
        return [pair for _ in range(100) for pair in handles[number % 2].take(1 + number % 3, nothing_known)]

    with ThreadPoolExecutor(8) as pool:
        taken = [pair for pairs in pool.map(taking, range(8)) for pair in pairs]
    assert len({slot for slot, _ in taken}) == len(taken) == 100 * (3 * 1 + 3 * 2 + 2 * 3)
    slots, keys = zip(*taken, strict=True)
    assert handles[0].read(slots) == list(keys)
    for handle in handles:
        handle.close()


TAKING = """
import sys
from pathlib import Path
from convlog_sqlite.keystore import Keystore
keys = Keystore.open(Path(sys.argv[1]), bytes(range(16)))
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
for _ in range(200):
    print(keys.take(1, lambda: -1)[0][0])
"""


def test_processes_never_give_one_slot_twice(path):
    """Four processes take slots at once: all numbers differ."""
    command = [sys.executable, "-c", TAKING, str(path)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    taken = [int(line) for process in running for line in process.communicate(timeout=60)[0].split()]
    assert len(set(taken)) == len(taken) == 800


FULL = """
import json, resource, sys
from pathlib import Path
from convlog_sqlite.errors import StoreFull
from convlog_sqlite.keystore import Keystore
path = Path(sys.argv[1])
keys = Keystore.open(path, bytes(range(16)))
first = keys.take(1, lambda: -1)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
full = []
for _ in range(3):
    try:
        keys.take(10, lambda: -1)
    except StoreFull as error:
        full.append(error.path)
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
later = keys.take(10, lambda: -1)
print(json.dumps({
    "full": full, "torn": (size - 8192) % 40, "end": (size - 8192 + 39) // 40,
    "first": first[0][0], "later": [slot for slot, _ in later],
    "kept": keys.read([slot for slot, _ in first + later]) == [key for _, key in first + later],
}))
"""


def test_a_full_disk_during_a_lease_gives_nothing_and_spoils_nothing(path):
    """A lease that does not fit raises StoreFull; with room again new slots start behind the torn one."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    said = json.loads(done.stdout)
    assert said["full"] == [str(path)] * 3
    assert said["torn"] != 0
    assert said["later"][0] == said["first"] + 1 or said["later"][0] >= said["end"]
    assert len(set(said["later"])) == 10
    assert said["kept"]


# Through the front door


@pytest.fixture
def store(store_path, clock):
    """A store with three messages, closed."""
    with ConversationLog.open(store_path, clock=clock) as log:
        for text in ("one", "two", "three"):
            log.session("s").message(text, agent="a")
    return store_path


def slot_of(log, event):
    """The slot of an event's payload."""
    with log._store.database.read() as connection:
        found = "SELECT slot FROM payload JOIN envelope USING (pos) WHERE id = ?"
        return connection.execute(found, (uuid.UUID(event.id).bytes,)).get


def test_the_four_answers_stand_in_events_and_lines(store):
    """A slot that is erased, lost or torn makes its event say so; the others stay readable."""
    with ConversationLog.open(store) as log:
        session = log.session("s")
        one, two, three = session.tail(3)
        overwrite(store / "log.keys", FIRST + 40 * slot_of(log, one), erasure_record(BY.bytes, 0, 1))
        overwrite(store / "log.keys", FIRST + 40 * slot_of(log, two), bytes(40))
        assert [event.answer for event in session.tail(3)] == ["erased", "lost", "live"]
        lines = [json.loads(line) for line in session.jsonl(after=1)]
        redacted = {"by": str(BY), "at": "1970-01-01T00:00:00.000000Z", "reason": "subject_request"}
        assert lines[0]["redacted"] == redacted
        assert lines[1]["unreadable"] == "lost"
        assert lines[2]["body"] == "three"
        assert log.event(three.id).body == "three"


def test_a_locked_store_reads_envelopes_and_writes_nothing(store):
    """With the keystore locked events are there without content, appends fail, the mirror keeps its lines."""
    mirror = store / "sessions" / "s" / "conversation.jsonl"
    before = mirror.read_bytes()
    lock(store / "log.keys")
    with ConversationLog.open(store) as log:
        session = log.session("s")
        assert {(event.answer, event.agent) for event in session.read()} == {("locked", "a")}
        with pytest.raises(PayloadLocked):
            session.tail(1)[0].require_payload()
        with pytest.raises(KeystoreUnusable):
            session.message("four", agent="a")
        assert session.head == 4
        assert {(finding.rule, finding.severity) for finding in log.verify()} == {("keystore-locked", "note")}
    assert mirror.read_bytes() == before


def test_a_store_without_its_keystore_is_not_opened(store):
    """A missing keystore is an error at each open, and none is made in its place."""
    (store / "log.keys").unlink()
    for use in (ConversationLog.open, ConversationLog.init):
        with pytest.raises(KeystoreUnusable):
            use(store)
    assert not (store / "log.keys").exists()


def test_a_store_with_the_keystore_of_another_is_not_opened(store, tmp_path):
    """A keystore that belongs to another store is an error, and stays as it is."""
    with ConversationLog.open(tmp_path / "other"):
        pass
    shutil.copy(tmp_path / "other" / "log.keys", store / "log.keys")
    before = (store / "log.keys").read_bytes()
    with pytest.raises(KeystoreUnusable):
        ConversationLog.open(store)
    assert (store / "log.keys").read_bytes() == before


def test_an_older_keystore_put_back_never_gives_a_used_slot(store):
    """After a restore of an older keystore its lost slots stay lost, and new events get new ones."""
    with ConversationLog.open(store) as log:
        highest = max(slot_of(log, event) for event in log.session("s").read())
    os.truncate(store / "log.keys", FIRST + 40)
    with ConversationLog.open(store) as log:
        session = log.session("s")
        new = session.message("four", agent="a")
        assert slot_of(log, new) > highest
        assert [event.answer for event in session.read()][-2:] == ["lost", "live"]
