"""Starting, stopping and killing the processes of `workers`, and watching a file's size."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from hammering.findings import Findings

CHECKOUT: Final = Path(__file__).resolve().parent.parent.parent
_LIMIT: Final = 600.0  # seconds: for what must come
_LOOK: Final = 0.005


class Worker:
    """One process. Its errors are kept in a file beside the store."""

    def __init__(self, findings: Findings, directory: Path, *arguments: object) -> None:
        """Start it; `arguments` are its role and what the role takes."""
        self._findings = findings
        self.name = " ".join(str(argument).rpartition("/")[2] for argument in arguments[:3])
        self._errors = directory / f"errors-{os.urandom(4).hex()}"
        path = os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "tools")))
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hammering.workers", *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": path},
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it is there still."""
        return self._process.poll() is None

    def ready(self) -> None:
        """Wait until it is ready."""
        if self._line() != b"ready\n":
            self._findings.expect(ok=False, otherwise=f"{self.name} did not start: {self._complaint()}")

    def go(self) -> None:
        """Let it begin, or tell it to end where it waits for that."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(b"go\n")
            self._stdin.flush()

    def kill(self) -> bool:
        """Kill -9. Whether it was running."""
        running = self.running
        self._process.kill()
        self._let_go()
        return running

    def result(self) -> dict[str, Any]:
        """Wait for its end, and take what it has to say. A failure is a fault."""
        line = self._line()
        self._let_go()
        if self._process.returncode or not line:
            self._findings.expect(ok=False, otherwise=f"{self.name}: {self._complaint()}")
            return {}
        found: dict[str, Any] = json.loads(line)
        return found

    def stop(self) -> dict[str, Any]:
        """Close its standard input and wait for its end."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        return self.result()

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    def _line(self) -> bytes:
        """The next line it prints; it is killed when none comes."""
        timer = threading.Timer(_LIMIT, self._process.kill)
        timer.start()
        try:
            line: bytes = self._process.stdout.readline() if self._process.stdout else b""
        finally:
            timer.cancel()
        return line

    def _let_go(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if not self._complaint():
            self._errors.unlink(missing_ok=True)

    def _complaint(self) -> str:
        try:
            said = self._errors.read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            said = []
        return said[-1] if said else ""


@contextlib.contextmanager
def at_the_end_kill(workers: list[Worker]) -> Iterator[list[Worker]]:
    """Leave no process behind, whatever happens in the block."""
    try:
        yield workers
    finally:
        for worker in workers:
            if worker.running:
                worker.kill()


class Watched:
    """The largest size of a file while the block runs. Looks at its name only: the file is never opened."""

    def __init__(self, path: Path) -> None:
        self._path, self.largest = path, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def size(self) -> int:
        """How large it is now."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK):
            self.largest = max(self.largest, self.size)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
