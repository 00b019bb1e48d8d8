"""verify: each rule is found where it is broken, nothing else is said, and one fault hides no other."""

import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from convlog_sqlite import Anchor, Attachment, ConversationLog, Finding, Locked
from convlog_sqlite import walk as walks
from convlog_sqlite.keystore import SLOT_BYTES

# Changes a database that nobody has open, past every guard: a process of its own drops the triggers first.
TAMPER = """
import sys, json, apsw
database = apsw.Connection(sys.argv[1])
triggers = database.execute("SELECT name, sql, tbl_name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
for name, _, _ in triggers:
    database.execute(f"DROP TRIGGER {name}")
for statement in json.loads(sys.argv[2]):
    database.execute(statement)
for _, sql, table in triggers:
    if database.table_exists(None, table):
        database.execute(sql)
database.close()
"""


SOURCE = {"harness": "claude-code", "at": "2020-01-01T00:00:00.000000Z"}


@pytest.fixture
def store(store_path):
    """A closed store with every kind of row: pos 3 call, 4 result, 5 message, 6 mutation, 7 blobs, 8 open call."""
    with ConversationLog.init(store_path) as log:
        first = len(list(log.lines()))
        session = log.session("s", tenant="acme")
        session.message("one", agent="a", to=["b", "c"], subjects=["Ada"], thread_id="h", correlation_id="k")
        call = session.tool_call("shell", {"command": "ls"}, agent="a", task_id="t", role="worker")
        session.tool_result(call, "files", agent="a")
        session.mutation(
            "task-done", {"x": 1}, agent="b", task_id="t", links={"evidence": [call.id]}, source=SOURCE
        )
        session.message(
            "two", agent="b", attachments=[Attachment("image/png", b"image" * 100)], sensitivity="restricted"
        )
        session.message("x" * 20_000, agent="b")
        session.tool_call("shell", {}, agent="b")
        calls = [session.tool_call("shell", {}, agent="b") for _ in range(2)]
        for call in calls:
            session.tool_result(call, "files", agent="b")
        third = log.session("third")
        proposal = third.message("more", agent="a", performative="propose", purposes=["tests"])
        third.tool_call("pay", {"n": 1}, agent="a", effect={"state": "proposed"}, idempotency_key="k")
        log.label(proposal.id, subjects=["Bob"], sensitivity="confidential", by="a")
        log.session("other").message("elsewhere", agent="a")
        assert list(log.verify()) == []
    return store_path, first + 1


def tamper(path, *statements):
    """Change rows behind the store's back."""
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TAMPER), str(path / "log.db"), json.dumps(statements)],
        check=True,
    )


def found(path, *sessions, **options):
    """Every finding, as verify gives them."""
    with ConversationLog.open(path) as log:
        return list(log.verify(*sessions, **options))


def rules(path, **options):
    """The rules that were found broken, each once."""
    return sorted({finding.rule for finding in found(path, **options)})


