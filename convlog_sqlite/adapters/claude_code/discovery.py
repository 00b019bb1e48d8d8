"""Which transcripts there are, and which files belong to each.

PROJECT/<sid>.jsonl                               the main transcript
PROJECT/<sid>/subagents/agent-<id>.jsonl          its sub-agents, each beside agent-<id>.meta.json
PROJECT/<sid>/subagents/workflows/<run>/agent-<id>.jsonl
PROJECT/agent-<id>.jsonl                          a sub-agent of the session that its records name
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from convlog_sqlite.adapters.claude_code.counting import ImportCounts
from convlog_sqlite.adapters.claude_code.lines import records
from convlog_sqlite.adapters.claude_code.values import Reader, Unreadable
from convlog_sqlite.errors import ImportFailed

MAX_META: Final = 256 * 1024  # bytes of a meta.json; a larger one is not read
MAX_PEEK: Final = 64  # records looked at to learn the session id

UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", re.ASCII)
_SESSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_NOT_SESSION: Final = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class SubAgentFile:
    """The transcript of one sub-agent; `agent_id` as its name says."""

    path: Path
    agent_id: str

    def meta(self) -> dict[str, Any]:
        """What `agent-<id>.meta.json` beside it says; empty when there is none or it cannot be read."""
        path = self.path.with_suffix(".meta.json")
        try:
            with path.open("rb") as file:
                data = file.read(MAX_META + 1)
            value, _ = Reader().one(data if len(data) <= MAX_META else b"")
        except (OSError, Unreadable):
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Transcript:
    """One session: its main file, None when only sub-agents are left, and its sub-agents' files."""

    session_id: str
    main: Path | None
    subagents: tuple[SubAgentFile, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """All files, the main one first."""
        return ((self.main,) if self.main else ()) + tuple(agent.path for agent in self.subagents)


def find(
    paths: Iterable[str | Path] = (),
    *,
    since: datetime | None = None,
    home: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> list[Transcript]:
    """The transcripts in `paths`, sorted by their first file.

    A path is a transcript, a sub-agent's file (its session's transcript is taken whole), a project directory
    or a directory of such. No path: `$CLAUDE_CONFIG_DIR/projects`, else `.claude/projects` in `home`. With
    `since`, only those of which some file was modified at that instant or later; a naive one is local time.

    Raises ImportFailed for a path that does not exist or holds no transcript.
    """
    given = [Path(path) for path in paths]
    if not given:
        configured = environment.get("CLAUDE_CONFIG_DIR")
        root = Path(configured) if configured else (home or Path.home()) / ".claude"
        given = [root / "projects"]
    mains: set[Path] = set()
    agents: set[Path] = set()
    for path in given:
        try:
            for file in _files(path):
                (agents if _is_agent(file) else mains).add(file)
        except OSError as error:
            raise ImportFailed(path, 0, error.strerror or str(error)) from error
    found = _transcripts(mains, agents)
    if since is not None:
        found = [one for one in found if any(_modified(file) >= since.timestamp() for file in one.files)]
    return sorted(found, key=lambda one: (str(one.files[0]), one.session_id))


def session_id(text: str) -> str:
    """`text` as a session id: unchanged if it is one, else mapped, with a digest that keeps it unique."""
    if _SESSION.fullmatch(text) and not text.endswith("."):
        return text
    mapped = _NOT_SESSION.sub("-", text).strip("._-")[:100].rstrip("._-") or "session"
    return f"{mapped}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        if not stat.S_ISREG(path.stat().st_mode):
            raise ImportFailed(
                path, 0, "not a regular file: it is read more than once; save it to a file first"
            )
        return [path]
    if (path / "subagents").is_dir():  # a session's directory
        return [*_agent_files(path), *([main] if (main := _main_of(path)).is_file() else [])]
    if (path / "projects").is_dir():  # Claude Code's own directory
        path /= "projects"
    found = [
        file for file in sorted(path.rglob("*.jsonl")) if file.is_file() and file.name != "journal.jsonl"
    ]
    if not found:
        raise ImportFailed(path, 0, "no transcript is here: no *.jsonl at any depth")
    return found


def _agent_files(session: Path) -> list[Path]:
    folder = session / "subagents"
    return [*folder.glob("agent-*.jsonl"), *folder.glob("workflows/*/agent-*.jsonl")]


def _main_of(session: Path) -> Path:
    return session.with_name(session.name + ".jsonl")


def _is_agent(path: Path) -> bool:
    return path.name.startswith("agent-") and path.name != "agent-.jsonl"


def _session_directory(agent: Path) -> Path | None:
    """The directory `<sid>` of a sub-agent's file, None for one that lies flat."""
    folder = agent.parent
    if folder.parent.name == "workflows":
        folder = folder.parent.parent
    return folder.parent if folder.name == "subagents" else None


def _transcripts(mains: set[Path], agents: set[Path]) -> list[Transcript]:
    sessions = {agent: _agent_session(agent) for agent in agents}
    mains |= {main for agent, session in sessions.items() if (main := _main_beside(agent, session)).is_file()}
    agents = agents.union(*(_agent_files(main.with_suffix("")) for main in mains))
    ids = {main: _main_session(main) for main in mains}
    owners = {(main.parent, session): main for main, session in sorted(ids.items(), reverse=True)}
    belonging: dict[Path | str, list[SubAgentFile]] = {}
    for agent in sorted(agents):
        session = sessions.get(agent) or _agent_session(agent)
        owner = owners.get((_main_beside(agent, session).parent, session), session)
        belonging.setdefault(owner, []).append(SubAgentFile(agent, agent.stem.removeprefix("agent-")))
    found = [Transcript(session, main, tuple(belonging.pop(main, ()))) for main, session in ids.items()]
    return found + [Transcript(str(session), None, tuple(files)) for session, files in belonging.items()]


def _agent_session(agent: Path) -> str:
    directory = _session_directory(agent)
    if directory is None:
        return _named_session(agent)
    main = _main_of(directory)
    return _main_session(main) if main.is_file() else session_id(directory.name)


def _main_beside(agent: Path, session: str) -> Path:
    """Where the main transcript of a sub-agent's session lies, if there is one."""
    directory = _session_directory(agent)
    return _main_of(directory) if directory else agent.with_name(f"{session}.jsonl")


def _main_session(path: Path) -> str:
    return path.stem if UUID.fullmatch(path.stem) else _named_session(path)


def _named_session(path: Path) -> str:
    """The first session id that the records of `path` name, else one made of its name."""
    for record in islice(records(path, ImportCounts()), MAX_PEEK):
        found = record.value.get("sessionId")
        if isinstance(found, str) and found:
            return session_id(found)
    return session_id(path.stem)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
