"""Finding: one thing that `verify` has to say."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong and where. `severity` is `fault` or `note`; `rule` is one of `convlog_sqlite.verify`."""

    rule: str
    detail: str
    session: str | None = None
    seq: int | None = None
    event_id: str | None = None
    severity: str = "fault"

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON values; what does not apply is left out."""
        return {key: item for key, item in asdict(self).items() if item is not None}
