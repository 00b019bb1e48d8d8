"""Where the store is: given, or CONVLOG_STORE, or the nearest `.convlog` upward.

In a linked git worktree the main worktree is looked at too, so that agents in several worktrees of one
repository share one log. Looking never creates anything.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

DIRECTORY: Final = ".convlog"
VARIABLE: Final = "CONVLOG_STORE"


def find(start: Path | None = None) -> Path | None:
    """The store that a process in `start` (default: the working directory) uses, or None."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).absolute()
    here = (start or Path.cwd()).absolute()
    for directory in (here, *here.parents):
        for candidate in (directory, main_worktree(directory)):
            if candidate is not None and (candidate / DIRECTORY).is_dir():
                return candidate / DIRECTORY
    return None


def default(start: Path | None = None) -> Path:
    """Where a new store goes when none was found and none was named."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).absolute()
    here = (start or Path.cwd()).absolute()
    for directory in (here, *here.parents):
        main = main_worktree(directory)
        if main is not None:
            return main / DIRECTORY
    return here / DIRECTORY


def main_worktree(directory: Path) -> Path | None:
    """The main worktree of the repository that `directory` is a linked worktree of, else None.

    A linked worktree has a file `.git` saying `gitdir: …`; that directory has a file `commondir`
    (gitrepository-layout(5)). Anything unreadable counts as no worktree.
    """
    try:
        pointer = (directory / ".git").read_text(encoding="utf-8").strip()
        if not pointer.startswith("gitdir:"):
            return None
        private = directory / pointer.removeprefix("gitdir:").strip()
        common = (private / (private / "commondir").read_text(encoding="utf-8").strip()).resolve()
    except (OSError, ValueError):  # ValueError: bytes that are no text, or a NUL in a path
        return None
    return common.parent if common.name == ".git" else None
