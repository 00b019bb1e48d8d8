"""The command's verbs about the keystore, as a person or a script calls them."""

import io
import json
import os
import sys
from typing import NamedTuple

import pytest

from convlog_sqlite import ConversationLog, KeySource
from convlog_sqlite.cli import main
from convlog_sqlite.kek import Scrypt


class Done(NamedTuple):
    """How a run ended, and what it printed."""

    status: int
    out: str
    err: str

    def json(self):
        """The one JSON value on standard output."""
        return json.loads(self.out)


class Terminal(io.TextIOWrapper):
    """A stream that somebody sits at."""

    def isatty(self):
        """Yes."""
        return True


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Passphrases cost nothing here."""
    monkeypatch.setattr("convlog_sqlite.kek.new_scrypt", lambda: Scrypt(4, 8, 1, os.urandom(16)))


@pytest.fixture
def run(monkeypatch):
    """Run the command with the standard streams replaced. `says` is what a person at a terminal is asked and types."""

    def runs(*arguments, says=None):
        with monkeypatch.context() as patch:
            answers = list(says or ())
            out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
            if says is not None:
                err = Terminal(io.BytesIO(), encoding="utf-8")
                patch.setattr("typer.prompt", lambda *_, **__: answers.pop(0))
                patch.setattr("typer.confirm", lambda *_, **__: answers.pop(0))
            kind = io.TextIOWrapper if says is None else Terminal
            patch.setattr(sys, "stdin", kind(io.BytesIO(), encoding="utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            status = main(list(arguments))
            assert answers == []
            for stream in (out, err):
                stream.flush()
            return Done(status, *(stream.buffer.getvalue().decode() for stream in (out, err)))

    return runs


@pytest.fixture
def kek(tmp_path):
    """A key in a file."""
    path = tmp_path / "kek"
    path.touch(0o600)
    path.write_text(os.urandom(32).hex())
    return str(path)


@pytest.fixture
def store(store_path, monkeypatch):
    """A store with one message; the environment names it."""
    monkeypatch.setenv("CONVLOG_STORE", str(store_path))
    monkeypatch.setenv("CONVLOG_AGENT", "ops")
    with ConversationLog.open(store_path) as log:
        log.session("s").message("hello", agent="a")
    return store_path


def test_a_store_gets_a_key_and_a_new_master_key(run, store, kek, monkeypatch):
    """Status before and after; what has to be set is said; the rest of the command works with it and says locked without."""
    assert run("keys", "status").json()["protection"].startswith("none")
    done = run("keys", "rotate", "--key-file", kek)
    assert (done.status, done.json()["act"]) == (0, "rotate")
    assert "CONVLOG_KEK_FILE" in done.err
    locked = run("keys", "status")
    assert (locked.status, locked.json()["state"]) == (0, "locked")
    assert '"unreadable":"locked"' in run("tail", "s").out
    refused = run("append", "s", "--body", "x")
    assert refused.status == 4
    assert "locked" in refused.err
    monkeypatch.setenv("CONVLOG_KEK_FILE", kek)
    assert run("keys", "rekey").json()["generation"] == 2
    assert '"body":"hello"' in run("tail", "s").out
    assert run("append", "s", "--body", "x").status == 0
    assert run("verify").status == 0


def test_another_key_is_told_from_none(run, store, kek, tmp_path, monkeypatch):
    """Status 4, and the line says that it is the wrong one; a source that fails says so."""
    run("keys", "rotate", "--key-file", kek)
    (tmp_path / "other").touch(0o600)
    (tmp_path / "other").write_text(os.urandom(32).hex())
    for name, value, word in (
        ("CONVLOG_KEK_FILE", str(tmp_path / "other"), "wrong-key"),
        ("CONVLOG_KEK_COMMAND", "exit 7", "no-key"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            done = run("keys", "status")
            assert (done.status, done.json()["state"]) == (4, word)
            assert run("tail", "s").status == 4


def test_a_person_is_asked_for_the_passphrase(run, store):
    """Once to open, and only where it is needed; a script is not asked and finds the store locked."""
    assert run("tail", "s", says=[]).status == 0
    assert run("keys", "rotate", "--passphrase", says=["open sesame"]).status == 0
    assert "hello" in run("tail", "s", "--json", says=["open sesame"]).out
    assert run("tail", "s", "--json", says=["open says me"]).status == 4
    assert "locked" in run("tail", "s").out
    done = run("keys", "rekey", "--json", says=["open sesame"])
    assert (done.status, done.json()["generation"]) == (0, 2)
    assert run("keys", "rotate", "--passphrase").status == 2


def test_export_and_import(run, store, kek, tmp_path):
    """A bare export is refused, a sealed one brings the keystore back, in place of one that works only when told."""
    copy = str(tmp_path / "copy")
    assert run("keys", "export", copy).status == 3
    assert run("keys", "export", copy, "--bare", "--key-file", kek).status == 2
    assert run("keys", "export", copy, "--key-file", kek).status == 0
    assert run("keys", "export", copy, "--key-file", kek).status == 3
    assert run("keys", "import", copy, "--key-file", kek).status == 3
    (store / "log.keys").unlink()
    missing = run("tail", "s")
    assert (missing.status, missing.out) == (4, "")
    assert "keys import" in missing.err
    assert run("keys", "status").json()["state"] == "missing"
    assert run("keys", "import", copy).status == 4
    done = run("keys", "import", copy, "--key-file", kek)
    assert (done.status, done.json()["missing"]) == (0, 0)
    with ConversationLog.open(store, kek=KeySource.file(kek)) as log:
        assert log.session("s").tail(1)[0].body == "hello"
    assert run("keys", "import", copy, "--key-file", kek, "--replace").status == 0


def test_replace_lost_is_never_by_mistake(run, store):
    """It asks, or wants --yes; one that is there is destroyed with --discard only; what is lost is counted."""
    assert run("keys", "replace-lost").status == 2
    assert run("keys", "replace-lost", "--yes").status == 3
    (store / "log.keys").unlink()
    assert run("keys", "replace-lost", says=[False]).status == 3
    assert not (store / "log.keys").exists()
    done = run("keys", "replace-lost", "--json", says=[True])
    assert done.status == 0
    assert done.json()["missing"] > 0
    assert "are lost" in done.err
    assert '"unreadable":"lost"' in run("tail", "s").out
    assert run("keys", "replace-lost", "--yes", "--discard").status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("rotate",),
        ("rotate", "--bare", "--key-file", "x"),
        ("rotate", "--key-command", "x", "--key-file", "x"),
        ("rekey", "--key-command", "x", "--passphrase-file", "x"),
        ("export",),
        ("import",),
        ("nonsense",),
    ],
)
def test_wrong_usage_changes_nothing(run, store, arguments):
    """Status 2, and the keystore is as it was."""
    before = (store / "log.keys").read_bytes()
    assert run("keys", *arguments).status == 2
    assert (store / "log.keys").read_bytes() == before


def test_a_new_store_asks_for_nothing(run, tmp_path):
    """A person at a terminal who makes a store, or appends to a bare one, is not asked for a passphrase."""
    store = str(tmp_path / "new")
    assert run("--store", store, "init", says=[]).status == 0
    assert run("--store", store, "append", "s", "--agent", "a", "--body", "x", says=[]).status == 0
    assert (
        run("--store", str(tmp_path / "other"), "append", "s", "--agent", "a", "--body", "x", says=[]).status
        == 0
    )
