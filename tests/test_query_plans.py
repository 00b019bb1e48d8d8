"""Every statement of the package finds its rows by an index: a read costs the same in a log of any length."""

import ast
import re
from pathlib import Path

import pytest

import convlog_sqlite
from convlog_sqlite import ConversationLog, Draft
from convlog_sqlite.store import reading

PACKAGE = Path(convlog_sqlite.__file__).parent
GROWING = (
    "event",
    "posting",
    "envelope",
    "payload",
    "slot",
    "blob",
    "chunk",
    "link",
    "idempotency",
    "open_call",
    "name",
    "effect",
    "lease",
    "reading",
    "informed",
)
STATEMENT = re.compile(r"\s*(SELECT|INSERT|DELETE|UPDATE|WITH)\b")

# What looks at everything, on purpose: verify checks the whole log, and an older keystore is gone through once.
WHOLE = {
    ("reading_check", "WRONGLY_INFORMED"),
    ("reading_check", "UNINFORMED"),
    ("verify", "UNPAIRED_RESULTS"),
    ("verify", "TWICE_ANSWERED"),
    ("verify", "WRONGLY_OPEN"),
    ("verify", "MISSING_OPEN"),
    ("verify", "UNINDEXED"),
    ("verify", "NOT_POSTED"),
    ("verify", "WRONGLY_POSTED"),
    ("verify", "COUNT_POSTED"),
    ("verify", "COUNT_POSTINGS"),
    ("store.labels", "WRONGLY_ADDRESSED"),
    ("store.labels", "NOT_LABELLED"),
    ("store.labels", "WRONGLY_LABELLED"),
    ("tombstones", "SELECT_BLOB_SLOTS"),
    ("store.erasing", "SELECT_BURIED"),
    ("verify", "WRONG_ANSWER"),
    ("verify", "WRONGLY_LINKED"),
    ("verify", "NO_SLOT"),
}


def constants():
    """(module, name, statement) of every SQL constant of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                text = node.value.value
                if isinstance(text, str) and STATEMENT.match(text) and isinstance(node.target, ast.Name):
                    yield module, node.target.id, text


ALL = list(constants())


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    """A read connection on a store with enough rows that SQLite has a choice."""
    with ConversationLog.open(tmp_path_factory.mktemp("plans") / "store") as log:
        for number in range(5):
            drafts = [
                Draft(
                    type="message", agent=f"a{n % 7}", task_id=f"t{n % 9}", thread_id="x", to=["b"], body="x"
                )
                for n in range(200)
            ]
            log.session(f"s{number}").append_many(drafts)
        with log._store.database.read() as opened:
            yield opened


def plan(connection, statement):
    """The steps of SQLite's plan."""
    numbered = [int(number) for number in re.findall(r"\?(\d+)", statement)]
    count = max(numbered, default=statement.count("?"))
    return [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + statement, (None,) * count)]


def full_scans(connection, statement):
    """Steps that walk a growing table from end to end, but for a walk in index order that a LIMIT ends."""
    aliases = {
        alias: table for table, alias in re.findall(r"\b(?:FROM|JOIN)\s+(\w+)(?:\s+AS\s+(\w+))?", statement)
    }
    found = []
    for step in plan(connection, statement):
        scanned = re.match(r"SCAN (\w+)", step)
        if scanned and aliases.get(scanned[1], scanned[1]) in GROWING:
            found.append(step)
    return found


def bounded(statement):
    """Whether a statement stops after a number of rows, in the order of the index that it walks."""
    return re.search(r"ORDER BY (\w+\.)?pos (DESC )?LIMIT", statement) is not None


def test_constants_are_found():
    """The list is not empty by mistake: it holds the statements that matter most."""
    names = {name for _, name, _ in ALL}
    assert {"READ_PLAIN", "TAIL_PLAIN", "TAIL_POSTING", "READ_SCAN", "WALK", "INSERT_EVENT"} <= names
    assert len(ALL) > 40


@pytest.mark.parametrize(
    ("module", "name", "statement"), ALL, ids=[f"{module}.{name}" for module, name, _ in ALL]
)
def test_no_statement_walks_a_growing_table(connection, module, name, statement):
    """Each uses an index, or stops at a limit; the exceptions stand in a list and are really exceptions."""
    scans = [] if bounded(statement) else full_scans(connection, statement)
    if (module, name) in WHOLE:
        assert scans, "this statement needs no exception any more"
    else:
        assert scans == []


@pytest.mark.parametrize(
    "name", ["READ_PLAIN", "TAIL_PLAIN", "READ_SCAN", "TAIL_SCAN", "READ_POSTING", "TAIL_POSTING"]
)
def test_a_page_is_read_in_the_order_of_the_index(connection, name):
    """Only the page itself may be sorted: the inner, bounded walk follows the index."""
    steps = plan(connection, getattr(reading, name))
    assert "SEARCH v USING INTEGER PRIMARY KEY (rowid=?)" in steps
    assert "SEARCH p USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN" in steps
    inner = [step for step in steps if step.startswith("SEARCH") and " v " not in step and " p " not in step]
    assert inner
    assert all("PRIMARY KEY" in step for step in inner)
    assert len([step for step in steps if "TEMP B-TREE" in step]) <= 1


@pytest.mark.parametrize("name", ["READ_POSTING", "TAIL_POSTING", "END_OF_READ", "END_OF_TAIL"])
def test_a_filter_with_an_index_walks_its_posting_only(connection, name):
    """Agent, task, thread and recipient are looked up by the whole key (session, facet, name, seq)."""
    steps = plan(connection, getattr(reading, name))
    assert "SEARCH posting USING PRIMARY KEY (session=? AND facet=? AND name=? AND seq>? AND seq<?)" in steps
    if name.endswith("POSTING"):
        assert "SEARCH n USING PRIMARY KEY (session=? AND seq=?)" in steps, "one row, not the session"


@pytest.mark.parametrize("key", ["agent", "task_id", "thread_id", "to"])
def test_indexed_filters_choose_their_posting(log, key):
    """Each of the four alone is answered from the posting, without a test on any column."""
    keys = {"agent": "b", "task_id": "t", "thread_id": "h", "to": ["c"]}
    log.session("s").append(Draft(type="message", body="x", **keys))
    wanted = keys[key][0] if key == "to" else keys[key]
    with log._store.database.read() as connection:
        found = reading.look_up(connection, log.reader.names, {key: wanted})
    assert found.facet == reading.FACETS[key]
    assert all(column is None for column in found.columns)


def test_the_check_finds_a_scan(connection):
    """A statement without an index is caught."""
    assert full_scans(connection, "SELECT pos FROM event WHERE agent = ?")
    assert full_scans(connection, "SELECT v.seq FROM envelope AS v WHERE v.commitment = ?")
    assert not full_scans(connection, "SELECT seq FROM event WHERE session = ?")
