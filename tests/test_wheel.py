"""What is published works: sdist and wheel are complete, and the wheel runs where there is no checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent

APPEND_AND_TAIL = """
import json, sys
from pathlib import Path
import convlog_sqlite
from convlog_sqlite import ConversationLog

with ConversationLog.open(Path(sys.argv[1])) as log:
    session = log.session("demo")
    session.message(body="from the library", agent="planner")
    lines = [event.line.decode() for event in session.tail(10)]
print(json.dumps({"file": convlog_sqlite.__file__, "path": sys.path, "lines": lines}))
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed, with nothing of this environment but the way to the system's programs."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": os.defpath, "HOME": str(cwd), "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The sdist of the checkout and the wheel made from that sdist, as a release makes them."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, CHECKOUT, cwd=folder)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(distributions, tmp_path_factory):
    """An environment of its own with the wheel in it; gives the folder of its commands.

    The dependencies are those of the environment that runs the tests: only folders that a .pth file names are added,
    and the .pth file in them that leads to the checkout is not read.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    scheme = {"base": str(folder), "platbase": str(folder), "installed_base": str(folder)}
    site_packages = Path(sysconfig.get_path("purelib", "venv", scheme))
    commands = Path(sysconfig.get_path("scripts", "venv", scheme))
    pip = [sys.executable, "-m", "pip", "--python", commands / "python", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", distributions[1], cwd=folder)
    dependencies = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (site_packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n", encoding="utf-8")
    return commands


def test_the_wheel_is_complete(distributions):
    """The wheel carries migrations, the mark of a typed package and the licence, and no tests or tools."""
    with zipfile.ZipFile(distributions[1]) as archive:
        names = set(archive.namelist())
    migrations = {f"convlog_sqlite/migrations/{path.name}" for path in (CHECKOUT / "migrations").glob("*.*")}
    metadata = {name for name in names if ".dist-info/" in name}
    assert migrations
    assert migrations | {"convlog_sqlite/py.typed", "convlog_sqlite/__init__.py"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in metadata)
    assert {"convlog_sqlite"} == {name.partition("/")[0] for name in names - metadata}


def test_the_sdist_can_be_built_and_tested(distributions):
    """The sdist carries what building and testing need: the wheel of these tests was made from it."""
    with tarfile.open(distributions[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        path.relative_to(CHECKOUT).as_posix()
        for folder in ("convlog_sqlite", "migrations", "tests", "tools")
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected | {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= names


def test_the_library_works_from_the_wheel(installed, tmp_path):
    """Appending and reading work from the wheel alone: migrations are found, and nothing comes from the checkout."""
    said = json.loads(
        run(installed / "python", "-I", "-c", APPEND_AND_TAIL, tmp_path / "store", cwd=tmp_path)
    )
    assert Path(said["file"]).is_relative_to(installed.parent)
    assert str(CHECKOUT) not in said["path"]
    assert "from the library" == json.loads(said["lines"][-1])["body"]


def test_the_command_works_from_the_wheel(installed, tmp_path):
    """`convlog` is installed, and appends and tails."""
    convlog = [installed / "convlog", "--store", tmp_path / "store"]
    run(*convlog, "init", cwd=tmp_path)
    run(*convlog, "append", "demo", "--agent", "planner", "--body", "from the command", cwd=tmp_path)
    lines = run(*convlog, "tail", "demo", "-n", "5", cwd=tmp_path).splitlines()
    assert "from the command" == json.loads(lines[-1])["body"]