# What is planted (`{n}` is the pos of seq n of session s), and exactly which rules must be named.
PLANTED = {
    "an envelope edited": (
        [
            "UPDATE envelope SET bytes = CAST(replace(CAST(bytes AS TEXT), '\"h\"', '\"i\"') AS BLOB) WHERE pos = {2}"
        ],
        {"leaf", "chain", "store-chain", "index", "mirror-differs"},
    ),
    "an envelope that is no JSON": (
        ["UPDATE envelope SET bytes = x'00ff' WHERE pos = {2}"],
        {"leaf", "chain", "store-chain", "index", "mirror-differs"},
    ),
    "an envelope that is another JSON value": (
        ["UPDATE envelope SET bytes = CAST('[1]' AS BLOB) WHERE pos = {2}"],
        {"leaf", "chain", "store-chain", "index", "mirror-differs"},
    ),
    "an envelope with values of other types": (
        [
            'UPDATE envelope SET bytes = CAST(\'{"to":5,"sensitivity":[],"correlation_id":1}\' AS BLOB) WHERE pos = {2}'
        ],
        {"leaf", "chain", "store-chain", "index", "mirror-differs"},
    ),
    "a commitment changed": (
        ["UPDATE envelope SET commitment = zeroblob(32) WHERE pos = {2}"],
        {"leaf", "chain", "store-chain", "commitment"},
    ),
    "a leaf changed": (["UPDATE envelope SET leaf = zeroblob(32) WHERE pos = {2}"], {"leaf"}),
    "a chain changed": (["UPDATE envelope SET chain = zeroblob(32) WHERE pos = {2}"], {"chain"}),
    "a store chain changed": (
        ["UPDATE envelope SET store_chain = zeroblob(32) WHERE pos = {2}"],
        {"store-chain"},
    ),
    "an event removed": (
        [
            "DELETE FROM envelope WHERE pos = {2}",
            "DELETE FROM event WHERE pos = {2}",
            "DELETE FROM payload WHERE pos = {2}",
            "DELETE FROM posting WHERE seq = 2 AND session = (SELECT id FROM session WHERE name = 's')",
        ],
        {"pos", "seq", "chain", "store-chain", "mirror-differs"},
    ),
    "an index row removed": (
        ["DELETE FROM event WHERE pos = {2}"],
        {"index", "mirror-differs"},
    ),
    "an index row too many": (
        [
            "INSERT INTO event SELECT session, 99, 999, 1, agent, role, task, thread, tool, kind, performative, correlation, state_key, sensitivity, parent, answers, ts, at, flags FROM event WHERE pos = {6}"
        ],
        {"index"},
    ),
    "another agent in the index": (["UPDATE event SET agent = task WHERE pos = {3}"], {"index"}),
    "another role in the index": (["UPDATE event SET role = agent WHERE pos = {3}"], {"index"}),
    "another tool in the index": (["UPDATE event SET tool = NULL WHERE pos = {3}"], {"index"}),
    "another kind in the index": (["UPDATE event SET kind = agent WHERE pos = {5}"], {"index"}),
    "another state key in the index": (["UPDATE event SET state_key = NULL WHERE pos = {5}"], {"index"}),
    "another sensitivity in the index": (["UPDATE event SET sensitivity = 1 WHERE pos = {6}"], {"index"}),
    "another correlation in the index": (["UPDATE event SET correlation = 1 WHERE pos = {2}"], {"index"}),
    "not found by its agent": (["DELETE FROM posting WHERE facet = 1 AND seq = 2"], {"index"}),
    "not found by its task": (["DELETE FROM posting WHERE facet = 2 AND seq = 3"], {"index"}),
    "not found by its thread": (["DELETE FROM posting WHERE facet = 3"], {"index"}),
    "not found by a recipient": (
        ["DELETE FROM posting WHERE facet = 4 AND name = (SELECT id FROM name WHERE text = 'b')"],
        {"index"},
    ),
    "not found by a subject": (["DELETE FROM posting WHERE facet = 5"], {"index"}),
    "found by another's agent": (
        ["INSERT INTO posting SELECT session, 1, 99, 3 FROM posting WHERE facet = 4 LIMIT 1"],
        {"index"},
    ),
    "found by another's recipient": (
        [
            "INSERT INTO posting SELECT session, 4, (SELECT id FROM name WHERE text = 'b'), 3 FROM posting WHERE facet = 4 LIMIT 1"
        ],
        {"index"},
    ),
    "found where no event is": (
        ["INSERT INTO posting SELECT session, 4, name, 99 FROM posting WHERE facet = 4 LIMIT 1"],
        {"index"},
    ),
    "not found by its kind": (["DELETE FROM posting WHERE facet = 6 AND seq = 5"], {"index"}),
    "not found as a proposal": (["DELETE FROM posting WHERE facet = 7"], {"index"}),
    "found as a proposal that it is not": (
        ["INSERT INTO posting SELECT session, 7, name, 3 FROM posting WHERE facet = 4 LIMIT 1"],
        {"index"},
    ),
    "not found as a step of an effect": (["DELETE FROM posting WHERE facet = 8"], {"index"}),
    "other flags in the index": (["UPDATE event SET flags = 0 WHERE pos = {2}"], {"index"}),
    "a purpose forgotten": (["DELETE FROM purpose"], {"index"}),
    "a purpose too many": (["INSERT INTO purpose SELECT session, 3, name FROM purpose"], {"index"}),
    "a label forgotten": (["DELETE FROM label"], {"index"}),
    "a label that says less": (["UPDATE label SET sensitivity = 2"], {"index"}),
    "a label that nobody wrote": (["INSERT INTO label SELECT session, 3, 4, 1 FROM label"], {"index"}),
    "a name changed": (["UPDATE name SET text = 'mallory' WHERE text = 'h'"], {"index"}),
    "a payload removed": (["DELETE FROM payload WHERE pos = {2}"], {"payload-missing", "mirror-differs"}),
    "a payload damaged": (
        [
            "UPDATE payload SET sealed = CAST(substr(sealed, 1, length(sealed) - 1) || CASE substr(sealed, -1) WHEN x'00' THEN x'01' ELSE x'00' END AS BLOB) WHERE pos = {2}"
        ],
        {"payload-corrupt", "mirror-differs"},
    ),
    "a payload emptied": (
        ["UPDATE payload SET sealed = x'' WHERE pos = {2}"],
        {"payload-corrupt", "mirror-differs"},
    ),
    "two payloads exchanged": (
        [
            "CREATE TABLE aside AS SELECT * FROM payload WHERE pos IN ({2}, {3})",
            "UPDATE payload SET (slot, sealed) = (SELECT slot, sealed FROM aside WHERE aside.pos = {2} + {3} - payload.pos) WHERE pos IN ({2}, {3})",
            "DROP TABLE aside",
        ],
        {"payload-corrupt", "mirror-differs", "index"},
    ),
    "a slot that never was": (
        ["UPDATE payload SET slot = 4611686018427387904 WHERE pos = {2}"],
        {"key-lost", "mirror-differs", "index"},
    ),
    "a negative slot": (
        ["UPDATE payload SET slot = -4611686018427387904 WHERE pos = {2}"],
        {"key-lost", "mirror-differs", "index"},
    ),
    "a blob damaged": (
        ["UPDATE chunk SET sealed = zeroblob(length(sealed)) WHERE id = (SELECT min(id) FROM chunk)"],
        {"payload-corrupt", "commitment"},
    ),
    "a chunk removed": (
        ["DELETE FROM chunk WHERE id = (SELECT max(id) FROM chunk)"],
        {"payload-corrupt", "commitment"},
    ),
    "a blob removed": (["DELETE FROM blob WHERE pos = {6}"], {"commitment"}),
    "a result without its call": (["UPDATE event SET answers = 99 WHERE pos = {4}"], {"pairing"}),
    "a result that answers no call": (["UPDATE event SET answers = 2 WHERE pos = {4}"], {"pairing"}),
    "a call with two results": (
        ["UPDATE event SET type = 3, answers = 3 WHERE pos = {6}"],
        {"pairing", "index"},
    ),
    "an answered call listed as open": (
        ["INSERT INTO open_call SELECT session, 3 FROM event WHERE pos = {4}"],
        {"pairing"},
    ),
    "an open call not listed": (["DELETE FROM open_call"], {"pairing"}),
    "two results that answer each other's call": (
        ["UPDATE event SET answers = 19 - answers WHERE pos IN ({11}, {12})"],
        {"pairing"},
    ),
    "another parent in the index": (["UPDATE event SET parent = {2} WHERE pos = {4}"], {"index"}),
    "a parent that is not there": (["UPDATE event SET parent = 999 WHERE pos = {4}"], {"index"}),
    "no parent in the index": (["UPDATE event SET parent = NULL WHERE pos = {4}"], {"index"}),
    "a parent that was not named": (["UPDATE event SET parent = {2} WHERE pos = {5}"], {"index"}),
    "a link removed": (["DELETE FROM link"], {"index"}),
    "a link too many": (["INSERT INTO link VALUES ({6}, 1, {2})"], {"index"}),
    "a second link too many": (["INSERT INTO link VALUES ({5}, 2, {2})"], {"index"}),
    "a link to nothing": (["INSERT INTO link VALUES ({5}, 2, 999)"], {"index"}),
    "a link of another type": (["INSERT INTO link SELECT pos, 1, target FROM link"], {"index"}),
    "a slot not written down": (["DELETE FROM slot WHERE pos = {2}"], {"index"}),
    "a slot of another event": (["UPDATE slot SET pos = {3} WHERE pos = {2}"], {"index"}),
    "a slot of another part": (["UPDATE slot SET part = 3 WHERE pos = {2}"], {"index"}),
    "another tenant": (
        ["INSERT INTO name VALUES (999, 'rival')", "UPDATE session SET tenant = 999 WHERE name = 's'"],
        {"index"},
    ),
    "no tenant": (["UPDATE session SET tenant = NULL WHERE name = 's'"], {"index"}),
    "a tenant where there was none": (
        ["UPDATE session SET tenant = (SELECT id FROM name WHERE text = 'acme') WHERE name = 'other'"],
        {"index"},
    ),
    "a tenant that is nobody": (["UPDATE session SET tenant = 999 WHERE name = 'other'"], {"index"}),
    "another time of recording": (["UPDATE event SET ts = ts + 1 WHERE pos = {5}"], {"index"}),
    "another time of happening": (["UPDATE event SET at = at + 1 WHERE pos = {5}"], {"index"}),
    "another time of happening without a source": (["UPDATE event SET at = 0 WHERE pos = {2}"], {"index"}),
    "a message listed as open call": (
        ["INSERT INTO open_call SELECT session, 2 FROM event WHERE pos = {4}"],
        {"pairing"},
    ),
}

