"""The ten ways in which erasure by destroying keys has gone wrong elsewhere, each as a test of its own."""

import shutil
import subprocess
import sys

import pytest

from convlog_sqlite import (
    BackupRefused,
    ConversationLog,
    Draft,
    KeystoreForeign,
    KeystoreMissing,
    PayloadErased,
    PayloadLost,
    Projection,
    StoreKeys,
    UnknownReference,
)
from convlog_sqlite.keystore import SLOT_BYTES

SECRET = "the code word is heliotrope"
WHY = {"reason": "test", "by": "ops"}
SLOTS_AT = 8192


@pytest.fixture
def session(log):
    """A session."""
    return log.session("s")


def files_below(directory):
    """What every file holds, read by another process: reading them here would drop SQLite's locks."""
    program = (
        "import pathlib, sys\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).rglob('*')):\n"
        "    if path.is_file(): sys.stdout.buffer.write(path.read_bytes())"
    )
    return subprocess.run(
        [sys.executable, "-c", program, str(directory)], capture_output=True, check=True
    ).stdout


def test_1_the_key_is_not_backed_up_with_the_data(log, session, tmp_path):
    """A backup holds no key, and gives one only on the explicit word. Beside the live database it is a choice that is documented."""
    event = session.message(SECRET, agent="a")
    log.backup(tmp_path / "b")
    (slot,) = log._store.keystore.read([_slot(log, event)])
    assert slot not in files_below(tmp_path / "b")
    assert [file.name for file in (tmp_path / "b").iterdir()] == ["log.db"]
    with pytest.raises(BackupRefused):
        log.backup(tmp_path / "c", with_keys=True)


def test_2_no_key_is_made_again_where_one_was_destroyed(log, session, store_path):
    """Neither reading, appending, reopening nor rekeying gives an erased event a key; a missing keystore is not replaced."""
    event = session.message(SECRET, agent="a")
    log.redact(events=[event.id], **WHY)
    slot = _slot(log, event)
    session.message("next", agent="a")
    log.close()
    StoreKeys(store_path).rekey(by="ops")
    with ConversationLog.open(store_path) as again:
        assert again.event(event.id).answer == "erased"
        assert not isinstance(again._store.keystore.read([slot])[0], bytes)
    (store_path / "log.keys").unlink()
    with pytest.raises(KeystoreMissing):
        ConversationLog.open(store_path)
    with pytest.raises(KeystoreMissing):
        ConversationLog.open(store_path, read_only=True)
    assert not (store_path / "log.keys").exists()


def test_3_an_unknown_key_is_not_called_erased(log, session, store_path, tmp_path):
    """A slot without a key is lost; another store's keystore, or none, is an error: none of them says erased."""
    event = session.message(SECRET, agent="a")
    slot = _slot(log, event)
    log.close()
    with (store_path / "log.keys").open("r+b") as file:
        file.seek(SLOTS_AT + slot * SLOT_BYTES)
        file.write(bytes(SLOT_BYTES))
    with ConversationLog.open(store_path) as again:
        assert again.event(event.id).answer == "lost"
        with pytest.raises(PayloadLost):
            again.event(event.id).require_payload()
        assert "key-lost" in {found.rule for found in again.verify()}
    ConversationLog.init(tmp_path / "other").close()
    shutil.copy(tmp_path / "other" / "log.keys", store_path / "log.keys")
    with pytest.raises(KeystoreForeign):
        ConversationLog.open(store_path)


def test_4_a_partial_erasure_is_no_success(log, session, tmp_path):
    """A file out of reach makes it incomplete and is named; the next call finishes it."""
    event = session.message(SECRET, agent="a")
    log.export_to(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "away")
    done = log.redact(events=[event.id], **WHY)
    assert not done.complete
    assert done.unreachable == [str(tmp_path / "out" / "s" / "conversation.jsonl")]
    (tmp_path / "away").rename(tmp_path / "out")
    assert log.redact(events=[event.id], **WHY).complete
    assert SECRET not in (tmp_path / "out" / "s" / "conversation.jsonl").read_text()


