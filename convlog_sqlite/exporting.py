"""Exports: files like the mirror's in other directories, whole or through a view.

A plaintext file knows no views: whoever can read it reads all of it. So a directory holds what one view shows, and
which one is written down in the store, so that an erasure writes the files anew through the same.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convlog_sqlite import strictjson
from convlog_sqlite.database import Connection
from convlog_sqlite.errors import InvalidEvent, NotAStore
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.store import copies, opening
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.vocabulary import LAST_SEQ

if TYPE_CHECKING:
    from convlog_sqlite.views.definition import View
    from convlog_sqlite.views.slices import Slice


class Exporting(ABC):
    """The part of a log that writes files elsewhere. `ConversationLog` is one."""

    path: Path | None
    tenant: str | None
    reader: Reader
    _whole: Reader
    _store: opening.Store

    @abstractmethod
    def view(self, name: str) -> View: ...
    @abstractmethod
    def _slice_of(
        self,
        source: Reader,
        session: str,
        view: View | str | None,
        *,
        reader: str | None,
        role: str | None,
        purpose: str | None,
        upto: int = LAST_SEQ,
    ) -> Slice: ...

    def exporter(
        self,
        directory: str | Path,
        *,
        view: str | None = None,
        reader: str | None = None,
        purpose: str | None = None,
    ) -> Mirror:
        """Files like the mirror's, kept in another directory, which is written down in the store first.

        With `view`, they hold what it shows to the agent `reader`, in the version that stands now; sessions that
        the view is not for have none. What was labelled since, and tasks that changed hands, show in them when they are
        next brought up to date as a whole, by `update`. Raises InvalidEvent for a directory that holds files through another view, or none, and for
        one in the store's own, StoreReadOnly on a read-only handle: no file that may hold plaintext is ever unknown to the store.
        """
        if self.path is None:
            raise NotAStore(":memory:", "an ephemeral log has no exports")
        root = Path(directory).absolute()
        said: str | None = None
        if view is not None:
            asked = {"view": self.view(view).label, "reader": reader, "purpose": purpose}
            said = strictjson.dump({key: item for key, item in asked.items() if item is not None}).decode()
        self._register_export(root, said)
        return Mirror(
            self._reader_for(self.reader, said), root, self.path, enabled=True,
            register=lambda: self._register_export(root, said),
        )  # fmt: skip

    def export_to(
        self,
        directory: str | Path,
        *session_ids: str,
        view: str | None = None,
        reader: str | None = None,
        purpose: str | None = None,
    ) -> dict[str, int]:
        """Bring `directory/<session>/conversation.jsonl` up to date; the lines written to each session's file.

        Through a view as `exporter` says.
        """
        exporter = self.exporter(directory, view=view, reader=reader, purpose=purpose)
        try:
            return exporter.update(*session_ids)
        finally:
            exporter.close()

    def _mirror_at(self, root: Path) -> Mirror:
        """The files in a directory that is written down, as they were written, whoever erases: for what erases."""
        with self._store.database.read() as connection:
            said = copies.view_of(connection, str(root))
        return Mirror(self._reader_for(self._whole, said), root, self.path or root, enabled=True)

    def _reader_for(self, source: Reader, said: str | None) -> Reader:
        if said is None:
            return source
        from convlog_sqlite.views.reading import SlicedReader  # noqa: PLC0415 most exports are whole

        asked: dict[str, Any] = strictjson.load(said.encode())
        view, who, purpose = asked["view"], asked.get("reader"), asked.get("purpose")
        return SlicedReader(
            source,
            self._store.writer,
            lambda session: self._slice_of(source, session, view, reader=who, role=None, purpose=purpose),
        )

    def _register_export(self, root: Path, view: str | None = None) -> None:
        self._check_root(root)
        with self._store.database.read() as connection:
            registered = copies.is_registered(connection, str(root))
            _check_view(connection, root, view)
        if not registered:
            with self._store.database.write() as connection:
                _check_view(connection, root, view)
                copies.register(connection, copies.EXPORT, str(root), view)

    def _check_root(self, root: Path) -> None:
        if self.path is not None and _real(root).is_relative_to(_real(self.path)):
            raise InvalidEvent("/directory", f"{root} is in the store, which keeps its own files there")


def _check_view(connection: Connection, root: Path, view: str | None) -> None:
    """Refuse a directory that holds files through another view, by whatever path it was written down."""
    here = _real(root)
    for copied in copies.registered(connection):
        if copied.path != copies.OWN_MIRROR and copied.view != view and _real(Path(copied.path)) == here:
            through = "whole sessions" if copied.view is None else f"what {copied.view} shows"
            raise InvalidEvent("/directory", f"{root} holds {through}; a directory holds what one view shows")


def _real(path: Path) -> Path:
    """Where a path leads to, links followed; as far as they lead anywhere."""
    return Path(os.path.realpath(path))