# The table of effects can be read out of the envelopes.
EFFECTS_PLANTED = {
    "an effect forgotten": ("DELETE FROM effect", {"index"}),
    "an effect that stands further back": (
        "UPDATE effect SET last = last - 1, state = 2",
        {"index"},
    ),
    "another state": ("UPDATE effect SET state = 1", {"effect"}),
    "no worker": ("UPDATE effect SET worker = NULL", {"effect"}),
    "of another session": ("UPDATE effect SET session = 99", {"index", "effect"}),
    "a last move that is another event": ("UPDATE effect SET last = last + 1", {"effect"}),
    "a last move that is nothing": ("UPDATE effect SET last = 999", {"effect"}),
    "an effect that nobody proposed": (
        "INSERT INTO effect SELECT pos - 1, session, NULL, state, last, worker FROM effect",
        {"effect"},
    ),
    "an effect where no event is": (
        "INSERT INTO effect SELECT 999, session, NULL, state, last, worker FROM effect",
        {"effect"},
    ),
}


@pytest.mark.parametrize("what", EFFECTS_PLANTED)
def test_a_changed_table_of_effects_is_found(store_path, what):
    """What the table says of an effect and no envelope bears out is named, and so is what it does not know."""
    with ConversationLog.init(store_path) as log:
        session = log.session("s")
        session.once("w", "charge", {}, idempotency_key="k", run=lambda _: 1)
        session.message("next", agent="w")
        assert list(log.verify()) == []
    statement, expected = EFFECTS_PLANTED[what]
    tamper(store_path, statement)
    assert set(rules(store_path)) == expected


