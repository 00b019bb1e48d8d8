"""The numbered SQL files beside this one, as a sqlite-utils migration set named `convlog`.

convlog applies them itself, under a write lock, when it opens a store for writing. To apply them by
hand, with no convlog process open:

    sqlite-utils migrate log.db path/to/migrations.py
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlite_utils import Database, Migrations

migrations = Migrations("convlog")


def statements(script: str) -> Iterator[str]:
    """The statements of a script. Splitting at `;` alone would cut triggers in two."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def migration(file: Path) -> Callable[[Database], None]:
    """The function that applies one file, inside the transaction that also records it."""

    def apply(db: Database) -> None:
        for statement in statements(file.read_text(encoding="utf-8")):
            db.execute(statement)

    return apply


for path in sorted(Path(__file__).parent.glob("[0-9]*.sql")):
    migrations(name=path.stem)(migration(path))
