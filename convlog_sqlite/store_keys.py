"""StoreKeys: looking after the keystore of a store, also of one that cannot be opened without it.

    keys = StoreKeys()  # the nearest .convlog upward
    keys.rotate(KeySource.file("kek"), by="ops")
    keys.export("elsewhere/log.keys", seal=KeySource.passphrase("correct horse battery staple"))

`rotate` keeps the keys and changes what opens them. `rekey` makes a new master key, so that older copies of the
keystore open with the key-encryption key of their time and with no other: they die when that is destroyed. It,
`import_` and `replace_lost` need the store to themselves. Each change is a `keys-rotated` mutation in `_store`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from convlog_sqlite import discovery, rekeying, sealing
from convlog_sqlite.drafts import check_name
from convlog_sqlite.errors import (
    InvalidEvent,
    KeysAtRisk,
    KeySourceFailed,
    KeystoreDamaged,
    KeystoreForeign,
    KeystoreLocked,
    KeystoreMissing,
    KeystoreOlder,
    KeystoreTruncated,
    KeystoreUnusable,
    NotAStore,
    StoreError,
    WrongKey,
    os_errors,
)
from convlog_sqlite.files import AHEAD
from convlog_sqlite.header import LONGEST_NAME, Header
from convlog_sqlite.instants import Clock, system_clock
from convlog_sqlite.kek import BARE, UNWRAPPED, KeySource, Wrapping
from convlog_sqlite.keystore import Keystore
from convlog_sqlite.log import ConversationLog
from convlog_sqlite.rewriting import FILE_NAME
from convlog_sqlite.slotfile import DiskFile
from convlog_sqlite.store import copies, opening
from convlog_sqlite.store.reserved import KnownKeys
from convlog_sqlite.tenancy import bound_to, require_whole_store

# What is wrong with a keystore, in one word.
_STATES: Final[dict[type[StoreError], str]] = {
    KeystoreMissing: "missing",
    KeystoreForeign: "foreign",
    KeystoreDamaged: "damaged",
    KeystoreTruncated: "truncated",
    KeystoreOlder: "older",
    KeystoreLocked: "locked",
    WrongKey: "wrong-key",
    KeySourceFailed: "no-key",
}

# How keys would be lost or laid open without anybody having said so.
_RISKS: Final = {
    "bare": "the export could be read by anybody who has the file; give a key or a passphrase, or say so",
    "live": "the keystore that is here works and would be replaced",
    "present": "a keystore is here and would be destroyed, and every payload with it",
    "foreign": "the keystore that is here belongs to another store; move it away yourself",
    "exists": "a file is here already; it is never overwritten",
}


@dataclass(frozen=True, slots=True)
class KeyChange:
    """What became of a keystore. `slots` are those that it has; `missing` those behind its end that the log uses.

    `set_aside` are mirror files that show content whose keys are gone.
    """

    act: str
    generation: int
    protection: str
    slots: int
    missing: int = 0
    set_aside: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Place:
    """A store that nobody has open, as far as it can be known without its keystore."""

    store_id: bytes
    known: KnownKeys
    highest: int
    path: Path

    def next(self, *headers: Header) -> tuple[int, int]:
        """Generation and change of the keystore that follows on what the log knows and on these."""
        generation = max([self.known.generation, *(header.generation for header in headers)]) + 1
        return generation, max([self.known.change, *(header.change for header in headers)]) + 1


class StoreKeys:
    """The keystore of one store. `path` is the store's directory. Nothing stays open between calls.

    The store is found as `ConversationLog.open` finds it; none is ever made. `kek` gives the key-encryption key,
    by default as the environment says. `by` is the agent that answers for a change.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        keys: str | Path | None = None,
        kek: KeySource | None = None,
        clock: Clock = system_clock,
    ) -> None:
        """Raises NotAStore when there is none. `keys` is the keystore, where the store does not say so.

        Raises NotAuthorized where the environment's CONVLOG_TENANT binds this process to a tenant.
        """
        require_whole_store(bound_to(None), "the keystore")
        found = Path(path).absolute() if path is not None else discovery.find()
        if found is None:
            raise NotAStore(Path.cwd(), "no convlog store here or above; `convlog init` makes one")
        self.path = found
        self._keys = Path(keys).absolute() if keys is not None else None
        self._kek, self._clock = kek or KeySource.environment(), clock

    def status(self) -> dict[str, Any]:
        """What the keystore is and whether it opens, as JSON values. Raises NotAStore, SchemaTooNew, StoreBusy.

        `state` is `open`, `locked`, `wrong-key`, `no-key` (the source fails), `missing`, `foreign`, `damaged`,
        `truncated`, `older` or `unusable`. `missing_slots` counts slots that the log uses behind its end.
        """
        with opening.joined(self.path):
            return self._status(self._place())

    def _status(self, place: _Place) -> dict[str, Any]:
        said: dict[str, Any] = {
            "path": str(place.path),
            "state": "open",
            "source": None if self._kek is None else self._kek.kind,
            "known_generation": place.known.generation,
        }
        try:
            with self._looking(place, None) as keystore:
                header = keystore.header
                said |= {"protection": header.protection, "generation": header.generation}
                said |= {"slots": keystore.slots, "missing_slots": _missing(place, keystore.slots)}
            _check_age(place, header)
            with self._looking(place, self._kek) as keystore:
                keystore.require_master()
        except StoreError as error:
            said |= {"state": _STATES.get(type(error), "unusable"), "problem": error.rule}
        return said

    def rotate(self, new: KeySource | None, *, by: str) -> KeyChange:
        """Keep the same keys under another key-encryption key, None: bare. Other handles may be open, and stay so.

        Only the header is written. Copies of the keystore that were made before open with the old key for ever:
        `rekey` ends that. Raises KeystoreLocked, WrongKey, KeySourceFailed, InvalidEvent, StoreError.
        """
        _check_by(by)
        wrapping = _wrapping(new)
        self._tell(self._kek)
        store = opening.open_store(
            self.path,
            durability="full",
            read_only=False,
            keys=self._keys,
            clock=self._clock,
            kek=self._kek,
        )
        try:
            store.keystore.rewrap(wrapping, "rotate", by, store.known.change + 1)
            change = _change("rotate", store.keystore.header, store.keystore.slots)
        finally:
            store.close()
        self._tell(new)
        return change

    def rekey(self, *, by: str, new: KeySource | None = None) -> KeyChange:
        """Wrap every key anew under a new master key, kept under `new`, or as it was.

        Erasures stay recorded, and what was lost stays lost. The old file's bytes are overwritten.
        Raises StoreBusy while any handle is open, KeystoreLocked and what else `rotate` raises.
        """
        _check_by(by)
        wrapping = None if new is None else _wrapping(new)
        self._tell(self._kek)
        with opening.alone(self.path):
            place = self._place()
            with self._looking(place, self._kek) as old:
                _check_age(place, old.header)
                old.require_master()
                wrapping = wrapping or self._same(old.header)
                header = Header.new(place.store_id, wrapping)
                master = header.master_key(wrapping.key) or b""
                header = replace(header, pepper=sealing.wrap(master, old.pepper))
                header = header.done("rekey", by, *place.next(old.header))
                change = _change("rekey", header, old.slots)
                rekeying.put_in_place(place.path, header, rekeying.rekeyed(old, master))
        self._tell(new or self._kek)
        return change

    def export(self, file: str | Path, *, seal: KeySource | None = None, bare: bool = False) -> Path:
        """Write a copy of the keystore for keeping elsewhere, under `seal`, or under the key that it is under.

        An erasure after this does not reach it, and neither does a rekey: destroy it, or the key that opens it.
        Raises KeysAtRisk for a copy that would be bare without `bare` saying so, and where a file is.
        """
        target = Path(file).absolute()
        with ExitStack() as held:
            held.enter_context(opening.joined(self.path))
            place = self._place()
            keystore = held.enter_context(self._looking(place, self._kek))
            _check_age(place, keystore.header)
            header = keystore.header
            if seal is not None or bare:
                header = header.wrapped_by(_wrapping(seal), keystore.require_master())
            if header.kept == BARE and not bare:
                raise _at_risk(target, "bare")
            with os_errors(target):
                try:
                    rekeying.write(target, header, rekeying.copied(keystore))
                except FileExistsError:
                    raise _at_risk(target, "exists") from None
        return target

    def import_(
        self, file: str | Path, *, by: str, opened_by: KeySource | None = None, replace: bool = False
    ) -> KeyChange:
        """Put an exported keystore, or an older copy, in place of one that is missing, damaged, cut or older.

        `opened_by` opens the file, by default what opens the store. The keystore is then kept under the store's
        own key-encryption key, or, where it has none, as the file is. What is found in its place of the same keys
        is taken in: newer keys and every erasure. What tombstones name is destroyed again before anything is
        read. Raises KeysAtRisk in place of a keystore that works, unless `replace` says so, and always in place
        of another store's; StoreBusy while any handle is open; KeystoreForeign for a file of another store.
        """
        _check_by(by)
        with opening.alone(self.path), ExitStack() as files:
            place = self._place(read_only=False)
            opener = opened_by or self._kek
            kept = Keystore.open(Path(file).absolute(), place.store_id, writable=False, kek=opener)
            source = files.enter_context(closing(kept))
            master = source.require_master()
            current, header_there, own = self._current(place, files, replace=replace)
            own_kek = self._kek if self._kek is not None and not self._kek.only_opens else None
            wrapping = None if own_kek is None else own_kek.wrapping()
            header = source.header if wrapping is None else source.header.wrapped_by(wrapping, master)
            header = header.done("import", by, *place.next(source.header, *header_there))
            slots = max(source.slots, 0 if current is None else rekeying.slots_in(place.path))
            change = _change("import", header, slots, _missing(place, slots))
            if change.missing:
                change.set_aside.extend(self._set_mirrors_aside())
            rekeying.put_in_place(place.path, header, rekeying.merged(source, current, own))
        self._tell(opener if wrapping is None else self._kek)
        return change

    def replace_lost(self, *, by: str, discard: bool = False) -> KeyChange:
        """Make a new, empty keystore for a store whose keystore is lost for good: every payload is lost with it.

        The envelopes stay and verify, erased stays erased, and the store can be written again. Digests of names and
        idempotency keys are made anew: who was named before is not found by name. `discard` destroys a keystore
        that is there, as when its key-encryption key is lost; without it that is refused with KeysAtRisk, and
        another store's always is. Raises StoreBusy while any handle is open.
        """
        _check_by(by)
        with opening.alone(self.path), ExitStack() as files:
            place = self._place(read_only=False)
            _, there, _ = self._current(place, files, replace=discard, risk="present")
            header = Header.new(place.store_id, _wrapping(self._kek))
            header = header.done("replace-lost", by, *place.next(*there))
            change = _change("replace-lost", header, 0, place.highest + 1)
            change.set_aside.extend(self._set_mirrors_aside())
            rekeying.put_in_place(place.path, header, ())
        self._tell(self._kek)
        return change

    def _place(self, *, read_only: bool = True) -> _Place:
        store_id, known, highest = opening.without_keystore(self.path, read_only=read_only)
        return _Place(store_id, known, highest, self._keys or opening.keystore_of(self.path))

    def _looking(self, place: _Place, kek: KeySource | None) -> AbstractContextManager[Keystore]:
        return closing(Keystore.open(place.path, place.store_id, writable=False, kek=kek))

    def _tell(self, kek: KeySource | None) -> None:
        """Opening the store for writing tells the log what became of its keystore, and finishes what is to be done."""
        ConversationLog.open(self.path, create=False, keys=self._keys, kek=kek, clock=self._clock).close()

    def _same(self, header: Header) -> Wrapping:
        """To keep a master key as another one is kept."""
        key = None if self._kek is None else self._kek.key(header.kept, header.scrypt)
        return Wrapping(header.kept, header.scrypt, key) if header.kept else UNWRAPPED

    def _current(
        self, place: _Place, files: ExitStack, *, replace: bool, risk: str = "live"
    ) -> tuple[DiskFile | None, list[Header], bytes | None]:
        """The keystore that is in the place: its file, header and master key, as far as they can be had.

        Raises KeysAtRisk when it may not be replaced.
        """
        headers: list[Header] = []
        try:
            with self._looking(place, None) as keystore:
                headers.append(keystore.header)
        except KeystoreMissing:
            return None, [], None
        except KeystoreForeign:
            raise _at_risk(place.path, "foreign") from None
        except (KeystoreDamaged, KeystoreTruncated):
            pass
        is_live = bool(headers) and headers[0].generation >= place.known.generation
        if not replace and (is_live or risk == "present"):
            raise _at_risk(place.path, risk)
        file = DiskFile(place.path, writable=False)
        files.callback(file.close)
        if not rekeying.belongs_to(file, place.store_id):
            if not replace:
                raise _at_risk(place.path, "present")
            return None, [], None
        master = None
        with (
            suppress(WrongKey, KeySourceFailed, KeystoreUnusable),
            self._looking(place, self._kek) as keystore,
        ):
            master = None if keystore.locked else keystore.require_master()
        return file, headers, master

    def _set_mirrors_aside(self) -> list[str]:
        """The mirror shows what can be read nowhere else by now: it is not written over."""
        found = []
        for path in sorted((self.path / copies.OWN_MIRROR).glob(f"*/{FILE_NAME}")):
            aside = path.with_name(f"{FILE_NAME}{AHEAD}{self._clock()}")
            with os_errors(path):
                path.rename(aside)
            found.append(str(aside))
        return found

    def __repr__(self) -> str:
        return f"<keys of {self.path}>"


def _check_by(by: str) -> None:
    check_name(by, "/by")
    if len(by.encode()) > LONGEST_NAME:
        raise InvalidEvent("/by", f"at most {LONGEST_NAME} bytes stand in a keystore")


def _wrapping(new: KeySource | None) -> Wrapping:
    """How `new` keeps a master key. A command is run twice: one that does not repeat itself locks a store for ever."""
    if new is None:
        return UNWRAPPED
    wrapping = new.wrapping()
    new.confirm()
    return wrapping


def _at_risk(path: Path, risk: str) -> KeysAtRisk:
    return KeysAtRisk(path, risk, _RISKS[risk])


def _check_age(place: _Place, header: Header) -> None:
    if header.generation < place.known.generation:
        raise KeystoreOlder(place.path, header.generation, place.known.generation)


def _missing(place: _Place, slots: int) -> int:
    return max(0, place.highest + 1 - slots)


def _change(act: str, header: Header, slots: int, missing: int = 0) -> KeyChange:
    return KeyChange(act, header.generation, header.protection, slots, missing)