def test_a_changed_worker_is_found(store_path):
    """Of an attempt, the worker is who made it; a withdrawn effect never had one."""
    with ConversationLog.init(store_path) as log:
        session = log.session("s")
        first, second = (session.tool_call("t", agent="a", effect={"state": "proposed"}) for _ in range(2))
        session.mutation("effect-attempted", agent="w", effect={"id": first.id, "state": "attempted"})
        session.settle(second, "withdrawn", agent="w")
        assert list(log.verify()) == []
    tamper(store_path, "UPDATE effect SET worker = (SELECT id FROM name WHERE text = 'a')")
    assert [finding.rule for finding in found(store_path)] == ["effect", "effect"]


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_fault_is_found_and_nothing_else(store, what):
    """Each change behind the store's back is named by the rules that it breaks, and by no other."""
    path, first = store
    statements, expected = PLANTED[what]

    def at(match):
        return str(first + int(match[1]) - 1)

    tamper(path, *[re.sub(r"\{(\d+)\}", at, statement) for statement in statements])
    said = found(path)
    assert {finding.rule for finding in said} == expected
    assert all(isinstance(finding, Finding) and finding.detail for finding in said)


@pytest.mark.parametrize("tables", [("payload",), ("blob", "chunk"), ("payload", "blob", "chunk")])
def test_without_the_tables_of_the_payloads_the_envelopes_are_checked(store_path, tables):
    """Where payload tables were dropped, what is gone is named, and leaves, chains and the index are still checked."""
    with ConversationLog.init(store_path, mirror=False) as log:
        log.session("s").message("x" * 20_000, agent="a")
        pos = log.anchor().pos
    statements = [f"DROP TABLE {table}" for table in tables]
    tamper(store_path, *statements, f"UPDATE envelope SET leaf = zeroblob(32) WHERE pos = {pos}")
    missing = {"payload-missing"} if "payload" in tables else {"commitment"}
    assert set(rules(store_path)) == {"leaf", *missing}


