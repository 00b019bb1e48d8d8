"""The documentation is held to the command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from convlog_sqlite.cli import VERBS

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def reference():
    """The command reference of the README."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    return text.partition("<!-- command reference -->")[2].partition("<!-- /command reference -->")[0]


def test_every_verb_is_in_the_reference(reference):
    """Each verb has a heading of its own, in the order of the help, and no other has."""
    assert re.findall(r"^### convlog (\S+)", reference, re.MULTILINE) == list(VERBS)


def test_the_reference_is_what_the_command_says():
    """The section is what tools/reference makes of the command."""
    done = subprocess.run(
        [sys.executable, CHECKOUT / "tools" / "reference", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_example_is_shown(reference):
    """The example of each verb stands in the reference."""
    assert [name for name, entry in VERBS.items() if entry.example not in reference] == []
