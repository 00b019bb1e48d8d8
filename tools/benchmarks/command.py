"""The options of `tools/bench`, and the run."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import alone, comparing, machine, report, states, together, views
from benchmarks.comparing import Amounts, Stage
from benchmarks.contender import Contender
from benchmarks.convlog import Convlog, Mirrored
from benchmarks.figures import Recorder
from benchmarks.floor import Floor
from benchmarks.workload import Workload

# The first is what the others are compared with.
CONTENDERS: Final[Sequence[type[Contender]]] = (Floor, Convlog, Mirrored)
# What reads stands in front: it meets the number of events that the table names.
MEASURES: Final[Sequence[Callable[[Stage, Amounts, Recorder], None]]] = (
    comparing.measure_tail,
    alone.measure_filters,
    views.measure_views,
    comparing.measure_export,
    alone.measure_verify,
    comparing.measure_append,
    comparing.measure_append_many,
    together.measure_threads,
    together.measure_tasks,
    together.measure_processes,
    states.measure_states,
    alone.measure_lag,
    alone.measure_start,
)
FULL: Final = Amounts(
    rounds=21,
    appends=80,
    batches=12,
    tails=100,
    exports=5,
    lags=400,
    starts=15,
    idle_seconds=5.0,
    together_rounds=11,
    together=1600,
)
QUICK: Final = Amounts(
    rounds=7,
    appends=60,
    batches=6,
    tails=60,
    exports=3,
    lags=150,
    starts=5,
    idle_seconds=2.0,
    together_rounds=5,
    together=800,
)
QUICK_EVENTS: Final = 20_000
FULL_EVENTS: Final = 100_000
FEWEST_EVENTS: Final = 10_000
MANY_EVENTS: Final = 300_000  # from here on one round over all events is long enough to need few
PAYLOAD_BYTES: Final = 1024


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/bench",
        allow_abbrev=False,  # tools/bench itself looks for --peers
        description="Measure convlog beside a bare SQLite; a Markdown table goes to stdout.",
    )
    parser.add_argument(
        "--events", type=int, help="events in the large stores (100,000; 20,000 with --quick)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer of everything: under a minute")
    parser.add_argument(
        "--peers", action="store_true", help="beside other packages, in an environment of their own"
    )
    parser.add_argument(
        "--durability", choices=("full", "normal"), default="full", help="full syncs each commit"
    )
    parser.add_argument(
        "--directory", type=Path, help="where to make stores (the system's temporary directory)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample here")
    parser.add_argument("--seed", type=int, default=1, help="of the events' text and of pauses (1)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options ask for; the exit status."""
    options = _options().parse_args(arguments)
    amounts = QUICK if options.quick else FULL
    events: int = options.events or (QUICK_EVENTS if options.quick else FULL_EVENTS)
    if events >= MANY_EVENTS:
        amounts = replace(amounts, exports=2)
    if events < FEWEST_EVENTS:
        _options().error(f"--events: at least {FEWEST_EVENTS}, so that every filter finds its 20 events")
    settings: dict[str, Any] = asdict(amounts) | {
        "events": events,
        "seed": options.seed,
        "payload_bytes": PAYLOAD_BYTES,
        "durability": options.durability,
    }
    recorder = Recorder(_progress(time.monotonic()))
    contenders, packages = list(CONTENDERS), list[str]()
    if options.peers:
        from benchmarks import peers  # noqa: PLC0415 its packages are not in the ordinary environment

        contenders += peers.contenders()
        packages += peers.PACKAGES
        recorder.notes += peers.NOTES
    with tempfile.TemporaryDirectory(prefix="convlog-bench-", dir=options.directory) as made:
        facts = machine.facts(Path(made), options.durability, packages)
        workload = Workload(options.seed, PAYLOAD_BYTES)
        with comparing.staged(
            contenders, Path(made), options.durability, workload, events, recorder.say
        ) as stage:
            for measure in MEASURES:
                measure(stage, amounts, recorder)
    recorder.say("done")
    print(report.table(recorder, facts, settings))
    if options.json is not None:
        found = report.raw(recorder, facts, settings)
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _progress(started: float) -> Callable[[str], None]:
    def say(what: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {what}", file=sys.stderr)

    return say