def test_findings_name_the_place(store):
    """A fault is said with session, seq and event id, once, and not again at every event behind it."""
    path, first = store
    with ConversationLog.open(path) as log:
        event = log.session("s").event(3)
    tamper(path, f"UPDATE envelope SET leaf = zeroblob(32) WHERE pos = {first + 2}")
    assert found(path) == [Finding("leaf", "the envelope or its commitment was changed", "s", 3, event.id)]
    assert found(path, "other") == []
    assert len(found(path, "s", "other")) == 1


def test_a_finding_is_json(store):
    """What does not apply is left out."""
    assert Finding("anchor", "text").to_dict() == {"rule": "anchor", "detail": "text", "severity": "fault"}


def test_one_fault_hides_no_other(store):
    """All of several faults are found in one run."""
    path, first = store
    tamper(
        path,
        f"UPDATE envelope SET bytes = x'00' WHERE pos = {first + 1}",
        f"DELETE FROM payload WHERE pos = {first + 3}",
        "DELETE FROM open_call",
        "UPDATE chunk SET sealed = x'00'",
    )
    assert {"leaf", "index", "payload-missing", "pairing", "payload-corrupt"} <= set(rules(path))


@pytest.mark.parametrize(
    ("content", "rule"), [(bytes(SLOT_BYTES), "key-lost"), (os.urandom(SLOT_BYTES), "key-lost")]
)
def test_a_key_that_is_gone_is_lost(store, content, rule):
    """A wiped or overwritten slot without a redaction is a fault, and never taken for an erasure."""
    path, first = store
    with ConversationLog.open(path) as log, log._store.database.read() as connection:
        slot = connection.execute("SELECT slot FROM payload WHERE pos = ?", (first + 1,)).get
    with (path / "log.keys").open("r+b") as file:
        file.seek(8192 + slot * SLOT_BYTES)
        file.write(content)
    assert rules(path) == [rule, "mirror-differs"]


def test_a_truncated_keystore_is_lost_keys(store):
    """A keystore that was cut short loses keys; every one of them is named."""
    path, _ = store
    os.truncate(path / "log.keys", 8192)
    lost = [finding for finding in found(path) if finding.rule == "key-lost"]
    with ConversationLog.open(path) as log:
        assert len({finding.event_id for finding in lost}) == log.anchor().pos


def test_a_locked_keystore_is_a_note(store, monkeypatch):
    """Without the key-encryption key the envelopes are checked, content is not, and that is said once."""
    path, first = store
    tamper(path, f"UPDATE envelope SET leaf = zeroblob(32) WHERE pos = {first + 2}")
    with ConversationLog.open(path) as log:
        monkeypatch.setattr(log._store.keystore, "read", lambda slots: [Locked() for _ in slots])
        said = list(log.verify())
    notes = [finding for finding in said if finding.severity == "note"]
    assert [finding.rule for finding in notes] == ["keystore-locked"]
    assert [finding.rule for finding in said if finding.severity == "fault"] == ["leaf"]


