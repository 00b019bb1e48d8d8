"""What tests share: a store of their own, a clock they set, and nothing of the machine they run on."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

if TYPE_CHECKING:
    from convlog_sqlite import ConversationLog

CHECKOUT = Path(__file__).resolve().parent.parent
SAMPLES = CHECKOUT.parent / "shared" / "samples"

# A failing example is printed so that it can be run again anywhere. Under CI the examples are the same at each run,
# so that a change is not blamed for what it did not do. No deadline: a sync may take long on a busy disk.
UNDER_CI = "CI" in os.environ
settings.register_profile(
    "convlog",
    database=None if UNDER_CI else DirectoryBasedExampleDatabase(CHECKOUT / ".hypothesis" / "examples"),
    deadline=None,
    derandomize=UNDER_CI,
    print_blob=True,
)
settings.load_profile("convlog")


class FakeClock:
    """A clock that tests set: called, it gives nanoseconds since the epoch, and it stands still in between.

    It starts at 2026-01-02T03:04:05.678901Z.
    """

    def __init__(self) -> None:
        self.now = 1_767_323_045_678_901_000

    def __call__(self) -> int:
        """Read the clock."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on, or back if negative."""
        self.now += round(seconds * 1_000_000_000)

    def set(self, moment: int | datetime) -> None:
        """Jump to `moment`: nanoseconds since the epoch, or an aware datetime."""
        if isinstance(moment, datetime):
            since = moment - datetime(1970, 1, 1, tzinfo=UTC)
            moment = (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
        self.now = moment


@pytest.fixture(autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No setting, home, git repository or store of this machine reaches a test, nor a process that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("CONVLOG_", "GIT_", "XDG_")):
                patch.delenv(name)
        home = tmp_path_factory.mktemp("home")
        patch.setenv("HOME", str(home))
        patch.chdir(home)
        yield


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Where a store may be made; nothing is there yet."""
    return tmp_path / ".convlog"


@pytest.fixture
def log(store_path: Path) -> Iterator["ConversationLog"]:
    """An open log on a new store, closed after the test."""
    # Imported here: the tests that only read source run even when the package cannot be imported.
    from convlog_sqlite import ConversationLog

    with ConversationLog.open(store_path) as opened:
        yield opened


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until the test moves it."""
    return FakeClock()


@pytest.fixture(scope="session")
def samples() -> Path:
    """Foreign transcripts that are too large, or not ours, to be kept in this repository."""
    if not SAMPLES.is_dir():
        pytest.skip(f"no sample transcripts at {SAMPLES}")
    return SAMPLES
