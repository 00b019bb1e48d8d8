"""redact --verify: another process searches every file for what was erased, and says where it still is."""

import json
import subprocess
import sys

import pytest

from convlog_sqlite import Attachment, ConversationLog, Residue

SECRET = "the launch code is 0000-1111-2222"


@pytest.fixture
def session(log):
    """A session with one secret and an event that says something else."""
    session = log.session("s")
    session.message("nothing to hide in here", agent="a")
    return session


def redact(log, *events):
    """Erase events and search for them."""
    return log.redact(events=[event.id for event in events], reason="test", by="ops", verify=True)


def test_after_an_erasure_nothing_is_found(log, session, tmp_path):
    """Payload, key and mirror: no file of the store, its keystore and its exports has any of it."""
    secret = session.tool_call(
        "grep", {"text": SECRET}, agent="a", attachments=[Attachment("text/plain", b"x" * 100_000)]
    )
    log.export_to(tmp_path / "out")
    done = redact(log, secret)
    assert (done.residue, done.complete, done.erased) == ([], True, 1)


def test_a_copy_that_somebody_made_is_named(log, session, store_path):
    """A stray file with the content, and a copy of the keystore, are both reported, without what they hold."""
    secret = session.message(SECRET, agent="a")
    (store_path / "notes.txt").write_text(f"remember: {SECRET}!")
    (store_path / "key.bin").write_bytes(log._store.keystore.read([_slot(log, secret)])[0])
    done = redact(log, secret)
    assert set(done.residue) == {
        Residue(str(store_path / "notes.txt"), secret.id, "content"),
        Residue(str(store_path / "key.bin"), secret.id, "key"),
    }
    assert not done.complete
    assert SECRET not in repr(done) + json.dumps(done.to_dict())


def _slot(log, event):
    """The slot of an event's payload."""
    from convlog_sqlite.database import value
    from convlog_sqlite.instants import id_bytes

    with log._store.database.read() as connection:
        return value(
            connection,
            "SELECT p.slot FROM payload AS p JOIN envelope AS v ON v.pos = p.pos WHERE v.id = ?",
            (id_bytes(event.id),),
        )


def test_another_event_that_says_the_same_is_no_residue(log, session):
    """What a live event says stands in the mirror by right."""
    secret, live = session.message(SECRET, agent="a"), session.message(SECRET, agent="b")
    done = redact(log, secret)
    assert done.residue == []
    assert live.body.encode() in log.mirror.path("s").read_bytes()


def test_without_being_asked_nothing_is_searched(log, session):
    """The default does not pay for it."""
    secret = session.message(SECRET, agent="a")
    assert log.redact(events=[secret.id], reason="test", by="ops").residue is None


def test_from_the_shell(store_path):
    """Status 6 names the file on standard error; a clean store ends in 0."""
    with ConversationLog.init(store_path) as log:
        ids = [log.session("s").message(SECRET + name, agent="a").id for name in "ab"]
    command = [
        sys.executable,
        "-m",
        "convlog_sqlite",
        "--store",
        str(store_path),
        "redact",
        "--reason",
        "test",
    ]
    command += ["--by", "ops", "--verify", "--event"]

    def run(event):
        return subprocess.run([*command, event], capture_output=True, text=True, check=False, timeout=60)

    done = run(ids[0])
    assert (done.returncode, json.loads(done.stdout)["residue"]) == (0, [])
    stray = store_path / "stray"
    stray.write_text(SECRET + "b")
    done = run(ids[1])
    assert done.returncode == 6
    assert str(stray) in done.stderr