class TestDatabase:
    def test_a_damaged_page_is_a_finding(self, store):
        """SQLite's own damage is reported, not raised."""
        path, _ = store
        with ConversationLog.open(path) as log:
            for _ in range(300):
                log.session("s").message("x" * 3000, agent="a")
        program = """
            import sys
            path = sys.argv[1]
            with open(path, "r+b") as file:
                size = file.seek(0, 2)
                for at in range(40 * 4096, size, 16 * 4096):
                    file.seek(at)
                    file.write(bytes(range(256)) * 16)
            """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path / "log.db")], check=True)
        assert "database" in rules(path)


class TestAnchor:
    @pytest.fixture
    def anchor(self, store):
        """The head of the store, kept elsewhere."""
        with ConversationLog.open(store[0]) as log:
            return Anchor(**json.loads(json.dumps(log.anchor().to_dict())))

    def test_the_log_matches_its_anchor_and_may_grow(self, store, anchor):
        """Later events change nothing about an anchor."""
        assert found(store[0], anchor=anchor) == []
        with ConversationLog.open(store[0]) as log:
            log.session("s").message("later", agent="a")
        assert found(store[0], anchor=anchor) == []

    def test_a_log_that_was_cut_passes_alone_and_fails_against_its_anchor(self, store, anchor):
        """The newest events can be cut off without a trace inside: only the anchor shows it."""
        path, _ = store
        cut = anchor.pos - 1  # the last session, whole
        tamper(
            path,
            f"DELETE FROM posting WHERE session = (SELECT session FROM envelope WHERE pos = {anchor.pos})",
            f"DELETE FROM event WHERE pos >= {cut}",
            f"DELETE FROM payload WHERE pos >= {cut}",
            f"DELETE FROM envelope WHERE pos >= {cut}",
            "DELETE FROM session WHERE name = 'other'",
        )
        assert found(path) == []
        assert rules(path, anchor=anchor) == ["anchor"]

    def test_a_log_that_was_written_anew_fails(self, store, anchor):
        """Another chain at the same place is another history."""
        assert rules(store[0], anchor=replace(anchor, chain="00" * 32)) == ["anchor"]
        assert rules(store[0], anchor=replace(anchor, pos=anchor.pos - 1)) == ["anchor"]

    def test_an_anchor_of_another_store_says_so(self, store, anchor, tmp_path):
        """It is no proof of anything here."""
        with ConversationLog.open(tmp_path / "another") as another:
            foreign = another.anchor()
        (finding,) = found(store[0], anchor=foreign)
        assert finding.rule == "anchor"
        assert "another store" in finding.detail


class TestMirror:
    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (lambda data: b"", ["mirror-behind"]),
            (lambda data: data[: data.index(b"\n") + 1], ["mirror-behind"]),
            (lambda data: data[:-7], ["mirror-behind"]),
            (lambda data: data.replace(b'"one"', b'"two"'), ["mirror-differs"]),
            (lambda data: data + b'{"seq":99}\n', ["mirror-differs"]),
            (lambda data: data + b"x" * (3 << 20) + b"\n", ["mirror-differs"]),
            (lambda data: data + (b"x" * 100 + b"\n") * (2 << 14), ["mirror-differs"]),
            (lambda data: data[data.index(b"\n") + 1 :], ["mirror-differs"]),
            (lambda data: data.replace(b"\n", b"\r\n"), ["mirror-differs"]),
        ],
    )
    def test_a_file_that_is_not_what_the_log_says(self, store, change, expected):
        """Lagging is a note, anything else a fault; the file is left as it is."""
        file = store[0] / "sessions" / "s" / "conversation.jsonl"
        changed = change(file.read_bytes())
        file.write_bytes(changed)
        said = found(store[0])
        assert [finding.rule for finding in said] == expected
        assert said[0].severity == ("note" if expected == ["mirror-behind"] else "fault")
        assert said[0].session == "s"
        assert file.read_bytes() == changed

    def test_the_first_line_that_differs_is_named(self, store):
        """`seq` points at it."""
        file = store[0] / "sessions" / "s" / "conversation.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        lines[4] = b"{}\n"
        file.write_bytes(b"".join(lines))
        assert [(finding.rule, finding.seq) for finding in found(store[0])] == [("mirror-differs", 5)]

    def test_a_missing_file_lags(self, store):
        """The next append writes it."""
        (store[0] / "sessions" / "s" / "conversation.jsonl").unlink()
        assert [(finding.rule, finding.severity) for finding in found(store[0])] == [
            ("mirror-behind", "note")
        ]

    def test_a_directory_or_loop_in_its_place_is_a_finding(self, store):
        """What cannot be read is a fault of the mirror, and the rest is checked all the same."""
        file = store[0] / "sessions" / "s" / "conversation.jsonl"
        file.unlink()
        file.mkdir()
        assert rules(store[0]) == ["mirror-differs"]
        file.rmdir()
        file.symlink_to(file)
        assert rules(store[0]) == ["mirror-differs"]

    def test_a_store_without_mirror_is_not_asked_for_one(self, store_path):
        """No file, no finding."""
        with ConversationLog.init(store_path, mirror=False) as log:
            log.session("s").message("x", agent="a")
            assert list(log.verify()) == []


