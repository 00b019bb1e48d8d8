"""Migrations: the tables as they are, one way to make them, safe when many processes make or upgrade a store at once."""

import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import apsw
import pytest
import sqlite_utils

from convlog_sqlite import ConversationLog, NotAStore, SchemaTooNew, StoreError, StoreReadOnly, schema
from convlog_sqlite.database import connect

SNAPSHOT = Path(__file__).with_name("schema.sql")
OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
NEXT = "CREATE TABLE extra (id INTEGER PRIMARY KEY) STRICT;\n"


def tables(rows):
    """The statements that made a database, as one text; what sqlite-utils keeps for itself is left out."""
    ours = [sql for _, name, _, sql in rows if sql and not name.startswith("_sqlite_migrations")]
    return "".join(f"{sql};\n\n" for sql in ours)


def processes(count, program, *arguments, **environment):
    """Start a program `count` times, let all of them go at once, and give what each printed."""
    gate = "import sys; print('ready', flush=True); sys.stdin.readline()\n"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", gate + textwrap.dedent(program), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        for _ in range(count)
    ]
    for one in started:
        assert one.stdout.readline() == "ready\n"
    for one in started:
        one.stdin.write("go\n")
        one.stdin.flush()
    said = []
    for one in started:
        out, error = one.communicate(timeout=60)
        assert one.returncode == 0, error
        said.append(out.strip())
    return said


@pytest.fixture
def next_migrations(tmp_path, monkeypatch):
    """A convlog that is one migration ahead: the directory of its migrations, taken up by calling it."""
    directory = tmp_path / "migrations"
    directory.mkdir()
    for file in schema.migrations_directory().glob("*.*"):
        (directory / file.name).write_bytes(file.read_bytes())
    (directory / "0099_extra.sql").write_text(f"-- One more.\n{NEXT}")

    def take_up():
        monkeypatch.setattr(schema, "migrations_directory", lambda: directory)
        return directory

    return take_up


class TestTables:
    def test_the_schema_is_the_snapshot(self, log):
        """A change of the tables is made on purpose: the snapshot is written anew with WRITE_SNAPSHOT=1."""
        with log._store.database.read() as connection:
            found = tables(connection.execute(OBJECTS).fetchall())
        if os.environ.get("WRITE_SNAPSHOT"):
            SNAPSHOT.write_text(found, encoding="utf-8")
        assert found == SNAPSHOT.read_text(encoding="utf-8")

    def test_both_ways_to_migrate_give_the_same(self):
        """The migrations run over apsw and over the standard library's sqlite3 make the same tables."""
        over_apsw = connect(":memory:", create=True)
        schema.fill(over_apsw, bytes(16))
        over_sqlite3 = sqlite3.connect(":memory:")
        schema._load_migrations().apply(sqlite_utils.Database(over_sqlite3))
        assert over_apsw.execute(OBJECTS).fetchall() == over_sqlite3.execute(OBJECTS).fetchall()
        applied = "SELECT migration_set, name FROM _sqlite_migrations"
        assert over_apsw.execute(applied).fetchall() == over_sqlite3.execute(applied).fetchall()
        over_apsw.close()
        over_sqlite3.close()

    def test_every_table_is_strict(self, log):
        """No table takes a text for a number."""
        with log._store.database.read() as connection:
            listed = connection.execute("PRAGMA table_list").fetchall()
        loose = {name for _, name, kind, _, _, strict in listed if kind == "table" and not strict}
        assert {name for name in loose if not name.startswith("sqlite_")} == {"_sqlite_migrations"}

    def test_each_migration_opens_with_why(self):
        """Files are numbered without a gap, and each begins with a comment."""
        files = sorted(schema.migrations_directory().glob("*.sql"))
        assert [int(file.name[:4]) for file in files] == list(range(1, len(files) + 1))
        assert all(re.fullmatch(r"\d{4}_[a-z_]+", file.stem) for file in files)
        assert all(file.read_text(encoding="utf-8").startswith("-- ") for file in files)

    def test_the_file_says_what_it_is(self, log):
        """application_id and user_version are set, so that file(1) and other tools can tell."""
        with log._store.database.read() as connection:
            assert connection.pragma("application_id") == 0x434C4F47
            assert connection.pragma("user_version") == len(schema.known())
            assert connection.pragma("journal_mode") == "wal"


