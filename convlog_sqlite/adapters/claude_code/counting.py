"""What an import found, in figures that can be checked against the files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

MAX_PROBLEMS: Final = 100  # kept with file and line; all are counted
MAX_KINDS: Final = 256  # further kinds of record are counted together as "(other)"

SKIPPED: Final = "skipped"
RECOVERED: Final = "recovered"
LEFT: Final = "left for the next run"


@dataclass(frozen=True, slots=True)
class LineProblem:
    """A line that is not one sound record. `line` counts from 1. `outcome` says what became of it."""

    file: str
    line: int
    reason: str
    outcome: str


@dataclass(slots=True)
class ImportCounts:
    """Running figures of one or more `read` calls; those about pairs are complete when a read has ended.

    Lines: every line is blank, damaged (skipped), recovered (damaged, but its records could be taken),
    truncated (a last line without newline that cannot be read yet), a non-object, or a sound record.
    `lines` counts all but the blank ones.

    Pairs are counted by the ids of calls, each once however often it stands there; a call or result
    without an id is counted apart and has no pair. `duplicates` are records dropped because their uuid
    came before, `differing_duplicates` those of them whose bytes differ from the first; `dup_uuids` is
    the number of uuids concerned. `altered` counts values that the log does not accept and that were
    replaced: lone surrogates, NaN and infinities, numbers beyond 64 bits, nesting, names, sizes.
    """

    files: int = 0
    lines: int = 0
    blank_lines: int = 0
    damaged_lines: int = 0
    recovered_lines: int = 0
    truncated_lines: int = 0
    non_objects: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    events: int = 0
    tool_calls: int = 0
    tool_results: int = 0
    calls_without_id: int = 0
    results_without_id: int = 0
    unanswered_calls: int = 0
    orphan_results: int = 0
    dup_uuids: int = 0
    duplicates: int = 0
    differing_duplicates: int = 0
    dropped: int = 0
    altered: int = 0
    attachments: int = 0
    problems: list[LineProblem] = field(default_factory=list)

    @property
    def bad_lines(self) -> int:
        """Lines that are not exactly one JSON value in UTF-8, whatever became of them."""
        return self.damaged_lines + self.recovered_lines + self.truncated_lines

    def problem(self, file: Path, line: int, reason: str, outcome: str) -> None:
        """Count a line that is not one sound record, and keep where it is."""
        if outcome == SKIPPED:
            self.damaged_lines += 1
        elif outcome == RECOVERED:
            self.recovered_lines += 1
        else:
            self.truncated_lines += 1
        self._keep(LineProblem(str(file), line, reason, outcome))

    def non_object(self, file: Path, line: int) -> None:
        """Count a line that holds JSON, but no object."""
        self.non_objects += 1
        self.kind("(non-object)")
        self._keep(LineProblem(str(file), line, "not a JSON object", SKIPPED))

    def kind(self, name: str) -> None:
        """Count a record of this kind."""
        if name not in self.kinds and len(self.kinds) >= MAX_KINDS:
            name = "(other)"
        self.kinds[name] = self.kinds.get(name, 0) + 1

    def to_dict(self) -> dict[str, Any]:
        """Everything above as JSON-able values, `bad_lines` included."""
        return asdict(self) | {"bad_lines": self.bad_lines}

    def _keep(self, problem: LineProblem) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
