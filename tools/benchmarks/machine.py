"""Where it was measured: what must stand beside a figure for it to mean anything."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import apsw

from convlog_sqlite.database import DURABILITIES
from convlog_sqlite.filesystem import filesystem_kind

_PACKAGES: Final = ("apsw", "cryptography", "orjson", "typer", "convlog-sqlite")


def facts(directory: Path, durability: str, peers: Sequence[str]) -> dict[str, Any]:
    """The machine, the disk and the versions, as JSON values; those of `peers` too, if there are any."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "filesystem": filesystem_kind(directory) or "unknown",
        "sync": f"synchronous={DURABILITIES[durability]}, {_sync()}",
        "versions": {
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
            **{name: _version(name) for name in _PACKAGES},
            **(_peers(peers) if peers else {}),
        },
    }


def _peers(names: Sequence[str]) -> dict[str, str]:
    found = {name: _version(name) for name in names} | {"their sqlite": sqlite3.sqlite_version}
    if shutil.which("jq"):
        said = subprocess.run(["jq", "--version"], capture_output=True, text=True, check=False).stdout
        found["jq"] = said.strip().removeprefix("jq-")
    return found


def _sync() -> str:
    return "F_FULLFSYNC of keys" if hasattr(fcntl, "F_FULLFSYNC") else "fdatasync"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed: this checkout"
