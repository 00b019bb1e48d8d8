"""AsyncStoreKeys: the twin of StoreKeys. Each call works in a thread, and goes on to its end if it is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from convlog_sqlite.instants import Clock, system_clock
from convlog_sqlite.kek import KeySource
from convlog_sqlite.store_keys import KeyChange, StoreKeys


class AsyncStoreKeys:
    """The twin of StoreKeys: the same calls, awaited."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        keys: str | Path | None = None,
        kek: KeySource | None = None,
        clock: Clock = system_clock,
    ) -> None:
        """See `StoreKeys`. Nothing is read yet but where the store is."""
        self.sync = StoreKeys(path, keys=keys, kek=kek, clock=clock)
        self.path = self.sync.path

    async def status(self) -> dict[str, Any]:
        """See `StoreKeys.status`."""
        return await asyncio.to_thread(self.sync.status)

    async def rotate(self, new: KeySource | None, *, by: str) -> KeyChange:
        """See `StoreKeys.rotate`."""
        return await asyncio.to_thread(self.sync.rotate, new, by=by)

    async def rekey(self, *, by: str, new: KeySource | None = None) -> KeyChange:
        """See `StoreKeys.rekey`."""
        return await asyncio.to_thread(self.sync.rekey, by=by, new=new)

    async def export(self, file: str | Path, *, seal: KeySource | None = None, bare: bool = False) -> Path:
        """See `StoreKeys.export`."""
        return await asyncio.to_thread(self.sync.export, file, seal=seal, bare=bare)

    async def import_(
        self, file: str | Path, *, by: str, opened_by: KeySource | None = None, replace: bool = False
    ) -> KeyChange:
        """See `StoreKeys.import_`."""
        return await asyncio.to_thread(self.sync.import_, file, by=by, opened_by=opened_by, replace=replace)

    async def replace_lost(self, *, by: str, discard: bool = False) -> KeyChange:
        """See `StoreKeys.replace_lost`."""
        return await asyncio.to_thread(self.sync.replace_lost, by=by, discard=discard)

    def __repr__(self) -> str:
        return f"<async keys of {self.path}>"
