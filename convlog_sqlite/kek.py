"""Key-encryption keys: what wraps the master key of a keystore, and where it comes from.

    kept   0  bare: nothing wraps it
           1  a key: 32 bytes, from a file or from what a command prints
           2  a passphrase, through scrypt with the parameters that stand beside it

A file or a command gives 32 raw bytes, or text of 64 hex digits or of base64 of 32 bytes. A command is run by
`/bin/sh`, with nothing on its standard input, and has 30 seconds; what it says on standard error is shown. In the
environment: CONVLOG_KEK_FILE, CONVLOG_KEK_COMMAND, CONVLOG_KEK_PASSPHRASE_FILE, at most one of them. The key itself
never stands in the environment: every child process, and whatever prints it, would have it.

Nothing is read, run or asked before the key is needed; a keystore that is kept otherwise does not ask for it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
import stat
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple

from convlog_sqlite import sealing
from convlog_sqlite.errors import KeySourceFailed

BARE: Final = 0
KEY: Final = 1
PASSPHRASE: Final = 2

FILE_VARIABLE: Final = "CONVLOG_KEK_FILE"
COMMAND_VARIABLE: Final = "CONVLOG_KEK_COMMAND"
PASSPHRASE_VARIABLE: Final = "CONVLOG_KEK_PASSPHRASE_FILE"  # noqa: S105 a name

COMMAND_SECONDS: Final = 30.0  # some wait for a touch or a PIN
_SALT_BYTES: Final = 16
_LONGEST: Final = 4096  # bytes of a key or a passphrase; more is something else
_HEX: Final = re.compile(rb"[0-9a-fA-F]{64}")
_TYPED: Final = re.compile(rb"[ -~]{32}")


class Scrypt(NamedTuple):
    """Parameters of scrypt (RFC 7914): cost 2 ** `log_n`, block size, parallelism."""

    log_n: int
    r: int
    p: int
    salt: bytes

    @property
    def is_bearable(self) -> bool:
        """Whether it needs no more than 1 GiB: a changed header may say anything."""
        return 1 <= self.log_n <= 20 and 1 <= self.r <= 8 and 1 <= self.p <= 16


NO_SCRYPT: Final = Scrypt(0, 0, 0, bytes(_SALT_BYTES))


def new_scrypt() -> Scrypt:
    """The cost that OWASP asks of scrypt: 128 MiB and some 0.4 s a try."""
    return Scrypt(17, 8, 1, os.urandom(_SALT_BYTES))


@dataclass(frozen=True, slots=True, repr=False)  # it holds a key: reprs end up in logs
class Wrapping:
    """How a master key is to be kept, and the key that wraps it; None where it is kept bare."""

    kept: int
    scrypt: Scrypt
    key: bytes | None

    def wrap(self, master: bytes) -> bytes:
        """40 bytes of a master key, as a header keeps it."""
        return master + bytes(8) if self.key is None else sealing.wrap(self.key, master)


UNWRAPPED: Final = Wrapping(BARE, NO_SCRYPT, None)

_Text = Callable[[], bytes]


class KeySource:
    """Where a key-encryption key comes from. Made by `file`, `command`, `passphrase` and the like.

    What it gave is remembered as long as the object lives: nobody is asked twice.
    """

    def __init__(self, kind: str, kept: int, get: _Text, where: str, variable: str | None = None) -> None:
        """Use the class methods. `variable` is the one of the environment that says the same."""
        self.kind, self.where, self.variable = kind, where, variable
        self._kept, self._get = kept, get
        self.only_opens = False
        self._text: bytes | None = None
        self._derived: dict[Scrypt, bytes] = {}

    @classmethod
    def file(cls, path: str | Path) -> KeySource:
        """A key in a file, which nobody but its owner may read."""
        return cls("file", KEY, lambda: _read_private(Path(path)), str(path), FILE_VARIABLE)

    @classmethod
    def command(cls, command: str, *, seconds: float = COMMAND_SECONDS) -> KeySource:
        """A key that a shell command prints, within `seconds`: any keyring or KMS tool."""
        where = "the key command"
        return cls("command", KEY, lambda: _printed(command, seconds, where), where, COMMAND_VARIABLE)

    @classmethod
    def passphrase(cls, passphrase: str | Callable[[], str]) -> KeySource:
        """A passphrase, or a function that asks for it."""

        def get() -> bytes:
            return (passphrase if isinstance(passphrase, str) else passphrase()).encode()

        return cls("passphrase", PASSPHRASE, get, "the passphrase")

    @classmethod
    def asking(cls, ask: Callable[[], str]) -> KeySource:
        """A passphrase that is asked for to open what is under one; a new store is not put under it unasked."""
        source = cls.passphrase(ask)
        source.only_opens = True
        return source

    @classmethod
    def passphrase_file(cls, path: str | Path) -> KeySource:
        """A passphrase that is all of a file but a newline at its end; nobody but its owner may read it."""

        def get() -> bytes:
            data = _read_private(Path(path))
            return data.removesuffix(b"\n").removesuffix(b"\r")

        return cls("passphrase", PASSPHRASE, get, str(path), PASSPHRASE_VARIABLE)

    @classmethod
    def environment(cls, environ: Mapping[str, str] = os.environ) -> KeySource | None:
        """What the environment says, None where it says nothing. Two answers fail when the key is needed."""
        makers: dict[str, Callable[[str], KeySource]] = {
            FILE_VARIABLE: cls.file,
            COMMAND_VARIABLE: cls.command,
            PASSPHRASE_VARIABLE: cls.passphrase_file,
        }
        said = [name for name in makers if environ.get(name)]
        if len(said) > 1:
            return cls("environment", BARE, lambda: b"", " and ".join(said))
        return makers[said[0]](environ[said[0]]) if said else None

    def key(self, kept: int, scrypt: Scrypt) -> bytes | None:
        """The key for a master key that is kept so; None when it is kept in another way than this source serves.

        Raises KeySourceFailed.
        """
        if self._kept == BARE:
            raise KeySourceFailed(self.where, "both are set; which one is meant?")
        if kept != self._kept or (kept == PASSPHRASE and not scrypt.is_bearable):
            return None
        if kept == KEY:
            return self._known(lambda data: _parsed(data, self.where))
        if scrypt not in self._derived:
            self._derived[scrypt] = _stretched(self._known(self._phrase), scrypt)
        return self._derived[scrypt]

    def wrapping(self) -> Wrapping:
        """To wrap a master key anew: with a new salt, where there is one. Raises KeySourceFailed."""
        scrypt = new_scrypt() if self._kept == PASSPHRASE else NO_SCRYPT
        return Wrapping(self._kept, scrypt, self.key(self._kept, scrypt))

    def confirm(self) -> None:
        """Run a command once more and compare: one that gives another key each time would lock a store for ever.

        Raises KeySourceFailed.
        """
        if self.kind == "command":
            first, self._text = self.key(KEY, NO_SCRYPT), None
            if self.key(KEY, NO_SCRYPT) != first:
                raise KeySourceFailed(self.where, "it gives another key each time")

    def _known(self, check: Callable[[bytes], bytes]) -> bytes:
        if self._text is None:
            self._text = check(self._get())
        return self._text

    def _phrase(self, data: bytes) -> bytes:
        """The same phrase whatever keyboard it was typed on. Raises KeySourceFailed."""
        try:
            text = unicodedata.normalize("NFC", data.decode())
        except UnicodeDecodeError:
            raise KeySourceFailed(self.where, "a passphrase is text in UTF-8") from None
        if not text or len(data) > _LONGEST:
            raise KeySourceFailed(self.where, "a passphrase is 1 to 4096 bytes")
        return text.encode()

    def __repr__(self) -> str:
        return f"<key source: {self.kind}>"


def _stretched(phrase: bytes, scrypt: Scrypt) -> bytes:
    n, memory = 1 << scrypt.log_n, 130 * scrypt.r * ((1 << scrypt.log_n) + scrypt.p + 2)
    return hashlib.scrypt(
        phrase, salt=scrypt.salt, n=n, r=scrypt.r, p=scrypt.p, maxmem=memory, dklen=sealing.KEY_BYTES
    )


def _parsed(data: bytes, where: str) -> bytes:
    """The key that 32 bytes, 64 hex digits or base64 say. Raises KeySourceFailed."""
    if len(data) == sealing.KEY_BYTES:
        if _TYPED.fullmatch(data):
            raise KeySourceFailed(where, "32 typed characters are no key; use them as a passphrase")
        return data
    text = data.strip()
    if _HEX.fullmatch(text):
        return bytes.fromhex(text.decode())
    with contextlib.suppress(binascii.Error):
        key = base64.b64decode(text.replace(b"-", b"+").replace(b"_", b"/"), validate=True)
        if len(key) == sealing.KEY_BYTES:
            return key
    raise KeySourceFailed(where, "no key: 32 bytes, 64 hex digits or base64 of 32 bytes are one")


def _read_private(path: Path) -> bytes:
    """The content of a file that only its owner may read; of a pipe, whoever may. Raises KeySourceFailed."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
                raise KeySourceFailed(path, "others may read or write it; `chmod 600` it first")
            return file.read(_LONGEST + 1)
    except OSError as error:
        raise KeySourceFailed(path, f"it cannot be read: {error.strerror}") from error


def _printed(command: str, seconds: float, where: str) -> bytes:
    """What a command prints. It and what it started is killed when its time is over. Raises KeySourceFailed."""
    import signal  # noqa: PLC0415 seldom needed, and the command starts without them
    import subprocess  # noqa: PLC0415

    deadline = time.monotonic() + seconds
    try:
        process = subprocess.Popen(  # noqa: S603 the command is the user's own
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise KeySourceFailed(where, f"it cannot be run: {error}") from error
    try:
        assert process.stdout is not None  # noqa: S101 it was asked for
        data = _read_until(process.stdout, deadline)
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except (subprocess.TimeoutExpired, TimeoutError):
        raise KeySourceFailed(where, f"it gave no key within {seconds:g} s") from None
    finally:
        if process.stdout is not None:
            process.stdout.close()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status:
        raise KeySourceFailed(where, f"it ended with status {status}")
    return data


def _read_until(stream: IO[bytes], deadline: float) -> bytes:
    """All of a stream, or its beginning where it is too long for a key. Raises TimeoutError."""
    import selectors  # noqa: PLC0415 as above

    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while len(data) <= _LONGEST:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            piece = os.read(stream.fileno(), _LONGEST)
            if not piece:
                break
            data += piece
    return data