def test_5_no_cache_keeps_a_key(log, session, store_path):
    """A handle that has just read the event, in this process or another, cannot read it again."""
    event = session.message(SECRET, agent="a")
    program = (
        "import sys\n"
        "from convlog_sqlite import ConversationLog\n"
        "with ConversationLog.open(sys.argv[1]) as log:\n"
        "    assert log.event(sys.argv[2]).body\n"
        "    print('read', flush=True); sys.stdin.readline()\n"
        "    print(log.event(sys.argv[2]).answer, flush=True)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(store_path), event.id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout.readline() == "read\n"
    with ConversationLog.open(store_path) as third:
        assert third.event(event.id).body == SECRET
        log.redact(events=[event.id], **WHY)
        assert third.event(event.id).answer == log.event(event.id).answer == "erased"
    assert other.communicate("go\n", timeout=60)[0] == "erased\n"


def test_6_what_is_derived_dies_too(log, session, store_path, tmp_path):
    """Mirror, export and the snapshot of a projection that kept the text."""
    session.append_many([Draft(type="message", agent="a", body=f"{n}") for n in range(1500)])
    event = session.message(SECRET, agent="a")
    bodies = Projection("bodies", lambda state, event: state | {event.id: event.body})
    assert session.state(bodies)[event.id] == SECRET
    with log._store.database.read() as connection:
        kept = connection.execute("SELECT count(*) FROM snapshot").get
    assert kept == 1
    log.export_to(tmp_path / "out")
    assert log.redact(events=[event.id], verify=True, **WHY).residue == []
    with log._store.database.read() as connection:
        assert connection.execute("SELECT count(*) FROM snapshot").get == 0
    assert session.state(bodies)[event.id] is None
    assert SECRET.encode() not in files_below(store_path) + files_below(tmp_path / "out")


def test_7_no_name_of_a_person_stands_in_an_envelope(log, session, store_path):
    """Subjects and idempotency keys are keyed digests wherever they are stored."""
    session.message("x", agent="a", subjects=["Ada Lovelace"], idempotency_key="order of Ada Lovelace")
    log.place_hold(subject="Ada Lovelace", reason="legal_order", by="ops")
    assert b"Ada Lovelace" not in files_below(store_path)


def test_8_events_are_selected_by_what_is_unique(log):
    """Of events with the same seq in two sessions, only the one that was named is erased."""
    events = [log.session(name).message(SECRET, agent="a") for name in ("one", "two")]
    assert events[0].seq == events[1].seq
    done = log.redact(events=[events[0].id], **WHY)
    assert (done.matched, done.erased) == (1, 1)
    assert [log.event(event.id).answer for event in events] == ["erased", "live"]


def test_9_init_again_leaves_the_keys_alone(log, session, store_path):
    """Making a store where one is changes no key."""
    event = session.message(SECRET, agent="a")
    log.close()
    before = (store_path / "log.keys").read_bytes()
    ConversationLog.init(store_path).close()
    with ConversationLog.open(store_path, create=True) as again:
        assert again.event(event.id).body == SECRET
    assert (store_path / "log.keys").read_bytes() == before


def test_10_done_means_done_and_unknown_is_an_error(log, session):
    """When redact returns the content is gone for everybody; an id that does not exist is refused, not confirmed."""
    event = session.message(SECRET, agent="a")
    assert log.redact(events=[event.id], **WHY).complete
    with pytest.raises(PayloadErased):
        log.event(event.id).require_payload()
    with pytest.raises(UnknownReference):
        log.redact(events=["0197a000-0000-7000-8000-000000000000"], **WHY)


def _slot(log, event):
    """The slot of an event's payload."""
    with log._store.database.read() as connection:
        return connection.execute(
            "SELECT p.slot FROM payload AS p JOIN envelope AS v ON v.pos = p.pos WHERE hex(v.id) = ?",
            (event.id.replace("-", "").upper(),),
        ).get