class TestConnectionForMigrations:
    @pytest.fixture
    def made(self):
        """sqlite-utils over apsw, in memory."""
        connection = connect(":memory:", create=True)
        adapted = schema.MigrationConnection(connection)
        yield sqlite_utils.Database(adapted, recursive_triggers=False, execute_plugins=False)
        connection.close()

    def test_what_sqlite_utils_needs_works(self, made):
        """Rows, names of columns and counts arrive as from sqlite3."""
        made.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
        assert made.execute("INSERT INTO t (text) VALUES (?)", ("one",)).lastrowid == 1
        cursor = made.execute("SELECT * FROM t")
        assert [column[0] for column in cursor.description] == ["id", "text"]
        assert cursor.fetchone() == (1, "one")
        assert cursor.fetchone() is None
        assert list(made.query("SELECT * FROM t")) == [{"id": 1, "text": "one"}]
        assert made["t"].count == 1
        assert made.execute("DELETE FROM t").rowcount == 1

    def test_a_migration_that_fails_leaves_nothing(self, made):
        """Half of a migration is no state: its statements and its record go together."""
        migrations = sqlite_utils.Migrations("x")

        @migrations(name="broken")
        def broken(db):
            db.execute("CREATE TABLE half (id INTEGER)")
            db.execute("CREATE TABLE nonsense (")

        with pytest.raises((apsw.SQLError, sqlite3.OperationalError)):
            migrations.apply(made)
        assert "half" not in made.table_names()


