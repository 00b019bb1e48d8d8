"""The documentation is held to the command."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from convlog_sqlite.cli import VERBS
from convlog_sqlite.vocabulary import PROMOTION_RULES

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


def test_the_rules_of_memory_are_what_the_code_says():
    """Each rule that can refuse a claim stands in the README with its meaning, in the order of the code."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    rows = [f"| `{code}` | {meaning} |" for code, meaning in PROMOTION_RULES.items()]
    assert "\n".join(rows) in text


def test_each_example_is_shown(reference):
    """The example of each verb stands in the reference."""
    assert [name for name, entry in VERBS.items() if entry.example not in reference] == []


def blocks(language):
    """The fenced blocks of the README in one language, in order, without those of the command reference."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"<!-- command reference -->.*<!-- /command reference -->", "", text, flags=re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A new user's machine: an empty directory, a home with a transcript in it, the command on PATH."""
    project = tmp_path / "home" / ".claude" / "projects" / "-home-user-shop"
    shutil.copytree(CHECKOUT / "tools" / "demo-transcript", project)
    place = tmp_path / "place"
    place.mkdir()
    shutil.copy(next(project.glob("*.jsonl")), place / "session.jsonl")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(place)
    return place


@pytest.mark.skipif(shutil.which("jq") is None, reason="the README pipes into jq, which is not here")
def test_the_shell_blocks_run(reader):
    """What the README tells a new user to type works, in its order, in an empty directory."""
    typed = [block for block in blocks("sh") if "tools/" not in block]
    assert len(typed) > 2
    for block in typed:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


def test_the_python_blocks_run(reader):
    """Each Python block of the README is a program that runs as it stands."""
    programs = blocks("python")
    assert programs
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{program}\n{done.stderr}"


@pytest.mark.skipif(
    not (CHECKOUT / ".venv").is_dir(), reason="the demo sets itself up beside the checkout's environment"
)
def test_the_demo_runs(reader, monkeypatch):
    """The one command of the README does the main job: import, tail, append from several processes, mirror, verify."""
    monkeypatch.setenv("TMPDIR", str(reader))
    done = subprocess.run(
        [CHECKOUT / "tools" / "demo"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no faults" in done.stdout + done.stderr
    (mirror,) = (
        path
        for path in reader.glob("*/.convlog/sessions/*/conversation.jsonl")
        if path.parent.name != "_store"
    )
    said = mirror.read_text(encoding="utf-8")
    assert all(
        f'"{agent} is here"' in said for agent in ("orchestrator", "backend-dev", "verifier", "reviewer")
    )