def test_every_rule_of_the_docstring_is_planted():
    """No rule is promised that no test breaks, and none is broken that is not promised."""
    promised = set()
    for line in sys.modules["convlog_sqlite.verify"].__doc__.splitlines():
        if match := re.match(r" {4}([a-z, -]+?) {2,}", line):
            promised |= set(match[1].split(", "))
    planted = set().union(*(expected for _, expected in (*PLANTED.values(), *EFFECTS_PLANTED.values())))
    elsewhere = {
        "database",
        "anchor",
        "keystore-locked",
        "mirror-behind",
        "mirror-differs",
        "tombstone",
        "removal",
        "restored",
        "fork",
        "keystore-short",
        "projection",
        "reading",
    }
    assert promised == planted | elsewhere


def test_verify_runs_beside_writers(log):
    """While another handle appends, nothing is reported that is not so: at most a mirror that lags."""
    program = """
        import sys
        from convlog_sqlite import ConversationLog
        with ConversationLog.open(sys.argv[1], durability="normal") as log:
            for number in range(400):
                session = log.session(f"s{number % 3}")
                call = session.tool_call("x", {}, agent="a", to=["b"])
                session.tool_result(call, "y", agent="a")
        """
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), str(log.path)])
    runs = 0
    while writer.poll() is None:
        said = [finding for finding in log.verify() if finding.rule != "mirror-behind"]
        assert said == []
        runs += 1
    assert writer.returncode == 0
    assert runs > 1
    assert list(log.verify()) == []


@pytest.mark.parametrize("damage", ["bytes", "keys"])
def test_whatever_an_envelope_says_the_index_is_found_not_to(store, damage):
    """Each byte changed, each key gone or another JSON value: it is an answer, never an error."""
    path, _ = store

    def damaged(envelope):
        if damage == "bytes":
            for place in range(len(envelope)):
                for other in b'"5,{\x00':
                    yield envelope[:place] + bytes([other]) + envelope[place + 1 :]
            return
        said = json.loads(envelope)
        for key in said.keys() - {"v", "traceparent", "model", "content_type"}:
            yield json.dumps({name: value for name, value in said.items() if name != key}).encode()
            for other in (
                None,
                7,
                2**70,
                -1.5,
                False,
                "",
                "\ud800",
                [],
                [[]],
                ["x"],
                {},
                {"id": []},
                {"at": 3},
            ):
                yield json.dumps(said | {key: other}).encode()

    with ConversationLog.open(path, read_only=True) as log:
        reader = log.reader
        walk = walks.Walk(reader, frozenset())
        rows = next(walks.pages(walk))
        changed = 0
        with reader.database.read() as connection:
            assert all(walks.indexed(walk, connection, rows))
            for row in rows:
                for envelope in damaged(bytes(row.envelope)):
                    if envelope != row.envelope:
                        changed += 1
                        answer = walks.indexed(walk, connection, [row._replace(envelope=envelope)])
                        assert answer in ([True], [False])  # whose leaf is checked elsewhere
        assert changed > 1000
