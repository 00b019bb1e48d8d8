"""Nothing but SQLite itself opens `log.db`, `log.db-wal` or `log.db-shm`: one closed descriptor drops every lock on them."""

import subprocess
import sys
import textwrap

# Reports every opening of the three files through Python, by any of the ways there are.
TRAP = """
import builtins, io, os, pathlib, sqlite3, sys

FILES = ("log.db", "log.db-wal", "log.db-shm")
caught = []

def guard(module, name):
    real = getattr(module, name)
    def opening(file, *arguments, **more):
        if not isinstance(file, int):
            base = os.path.basename(os.fsdecode(file)) if isinstance(file, (str, bytes, os.PathLike)) else ""
            if base in FILES or base.startswith("log.db.new-"):
                caught.append(f"{name} {base}")
        return real(file, *arguments, **more)
    setattr(module, name, opening)

for module, name in ((builtins, "open"), (io, "open"), (io, "open_code"), (os, "open"), (sqlite3, "connect")):
    guard(module, name)

# And by audit, which also sees what was bound before the guards were set, and code that calls into C.
def audit(event, arguments):
    if event in ("open", "sqlite3.connect", "shutil.copyfile") and arguments:
        for file in arguments[:2]:
            if isinstance(file, (str, bytes, os.PathLike)):
                base = os.path.basename(os.fsdecode(file))
                if base in FILES or base.startswith("log.db.new-"):
                    caught.append(f"{event} {base}")

sys.addaudithook(audit)
"""

LIFE = """
from convlog_sqlite import ConversationLog, Draft, import_transcripts

store = pathlib.Path(sys.argv[1])
transcript = store.parent / "6f1a3c5e-0000-4000-8000-000000000001.jsonl"
transcript.write_text(
    '{"type":"user","uuid":"6f1a3c5e-0000-4000-8000-00000000000a","parentUuid":null,'
    '"sessionId":"6f1a3c5e-0000-4000-8000-000000000001","timestamp":"2026-01-01T00:00:00Z",'
    '"message":{"role":"user","content":"hello"}}\\n'
)
with ConversationLog.init(store, keys=store.parent / "keys" / "k") as log:
    session = log.session("s", tenant="t")
    call = session.tool_call("shell", {"command": "ls"}, agent="a", idempotency_key="k")
    session.tool_result(call, "x" * 20_000, agent="a")
    session.append_many([Draft(type="message", agent="a", body="x")] * 5)
    session.tail(3, pairs=True)
    session.read(agent="a")
    list(session.follow(0, timeout=0))
    session.content(session.tail(6)[0])
    log.mirror.start()
    session.message("y", agent="b")
    log.mirror.stop()
    log.export_to(store.parent / "out")
    assert import_transcripts(log, "claude-code", [transcript]).new
    anchor = log.anchor()
    assert list(log.verify(anchor=anchor)) == []
    log.status()
    log.sessions()
    list(log.lines())
with ConversationLog.open(store, read_only=True) as log:
    log.status()
    assert list(log.verify()) == []
# An older store: what is pending is applied.
from convlog_sqlite import schema
import shutil
directory = store.parent / "migrations"
shutil.copytree(schema.migrations_directory(), directory)
(directory / "0099_extra.sql").write_text("CREATE TABLE extra (id INTEGER PRIMARY KEY) STRICT;\\n")
schema.migrations_directory = lambda: directory
with ConversationLog.open(store) as log:
    log.session("s").message("after", agent="a")
"""

REPORT = """
print("\\n".join(caught))
"""


def run(program, *arguments):
    """What the trap caught in a program."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TRAP + program + REPORT), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def test_a_whole_life_opens_the_files_through_sqlite_only(store_path):
    """Made, migrated, written, read, followed, mirrored, exported, imported into, verified, upgraded, closed."""
    assert [line for line in run(LIFE, store_path) if line] == []
    assert (store_path / "log.db").exists()


def test_the_trap_catches_every_way(store_path):
    """Each way to open a file of the database through Python is seen."""
    program = """
store = pathlib.Path(sys.argv[1])
store.mkdir()
for name in FILES:
    (store / name).write_bytes(b"")
open(store / "log.db").close()
(store / "log.db-wal").read_bytes()
os.close(os.open(store / "log.db-shm", os.O_RDONLY))
io.open(str(store / "log.db")).close()
sqlite3.connect(store / "log.db").close()
import shutil
shutil.copy(store / "log.db", store / "copy")
"""
    caught = run(program, store_path)
    assert {
        "open log.db",
        "open log.db-wal",
        "open log.db-shm",
        "connect log.db",
        "sqlite3.connect log.db",
    } <= set(caught)
    assert "shutil.copyfile log.db" in caught


def test_sqlite3_is_not_even_imported(store_path):
    """On the way of an append there is no second SQLite library in the process."""
    program = """
import sys
from convlog_sqlite import ConversationLog
with ConversationLog.open(sys.argv[1]) as log:
    log.session("s").message("x", agent="a")
if sys.argv[2] == "again":
    assert "sqlite3" not in sys.modules
"""
    for what in ("first", "again"):
        subprocess.run([sys.executable, "-c", program, str(store_path), what], check=True)
