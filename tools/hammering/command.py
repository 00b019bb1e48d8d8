"""The options of `tools/hammer`, and the run."""

from __future__ import annotations

import argparse
import secrets
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from hammering import clock, effects, kill, large, load, many, stuck
from hammering.findings import Findings, Run, table

PARTS: Final[dict[str, Callable[[Run, Findings], None]]] = {
    "load": load.run,
    "kill": kill.run,
    "effects": effects.run,
    "stuck": stuck.run,
    "clock": clock.run,
    "many": many.run,
    "large": large.run,
}


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/hammer", description="Hammer convlog; a table of what was measured goes to stdout."
    )
    parser.add_argument("part", choices=[*PARTS, "all"], help="what to run")
    parser.add_argument("--short", action="store_true", help="less of everything")
    parser.add_argument("--seed", type=int, help="of all choices (one is drawn, and printed)")
    parser.add_argument("--seconds", type=float, help="stuck: how long the reader stays (60; 3 with --short)")
    parser.add_argument("--events", type=int, help="large: in the long session (1,000,000; 20,000)")
    parser.add_argument(
        "--directory", type=Path, help="where to make stores (the system's temporary directory)"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options ask for; the exit status."""
    options = _options().parse_args(arguments)
    seed: int = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    short: bool = options.short
    place = Path(tempfile.mkdtemp(prefix="convlog-hammer-", dir=options.directory))
    print(f"seed {seed}", flush=True)
    found = []
    for name in PARTS if options.part == "all" else (options.part,):
        directory = place / name
        directory.mkdir()
        seconds = options.seconds or (3.0 if short else 60.0)
        events = options.events or (20_000 if short else 1_000_000)
        found.append(_part(name, Run(directory, seed, short, seconds, events)))
        if not found[-1].faults:
            shutil.rmtree(directory)
    print(table(found))
    if any(part.faults for part in found):
        print(f"what is left of it: {place}")
        return 1
    place.rmdir()
    return 0


def _part(name: str, how: Run) -> Findings:
    findings = Findings(name)
    began = time.perf_counter()
    try:
        PARTS[name](how, findings)
    except Exception as error:  # noqa: BLE001 whatever it is, the other parts run
        traceback.print_exc()
        findings.expect(ok=False, otherwise=f"{type(error).__name__}: {error}")
    findings.figure("took", f"{time.perf_counter() - began:.0f} s")
    return findings
