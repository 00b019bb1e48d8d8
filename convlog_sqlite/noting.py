"""Telling the log what became of its keystore: whoever opens a store for writing does it.

A change of keys is written to the keystore first, with its act and who answers for it; the mutation
`keys-rotated` in the session `_store` follows. So a crash between the two leaves something to be told.
"""

from __future__ import annotations

import logging
from typing import Final

from convlog_sqlite import rekeying
from convlog_sqlite.database import Connection
from convlog_sqlite.drafts import Draft
from convlog_sqlite.errors import ConvlogError
from convlog_sqlite.header import ACT_NAMES, Header
from convlog_sqlite.store import opening
from convlog_sqlite.store.preparing import Prepared, prepare
from convlog_sqlite.store.reserved import KEYS_KEY, KEYS_THREAD, KnownKeys, known_keys
from convlog_sqlite.vocabulary import KEYS_KIND, STORE_AGENT, STORE_SESSION

_log: Final = logging.getLogger("convlog_sqlite")


class _Told(Exception):
    """Another process was first."""


def note(store: opening.Store) -> bool:
    """Mend the keystore's header, remove what a crash left beside it, and tell the log of a change. True if it was told.

    Not with a locked keystore: nothing can be sealed. Never raises a ConvlogError: a store where this cannot be done
    can be read and written; it is logged, and done at a later open.
    """
    if store.keystore_path is None or store.database.read_only:
        return False
    try:
        rekeying.clean(store.keystore_path, store.keystore.header.store_id)
        if store.keystore.locked:
            return False
        store.keystore.mend()
        return store.keystore.header.change > store.known.change and _tell(store)
    except ConvlogError as error:
        _log.error("keystore: %s", error)
        return False


def _tell(store: opening.Store) -> bool:
    header = store.keystore.header
    prepared = prepare(_mutation(header), store.keystore.pepper)

    def decide(connection: Connection) -> Prepared:
        if known_keys(connection).change >= header.change:
            raise _Told
        return prepared

    try:
        store.writer.record_decision(STORE_SESSION, decide)
    except _Told:
        return False
    return True


def _mutation(header: Header) -> Draft:
    act = ACT_NAMES.get(header.act, "unknown")
    return Draft(
        type="mutation",
        agent=header.by or STORE_AGENT,
        kind=KEYS_KIND,
        state_key=KEYS_KEY,
        thread_id=KEYS_THREAD,
        correlation_id=KnownKeys(header.generation, header.change).to_text(act),
        value={
            "act": act,
            "generation": header.generation,
            "protection": header.protection,
        },
    )
