"""Key-encryption keys: what is a key, where it may come from, and what each failure says."""

import base64
import os
import time

import pytest

from convlog_sqlite import KeySource, KeySourceFailed
from convlog_sqlite.kek import BARE, KEY, NO_SCRYPT, PASSPHRASE, Scrypt

RAW = bytes(range(100, 132))
CHEAP = Scrypt(4, 8, 1, b"0123456789abcdef")


def private(path, data):
    """A file that only its owner may read."""
    path.write_bytes(data)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "data",
    [
        RAW,
        RAW.hex().encode(),
        RAW.hex().upper().encode() + b"\n",
        base64.b64encode(RAW) + b"\r\n",
        base64.urlsafe_b64encode(RAW),
        b" " + base64.b64encode(RAW) + b" ",
    ],
    ids=["raw", "hex", "HEX and newline", "base64 and newline", "url-safe base64", "spaces"],
)
def test_a_key_is_32_bytes_however_written(tmp_path, data):
    """Raw bytes, hex digits and base64 of the same key are the same key."""
    assert KeySource.file(private(tmp_path / "kek", data)).key(KEY, NO_SCRYPT) == RAW


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        RAW[:31],
        RAW + b"x",
        RAW.hex().encode()[:-1],
        b"correct horse battery staple....",
        b"g" * 64,
        base64.b64encode(RAW[:30]),
        b"x" * 100_000,
        b'{"key": 1}',
    ],
    ids=["empty", "newline", "31", "33", "63 digits", "typed", "no digits", "base64 of 30", "long", "JSON"],
)
def test_anything_else_is_no_key(tmp_path, data):
    """What is no key fails and names the file; its content is not in the message."""
    path = private(tmp_path / "kek", data)
    with pytest.raises(KeySourceFailed) as failed:
        KeySource.file(path).key(KEY, NO_SCRYPT)
    assert failed.value.path == str(path)
    assert not data.strip() or data[:20].decode("latin-1") not in str(failed.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_may_read_is_refused(tmp_path, mode):
    """As ssh does with its keys, for keys and for passphrases."""
    path = private(tmp_path / "kek", RAW)
    path.chmod(mode)
    for source, kept in ((KeySource.file(path), KEY), (KeySource.passphrase_file(path), PASSPHRASE)):
        with pytest.raises(KeySourceFailed):
            source.key(kept, CHEAP if kept == PASSPHRASE else NO_SCRYPT)


def test_a_missing_file_or_a_directory_fails(tmp_path):
    """It names the file."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(KeySourceFailed) as failed:
            KeySource.file(path).key(KEY, NO_SCRYPT)
        assert failed.value.path == str(path)


def test_a_command_prints_the_key(tmp_path):
    """It is a shell command, run once, with nothing on its standard input."""
    counter = tmp_path / "runs"
    source = KeySource.command(f"cat; echo run >> {counter}; echo {RAW.hex()} | tr a-f A-F")
    assert source.key(KEY, NO_SCRYPT) == RAW
    assert source.key(KEY, NO_SCRYPT) == RAW
    assert counter.read_text() == "run\n"


@pytest.mark.parametrize(
    "command",
    [
        "exit 3",
        f"echo {RAW.hex()}; exit 1",
        "echo junk",
        "true",
        "no-such-program-anywhere",
        "kill -9 $$",
        "a\0b",
    ],
)
def test_a_command_that_fails_gives_no_key(command, capfd):
    """Whatever it printed does not count when its status says that it failed, and junk is no key."""
    with pytest.raises(KeySourceFailed):
        KeySource.command(command).key(KEY, NO_SCRYPT)


@pytest.mark.parametrize(
    "command", ["sleep 60", "exec >&-; sleep 60", f"echo {RAW.hex()}; sleep 60 & sleep 60"]
)
def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path, command):
    """After its time it is over, and no process of it stays."""
    begun = time.monotonic()
    with pytest.raises(KeySourceFailed):
        KeySource.command(f"echo $$ > {tmp_path}/pid; {command}", seconds=0.3).key(KEY, NO_SCRYPT)
    assert time.monotonic() - begun < 10
    group = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
    pytest.fail("a process of the command is still there")


def test_a_command_that_prints_without_end_is_cut_off():
    """Only the beginning of what it prints is read, and it is no key."""
    with pytest.raises(KeySourceFailed):
        KeySource.command("yes", seconds=20).key(KEY, NO_SCRYPT)


def test_a_command_that_gives_another_key_each_time_is_found_out():
    """It would lock a store for ever, so it is run twice before a store is given its key."""
    source = KeySource.command("head -c 32 /dev/urandom")
    source.wrapping()
    with pytest.raises(KeySourceFailed):
        source.confirm()
    KeySource.command(f"echo {RAW.hex()}").confirm()


def test_scrypt_is_that_of_rfc_7914():
    """The third test vector of the RFC, of which 32 bytes are the key."""
    given = Scrypt(14, 8, 1, b"SodiumChloride")
    expected = "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2"
    assert KeySource.passphrase("pleaseletmein").key(PASSPHRASE, given).hex() == expected


def test_a_passphrase_is_the_same_however_it_comes(tmp_path):
    """From a file with a newline, from a function, composed or decomposed."""
    path = private(tmp_path / "phrase", "caf\u00e9 au lait\r\n".encode())
    keys = {
        KeySource.passphrase_file(path).key(PASSPHRASE, CHEAP),
        KeySource.passphrase("cafe\u0301 au lait").key(PASSPHRASE, CHEAP),
        KeySource.passphrase(lambda: "caf\u00e9 au lait").key(PASSPHRASE, CHEAP),
    }
    assert len(keys) == 1


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\xfe", b"x" * 5000])
def test_what_is_no_passphrase(tmp_path, data):
    """Nothing, no text, or more than anybody types."""
    with pytest.raises(KeySourceFailed):
        KeySource.passphrase_file(private(tmp_path / "phrase", data)).key(PASSPHRASE, CHEAP)


def test_nothing_is_asked_that_does_not_serve():
    """A passphrase is not asked for a keystore that is kept by a key, nor a command run for a bare one."""
    asking = KeySource.passphrase(lambda: 1 / 0)
    assert asking.key(KEY, NO_SCRYPT) is None
    assert KeySource.command("exit 1").key(PASSPHRASE, CHEAP) is None
    assert KeySource.command("exit 1").key(BARE, NO_SCRYPT) is None


@pytest.mark.parametrize("scrypt", [Scrypt(40, 8, 1, bytes(16)), Scrypt(17, 60_000, 1, bytes(16)), NO_SCRYPT])
def test_unbearable_parameters_are_not_tried(scrypt):
    """A changed header cannot make it take all memory."""
    assert KeySource.passphrase("x").key(PASSPHRASE, scrypt) is None


def test_the_environment_says_where(tmp_path):
    """One variable counts; none is none; two fail when the key is needed, and not before."""
    path = str(private(tmp_path / "kek", RAW))
    assert KeySource.environment({}) is None
    assert KeySource.environment({"CONVLOG_KEK_FILE": ""}) is None
    assert KeySource.environment({"CONVLOG_KEK_FILE": path}).key(KEY, NO_SCRYPT) == RAW
    assert KeySource.environment({"CONVLOG_KEK_COMMAND": f"cat {path}"}).key(KEY, NO_SCRYPT) == RAW
    said = KeySource.environment({"CONVLOG_KEK_PASSPHRASE_FILE": path})
    assert said.key(KEY, NO_SCRYPT) is None
    both = KeySource.environment({"CONVLOG_KEK_FILE": path, "CONVLOG_KEK_COMMAND": "exit 1"})
    with pytest.raises(KeySourceFailed) as failed:
        both.key(KEY, NO_SCRYPT)
    assert failed.value.path == "CONVLOG_KEK_FILE and CONVLOG_KEK_COMMAND"


def test_no_key_is_in_a_repr(tmp_path):
    """Reprs end up in logs."""
    source = KeySource.file(private(tmp_path / "kek", RAW))
    wrapping = source.wrapping()
    assert repr(RAW)[2:-1] not in repr(source) + repr(wrapping)
    assert "secret words" not in repr(KeySource.passphrase("secret words"))
