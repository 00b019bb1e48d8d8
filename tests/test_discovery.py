"""Where the store is: named, in the environment, upward, or in the main worktree."""

import os
import subprocess

import pytest

from convlog_sqlite import ConversationLog, NotAStore, discovery


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with nothing above it that counts."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def worktree(here):
    """A linked worktree beside its repository: (main, linked)."""
    main, linked = here / "main", here / "elsewhere" / "linked"
    main.mkdir()
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (
        ["init", "--quiet"],
        [*author, "commit", "--quiet", "--allow-empty", "--message", "first"],
        ["worktree", "add", "--quiet", str(linked)],
    ):
        subprocess.run(["git", *command], cwd=main, check=True, capture_output=True, env=environment)
    return main, linked


def test_nothing_is_found_and_nothing_is_made(here):
    """Where there is no store, looking finds none and leaves no file."""
    assert discovery.find() is None
    with pytest.raises(NotAStore):
        ConversationLog.open(create=False)
    with pytest.raises(NotAStore):
        ConversationLog.open(read_only=True)
    assert list(here.iterdir()) == []


def test_the_nearest_store_upward_is_found(here, monkeypatch):
    """From a directory deep inside, the nearest `.convlog` above is the one."""
    deep = here / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (here / ".convlog").mkdir()
    assert discovery.find(deep) == here / ".convlog"
    (here / "a" / ".convlog").mkdir()
    assert discovery.find(deep) == here / "a" / ".convlog"
    monkeypatch.chdir(deep)
    assert discovery.find() == here / "a" / ".convlog"


def test_a_file_of_that_name_is_no_store(here):
    """Only a directory counts."""
    (here / "a").mkdir()
    (here / "a" / ".convlog").write_text("")
    (here / ".convlog").mkdir()
    assert discovery.find(here / "a") == here / ".convlog"


def test_the_environment_goes_before_what_is_near(here, monkeypatch):
    """CONVLOG_STORE names the store whether it exists or not, relative to the working directory; empty is unset."""
    (here / ".convlog").mkdir()
    monkeypatch.setenv("CONVLOG_STORE", "elsewhere")
    assert discovery.find() == discovery.default() == here / "elsewhere"
    monkeypatch.setenv("CONVLOG_STORE", "")
    assert discovery.find() == here / ".convlog"


def test_a_path_goes_before_the_environment(here, monkeypatch):
    """A store that was named is used, whatever else there is."""
    monkeypatch.setenv("CONVLOG_STORE", str(here / "elsewhere"))
    with ConversationLog.open(here / "named") as log:
        assert log.path == here / "named"
        assert log.created
    assert not (here / "elsewhere").exists()


def test_a_new_store_is_made_where_it_will_be_found(here):
    """`open` without a path makes the store in the working directory, and finds it again from below."""
    with ConversationLog.open() as log:
        assert log.created
        assert log.path == here / ".convlog"
    (here / "a").mkdir()
    os.chdir(here / "a")
    with ConversationLog.open() as log:
        assert not log.created
        assert log.path == here / ".convlog"


def test_worktrees_of_one_repository_share_a_store(worktree, monkeypatch):
    """A store made in a linked worktree is made in the main one, and both find it."""
    main, linked = worktree
    (linked / "deep").mkdir()
    assert discovery.find(linked) is None
    assert discovery.default(linked) == discovery.default(linked / "deep") == main / ".convlog"
    monkeypatch.chdir(linked / "deep")
    with ConversationLog.open() as log:
        assert log.path == main / ".convlog"
    assert discovery.find(linked / "deep") == discovery.find(main) == main / ".convlog"


def test_a_worktrees_own_store_is_nearer(worktree):
    """A store inside the linked worktree goes before that of the main one."""
    main, linked = worktree
    (main / ".convlog").mkdir()
    (linked / ".convlog").mkdir()
    assert discovery.find(linked) == linked / ".convlog"


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"gitdir:", b"gitdir: /nowhere/at/all", b"gitdir: \xff\xfe", b"gitdir: a\0b", b"\0"],
)
def test_a_broken_worktree_counts_as_none(here, content):
    """A `.git` file that leads nowhere is passed over."""
    (here / ".git").write_bytes(content)
    assert discovery.main_worktree(here) is None
    assert discovery.find() is None
    assert discovery.default() == here / ".convlog"


def test_a_submodule_is_no_worktree(here):
    """A `.git` file whose directory has no `commondir` is a submodule: its parent repository is not looked at."""
    (here / "modules").mkdir()
    (here / "sub").mkdir()
    (here / "sub" / ".git").write_text("gitdir: ../modules\n")
    assert discovery.main_worktree(here / "sub") is None


def test_a_bare_repository_has_no_main_worktree(here):
    """A worktree of a bare repository shares no store: there is no main worktree to keep it in."""
    private = here / "bare" / "worktrees" / "w"
    private.mkdir(parents=True)
    (private / "commondir").write_text("../..\n")
    (here / "w").mkdir()
    (here / "w" / ".git").write_text(f"gitdir: {private}\n")
    assert discovery.main_worktree(here / "w") is None
