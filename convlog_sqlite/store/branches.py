"""What a fork may not do: move an effect of the session that it was forked from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from convlog_sqlite.database import Connection, fetch
from convlog_sqlite.errors import EffectElsewhere
from convlog_sqlite.instants import id_bytes
from convlog_sqlite.store.sessions import SessionRow

SELECT_OWNER: Final = """
SELECT s.name FROM envelope AS v CROSS JOIN session AS s ON s.id = v.session WHERE v.id = ? AND v.session <> ?"""


def require_own_effect(connection: Connection, session: SessionRow, keys: Mapping[str, Any]) -> None:
    """Refuse to move, in a fork, an effect that was proposed in what it was forked from. Raises EffectElsewhere."""
    effect_id = keys["effect"].get("id")
    if effect_id is None or not session.inherited:
        return
    for (owner,) in fetch(connection, SELECT_OWNER, (id_bytes(effect_id), session.number)):
        if any(part.name == owner for part in session.inherited):
            raise EffectElsewhere(effect_id, owner)