class TestOpening:
    def test_eight_processes_make_one_store(self, store_path):
        """All of them get the same store and append; exactly one made it."""
        said = processes(
            8,
            """
            import os
            from convlog_sqlite import ConversationLog
            with ConversationLog.init(sys.argv[1]) as log:
                log.session("s").message(str(os.getpid()), agent="a")
                print(log.created, log.anchor().store)
            """,
            store_path,
        )
        assert sorted(line.split()[0] for line in said) == ["False"] * 7 + ["True"]
        assert len({line.split()[1] for line in said}) == 1
        with ConversationLog.open(store_path, create=False) as log:
            assert [event.seq for event in log.session("s").tail(20)] == list(range(1, 10))
            assert len(
                {event.state_key for event in log.session("_store").tail(20, kind="state-set")}
            ) == len(log.session("_store").tail(20, kind="state-set")), (
                "each setting of the new store was written once"
            )
            assert list(log.verify()) == []
        left = {path.name for path in store_path.iterdir()} - {"log.db-wal", "log.db-shm"}
        assert left == {".gitignore", "log.db", "log.keys", "log.lock", "log.open", "sessions"}

    def test_eight_processes_upgrade_one_store(self, store_path, next_migrations):
        """Each opens it, one applies what is pending, nothing is applied twice."""
        with ConversationLog.open(store_path) as log:
            log.session("s").message("old", agent="a")
        said = processes(
            8,
            """
            import pathlib
            from convlog_sqlite import ConversationLog, schema
            schema.migrations_directory = lambda: pathlib.Path(sys.argv[2])
            with ConversationLog.open(sys.argv[1]) as log:
                log.session("s").message("new", agent="a")
                with log._store.database.read() as connection:
                    print(connection.pragma("user_version"))
            """,
            store_path,
            next_migrations(),
        )
        assert said == [str(len(schema.known()))] * 8
        with ConversationLog.open(store_path) as log:
            with log._store.database.read() as connection:
                names = connection.execute("SELECT name FROM _sqlite_migrations ORDER BY id").fetchall()
            assert names == [(name,) for name in schema.known()]
            assert len(log.session("s").tail(20)) == 10
            assert list(log.verify()) == []

    def test_an_upgrade_that_fails_changes_nothing(self, store_path, next_migrations):
        """The old convlog goes on with the store as it was."""
        with ConversationLog.open(store_path):
            pass
        known = schema.migrations_directory
        directory = next_migrations()
        (directory / "0099_extra.sql").write_text(NEXT + "CREATE TABLE nonsense (;\n")
        with pytest.raises(Exception, match="syntax error"):
            ConversationLog.open(store_path)
        schema.migrations_directory = known
        with ConversationLog.open(store_path) as log:
            log.session("s").message("x", agent="a")
            assert list(log.verify()) == []

    def test_a_newer_store_is_refused(self, store_path, next_migrations, monkeypatch):
        """An older convlog touches nothing of it, reading included, and says both versions."""
        with monkeypatch.context() as newer:
            newer.setattr(
                schema, "migrations_directory", (directory := next_migrations()) and (lambda: directory)
            )
            ConversationLog.open(store_path).close()
        monkeypatch.undo()
        before = (store_path / "log.db").stat().st_size
        for read_only in (False, True):
            with pytest.raises(SchemaTooNew) as refused:
                ConversationLog.open(store_path, read_only=read_only)
            assert (refused.value.found, refused.value.known) == (
                len(schema.known()) + 1,
                len(schema.known()),
            )
        assert (store_path / "log.db").stat().st_size == before

    def test_a_reader_never_migrates(self, store_path, next_migrations):
        """A read-only handle on an old store says that it needs an upgrade and leaves it as it is."""
        with ConversationLog.open(store_path):
            pass
        next_migrations()
        with pytest.raises(StoreReadOnly) as refused:
            ConversationLog.open(store_path, read_only=True)
        assert "upgrade" in refused.value.rule
        with ConversationLog.open(store_path) as log, log._store.database.read() as connection:
            assert connection.pragma("user_version") == len(schema.known())

    def test_a_reader_reads_what_a_writer_writes(self, store_path):
        """A read-only handle sees events as they come and cannot append."""
        with (
            ConversationLog.open(store_path) as log,
            ConversationLog.open(store_path, read_only=True) as reader,
        ):
            log.session("s").message("x", agent="a")
            assert reader.session("s").tail()[-1].body == "x"
            assert reader.status()["events"] == log.anchor().pos
            assert list(reader.verify()) == []
            with pytest.raises(StoreReadOnly):
                reader.session("s").message("y", agent="a")

    def test_a_reader_creates_nothing(self, store_path):
        """Where no store is a read-only handle makes none."""
        with pytest.raises(NotAStore):
            ConversationLog.open(store_path, read_only=True)
        with pytest.raises(NotAStore):
            ConversationLog.open(store_path, create=False)
        assert not store_path.exists()

    def test_sqlite_utils_is_imported_only_to_migrate(self, store_path):
        """It costs a tenth of a second that an append from the shell does not have."""
        program = """
            import sys
            from convlog_sqlite import ConversationLog
            with ConversationLog.open(sys.argv[1]) as log:
                log.session("s").message("x", agent="a")
                log.session("s").tail()
                list(log.verify())
                log.status()
            print(log.created, "sqlite_utils" in sys.modules, "sqlite3" in sys.modules)
            """
        said = [
            subprocess.run(
                [sys.executable, "-c", textwrap.dedent(program), str(store_path)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
            for _ in range(2)
        ]
        assert said[0][:2] == ["True", "True"]
        assert said[1] == ["False", "False", "False"]


class TestHostileFiles:
    @pytest.fixture
    def closed(self, store_path):
        """The database of a store that nobody has open."""
        with ConversationLog.open(store_path) as log:
            for number in range(50):
                log.session("s").message(f"{number} " * 200, agent="a")
        return store_path / "log.db"

    @pytest.mark.parametrize("content", [b"", b"x", b"not a database" * 1000, bytes(8192)])
    def test_another_file_is_no_store(self, closed, content):
        """Whatever lies at log.db: NotAStore, and the file stays as it is."""
        closed.write_bytes(content)
        for read_only in (True, False):
            with pytest.raises(NotAStore):
                ConversationLog.open(closed.parent, read_only=read_only)
        assert closed.read_bytes() == content

    def test_another_database_is_no_store(self, closed):
        """A database that something else made is not touched."""
        closed.unlink()
        with sqlite3.connect(closed) as foreign:
            foreign.execute("PRAGMA journal_mode = WAL")
            foreign.execute("CREATE TABLE t (x)")
        foreign.close()
        before = closed.read_bytes()
        with pytest.raises(NotAStore):
            ConversationLog.open(closed.parent)
        assert closed.read_bytes() == before

    def test_a_database_that_only_claims_to_be_ours_is_refused(self, closed):
        """application_id can be set by anyone; without our tables it is no store."""
        closed.unlink()
        with sqlite3.connect(closed) as foreign:
            foreign.execute("PRAGMA journal_mode = WAL")
            foreign.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            foreign.execute("CREATE TABLE _sqlite_migrations (id, migration_set, name)")
            foreign.execute("INSERT INTO _sqlite_migrations VALUES (1, 'convlog', '0001_log')")
        foreign.close()
        with pytest.raises(StoreError):
            ConversationLog.open(closed.parent)

    @pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
    def test_a_truncated_database_is_said_to_be_damaged(self, closed, kept):
        """A file that was cut gives a StoreError at opening or at reading, or findings: never a crash or silence."""
        size = closed.stat().st_size
        os.truncate(closed, int(size * kept))
        said = []
        try:
            with ConversationLog.open(closed.parent) as log:
                said = list(log.verify())
        except StoreError:
            return
        assert said

    def test_a_directory_is_no_database(self, closed):
        """A directory at log.db is a StoreError."""
        closed.unlink()
        closed.mkdir()
        with pytest.raises(StoreError):
            ConversationLog.open(closed.parent)
