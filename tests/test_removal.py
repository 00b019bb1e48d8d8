"""Envelope retention: closed sessions go whole, nothing that is needed goes, and every chain still verifies."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from convlog_sqlite import (
    Attachment,
    ConversationLog,
    Draft,
    InvalidEvent,
    RetentionPolicy,
    SessionRemoved,
    StoreFull,
    UnknownReference,
    import_transcripts,
)
from convlog_sqlite.instants import id_text
from convlog_sqlite.store import emptying
from convlog_sqlite.store.removing import Removals

DAY = 86_400
MARK = "xyzzy-mark"
TRANSCRIPT = Path(__file__).resolve().parent.parent / "tools" / "demo-transcript"
OLD = RetentionPolicy(id="old", target="envelope", max_age="30d")


def run(program, *arguments, check=True):
    """A program in a process of its own; its status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture
def log(store_path, clock):
    """A log whose clock stands still."""
    with ConversationLog.open(store_path, clock=clock) as opened:
        yield opened


def fill(session):
    """Events of every kind of row: postings, links, state, a lease, a pair, blobs, a redaction."""
    first = session.message(f"{MARK} one", agent="a", to=["b"], subjects=["Ada"], idempotency_key="k")
    call = session.tool_call("shell", {"command": MARK}, agent="a", task_id="t")
    session.tool_result(call, MARK, agent="a")
    session.claim("t", agent="a", lease=60)
    decided = session.mutation("decision-made", MARK, agent="a", state_key="port", expect=None)
    session.mutation("decision-made", MARK, agent="a", state_key="port", expect=decided)
    session.message(
        MARK * 3000,
        agent="b",
        parent_id=first.id,
        links={"evidence": [decided.id]},
        attachments=[Attachment("text/plain", MARK.encode() * 9)],
    )
    session.message("x", agent="a", model="xyzzy-model", correlation_id="xyzzy-correlation")
    session._log.redact(events=[decided.id], reason="test", by="ops")
    return first


def close(session):
    """End a session."""
    return session.mutation("session-closed", agent="a")


def residue(directory):
    """Files that hold anything of what `fill` said, content or envelope: looked for by another process."""
    program = """
        import pathlib, sys
        for path in pathlib.Path(sys.argv[1]).rglob("*"):
            if path.is_file() and b"xyzzy" in path.read_bytes():
                print(path)
        """
    return run(program, directory).stdout.split()


def count(log, statement):
    """The one number that a statement gives."""
    with log._store.database.read() as connection:
        return connection.execute(statement).get


ROWS = {
    table: f"SELECT count(*) FROM {table} WHERE session = (SELECT id FROM session WHERE name = 's')"
    for table in ("event", "posting", "open_call", "state_head", "snapshot")
} | {
    table: f"SELECT count(*) FROM {table} WHERE pos IN (SELECT pos FROM envelope WHERE session = "
    "(SELECT id FROM session WHERE name = 's'))"
    for table in ("payload", "blob", "link", "lease")
}
ENVELOPES = "SELECT count(*) FROM envelope WHERE session = (SELECT id FROM session WHERE name = 's')"


@pytest.fixture
def removed(log, clock, tmp_path):
    """A log of which the session `s` was removed, exported before; with the result."""
    log.session("other").message("kept", agent="a")
    session = log.session("s")
    fill(session)
    close(session)
    log.export_to(tmp_path / "out")
    clock.advance(31 * DAY)
    log.set_policy(OLD, by="ops")
    return log.apply_retention(by="ops")


class TestWhatGoes:
    def test_the_plan_and_the_result_agree(self, log, clock):
        """A dry run names the session and changes nothing; applying does what it said."""
        session = log.session("s")
        fill(session)
        close(session)
        clock.advance(31 * DAY)
        log.set_policy(OLD, by="ops")
        planned = log.apply_retention(by="ops", dry_run=True)
        assert (planned.removed, planned.kept, planned.redactions) == ({"s": "old@1"}, {}, [])
        assert session.tail(1)[0].kind == "session-closed"
        done = log.apply_retention(by="ops")
        assert (done.removed, done.policies, done.erased) == (
            planned.removed,
            planned.policies,
            planned.erased,
        )
        assert done.complete
        again = log.apply_retention(by="ops")
        assert (again.removed, again.matched, again.redactions) == ({}, 0, [])

    def test_rows_keys_and_files_are_gone(self, removed, log, tmp_path):
        """No row of it is left but emptied envelopes, no key, no line anywhere; verify has nothing to say."""
        assert removed.complete
        assert {table: count(log, statement) for table, statement in ROWS.items()} == dict.fromkeys(ROWS, 0)
        assert count(log, ENVELOPES) == 11
        assert count(log, ENVELOPES + " AND bytes <> x''") == 0
        slots = "SELECT number FROM slot WHERE pos IN (SELECT pos FROM envelope WHERE bytes = x'')"
        with log._store.database.read() as connection:
            numbers = [number for (number,) in connection.execute(slots).fetchall()]
        assert len(numbers) == 13
        assert {type(answer).__name__ for answer in log._store.keystore.read(numbers)} == {"Erased"}
        for root in (log.path / "sessions", tmp_path / "out"):
            assert not (root / "s").exists()
            assert (root / "other" / "conversation.jsonl").read_bytes() == b"".join(log.lines("other"))
        assert list(log.verify()) == []
        assert list(log.verify(anchor=log.anchor())) == []
        assert residue(tmp_path) == []

    def test_the_removal_is_recorded(self, removed, log):
        """In `_store`, with the policy that did it, how many events there were, and where the chain ended."""
        (record,) = log.session("_store").tail(1, kind="session-removed")
        assert [record.id] == removed.redactions
        (said,) = log.removed_sessions()
        assert (said.id, said.policy, said.by, said.events) == ("s", "old@1", record.id, 11)
        assert (record.agent, record.value["session"], record.value["events"]) == ("ops", "s", 11)
        assert record.value["policy"] == {"id": "old", "version": 1}
        assert log.mirror.path("_store").read_bytes() == b"".join(log.lines("_store"))

    def test_it_says_so_to_whoever_asks(self, removed, log):
        """Reading and appending are refused with the policy that removed it; lists leave it out."""
        ids = ids_of(log)
        session = log.session("other")
        calls = [
            lambda: log.session("s"),
            lambda: list(log.lines("s")),
            lambda: log.event(ids[0]),
            lambda: log.why(ids[0]),
            lambda: log.explain(ids[0]),
            lambda: log.place_hold(session="s", reason="test", by="ops"),
            lambda: log.redact(session="s", reason="test", by="ops"),
            lambda: log.mirror.update("s"),
            lambda: log.append_drafts("s", None, [Draft(type="message", agent="a", body="again")]),
        ]
        for call in calls:
            with pytest.raises(SessionRemoved) as refused:
                call()
            assert (refused.value.session, refused.value.policy) == ("s", "old@1")
            assert refused.value.by == removed.redactions[0]
        assert [found.id for found in log.sessions()] == ["_store", "other"]
        with pytest.raises(UnknownReference):
            session.message("x", agent="a", parent_id=ids[0])
        with pytest.raises(InvalidEvent):
            log.session("S")
        already = log.redact(events=[ids[0]], reason="test", by="ops")
        assert (already.matched, already.already, already.erased) == (1, 1, 0)
        for lines in (log.lines(), log.follow_lines(timeout=0)):
            text = b"".join(lines)
            assert b'"session":"other"' in text
            assert b'"session":"s","agent"' not in text

    def test_handles_that_were_open_notice(self, log, clock):
        """A session object, a follower and a second handle that had read it are refused from then on."""
        session = log.session("s")
        fill(session)
        close(session)
        lines = log.lines("s")
        next(lines)
        with ConversationLog.open(log.path, clock=clock) as other:
            there = other.session("s")
            assert there.tail(1)[0].kind == "session-closed"
            there.message("still open", agent="b")
            close(there)
            clock.advance(31 * DAY)
            log.set_policy(OLD, by="ops")
            assert log.apply_retention(by="ops").removed
            for reading in (
                there.tail,
                there.read,
                there.open_calls,
                lambda: list(there.follow(0, timeout=0)),
            ):
                with pytest.raises(SessionRemoved):
                    reading()
            with pytest.raises(SessionRemoved):
                there.message("late", agent="b")
            other.session("other").message("goes on", agent="b")
            assert not (log.path / "sessions" / "s").exists()
            assert list(other.verify()) == []

    def test_what_others_say_of_it_stays(self, log, clock):
        """An event elsewhere that was caused by one of it keeps its place, and `why` ends there."""
        session = log.session("s")
        cause = session.message("start the other", agent="a")
        close(session)
        effect = log.session("other").message("started", agent="b", parent_id=cause.id)
        clock.advance(31 * DAY)
        log.set_policy(OLD, by="ops")
        log.apply_retention(by="ops")
        found = log.why(effect.id)
        assert [event.id for event in found.events] == [effect.id]
        assert (found.edges, found.depths) == ([], [0])
        assert log.event(effect.id).parent_id == cause.id
        assert list(log.verify()) == []

    def test_many_events_go_block_by_block(self, log, clock, monkeypatch):
        """No transaction is longer than a block, and all go."""
        monkeypatch.setattr(emptying, "BLOCK", 7)
        session = log.session("s")
        session.append_many([Draft(type="message", agent="a", body=f"{n}") for n in range(50)])
        close(session)
        clock.advance(31 * DAY)
        log.set_policy(OLD, by="ops")
        assert log.apply_retention(by="ops").policies == {"old@1": 52}
        assert count(log, ROWS["event"]) == count(log, ROWS["posting"]) == 0
        assert list(log.verify()) == []

    def test_its_id_is_not_given_again(self, removed, log):
        """Nor one that differs by case only, in any process."""
        with ConversationLog.open(log.path) as other:
            with pytest.raises(SessionRemoved):
                other.append_drafts("s", None, [Draft(type="message", agent="a", body="x")])
            with pytest.raises(InvalidEvent):
                other.append_drafts("S", None, [Draft(type="message", agent="a", body="x")])

    def test_an_import_brings_nothing_back(self, log, clock):
        """Importing the same transcript again writes nothing; what grew there is refused, counted and named."""
        import_transcripts(log, "claude-code", [TRANSCRIPT])
        name = next(found.id for found in log.sessions() if found.id != "_store")
        session = log.session(name)
        for call in session.open_calls():
            session.tool_result(call, None, agent="a", status="interrupted")
        close(session)
        clock.advance(31 * DAY)
        log.set_policy(OLD, by="ops")
        assert name in log.apply_retention(by="ops").removed
        head = log.anchor().pos
        again = import_transcripts(log, "claude-code", [TRANSCRIPT])
        assert (again.new, again.refused) == (0, 0)
        assert again.already > 0
        assert log.anchor().pos == head
        assert not (log.path / "sessions" / name).exists()

    def test_a_copy_of_its_records_elsewhere_is_taken(self, log, clock, tmp_path):
        """A transcript that goes on from a removed one keeps its own events, with the parent marked as not there."""
        source = next(TRANSCRIPT.glob("*.jsonl")).read_text().splitlines()[:2]
        old, new = "0" * 8 + "-0000-4000-8000-000000000001", "0" * 8 + "-0000-4000-8000-000000000002"
        name = json.loads(source[0])["sessionId"]
        (tmp_path / f"{old}.jsonl").write_text(source[0].replace(name, old) + "\n")
        import_transcripts(log, "claude-code", [tmp_path / f"{old}.jsonl"])
        close(log.session(old))
        clock.advance(31 * DAY)
        log.set_policy(OLD, by="ops")
        assert old in log.apply_retention(by="ops").removed
        (tmp_path / f"{new}.jsonl").write_text("\n".join(source).replace(name, new) + "\n")
        report = import_transcripts(log, "claude-code", [tmp_path / f"{new}.jsonl"])
        assert report.refused == 0
        assert report.new > 0
        assert list(log.verify()) == []

    def test_what_grew_in_a_removed_transcript_is_refused(self, log, clock, tmp_path):
        """The session takes nothing more: all of it is counted as refused, with one reason."""
        source = next(TRANSCRIPT.glob("*.jsonl")).read_text().splitlines()[:2]
        name = json.loads(source[0])["sessionId"]
        file = tmp_path / f"{name}.jsonl"
        file.write_text(source[0] + "\n")
        import_transcripts(log, "claude-code", [file])
        close(log.session(name))
        clock.advance(31 * DAY)
        log.set_policy(OLD, by="ops")
        log.apply_retention(by="ops")
        file.write_text("\n".join(source) + "\n")
        report = import_transcripts(log, "claude-code", [file])
        assert (report.new, len(report.refusals)) == (0, 1)
        assert report.refused > 0


def ids_of(log):
    """The ids of the events that were removed."""
    with log._store.database.read() as connection:
        found = connection.execute("SELECT id FROM envelope WHERE bytes = x'' ORDER BY pos").fetchall()
    return [id_text(event_id) for (event_id,) in found]


class TestWhatStays:
    @pytest.fixture
    def session(self, log):
        """A session with an event."""
        made = log.session("s")
        made.message("one", agent="a", task_id="t")
        return made

    def due(self, log, clock, days=31):
        """What retention would do after some days."""
        clock.advance(days * DAY)
        log.set_policy(OLD, by="ops")
        planned = log.apply_retention(by="ops", dry_run=True)
        done = log.apply_retention(by="ops")
        assert (planned.removed, planned.kept) == (done.removed, done.kept)
        assert list(log.verify()) == []
        return done.removed, done.kept

    def test_without_a_policy_nothing_goes(self, log, session, clock):
        """Not in ten years."""
        close(session)
        clock.advance(3650 * DAY)
        assert log.apply_retention(by="ops").removed == {}

    def test_an_open_session(self, log, session, clock):
        """One that was never closed, and one in which somebody spoke after it was closed."""
        assert self.due(log, clock) == ({}, {})
        close(session)
        session.message("wait", agent="a")
        assert self.due(log, clock) == ({}, {})
        close(session)
        assert self.due(log, clock) == ({"s": "old@3"}, {})

    def test_a_redaction_does_not_open_it_again(self, log, session, clock):
        """What erases content of a closed session leaves it closed, and as old as it was."""
        close(session)
        clock.advance(29 * DAY)
        log.redact(session="s", reason="test", by="ops")
        assert self.due(log, clock, days=2)[0] == {"s": "old@1"}

    def test_the_day_before(self, log, session, clock):
        """Age counts from the closing."""
        close(session)
        assert self.due(log, clock, days=29) == ({}, {})
        assert self.due(log, clock, days=1)[0] == {"s": "old@2"}

    def test_the_store_itself(self, log, session, clock):
        """`_store` stays whatever a policy says, and none can name it."""
        assert self.due(log, clock, days=3650) == ({}, {})
        with pytest.raises(InvalidEvent):
            RetentionPolicy(id="x", target="envelope", max_age="1d", match={"session": "_store"})

    def test_an_open_call(self, log, session, clock):
        """A call that has no result yet keeps it."""
        call = session.tool_call("shell", {}, agent="a")
        close(session)
        assert self.due(log, clock) == ({}, {"s": "open-call"})
        session.tool_result(call, None, agent="a", status="interrupted")
        close(session)
        assert self.due(log, clock)[0] == {"s": "old@2"}

    def test_an_open_effect(self, log, session, clock):
        """An effect that is neither committed nor compensated keeps it; one that is does not."""
        close(session)
        insert = "INSERT INTO effect VALUES (1, (SELECT id FROM session WHERE name = 's'), NULL, 2, 1, NULL)"
        with log._store.database.write() as connection:
            connection.execute(insert)
        clock.advance(31 * DAY)
        log.set_policy(OLD, by="ops")
        assert log.apply_retention(by="ops").kept == {"s": "open-effect"}
        with log._store.database.write() as connection:
            connection.execute("UPDATE effect SET state = 3")
        assert log.apply_retention(by="ops").removed == {"s": "old@1"}
        assert count(log, "SELECT count(*) FROM effect") == 1

    def test_a_fork_of_it(self, log, session, clock):
        """A session that a kept one was forked from stays; both go together."""
        session.fork("child", agent="a")
        close(session)
        assert self.due(log, clock) == ({}, {"s": "fork"})
        close(log.session("child"))
        clock.advance(31 * DAY)
        both = {"s": "old@1", "child": "old@1"}
        assert log.apply_retention(by="ops", dry_run=True).removed == both
        assert log.apply_retention(by="ops").removed == both

    @pytest.mark.parametrize("scope", ["session", "task", "agent", "event", "subject"])
    def test_a_hold(self, log, session, clock, scope):
        """Whatever a hold is on: one event that it covers keeps the session, until it is released."""
        event = session.message("held", agent="b", subjects=["Ada"])
        close(session)
        name = {"session": "s", "task": "t", "agent": "b", "event": event.id, "subject": "Ada"}[scope]
        hold = log.place_hold(**{scope: name}, reason="legal_order", by="counsel")
        assert self.due(log, clock) == ({}, {"s": "hold"})
        log.release_hold(hold.id, by="counsel")
        assert self.due(log, clock)[0] == {"s": "old@2"}

    def test_the_min_age_of_its_content(self, log, session, clock):
        """A policy that promises content for a year keeps the session that long; keep_last does not."""
        close(session)
        log.set_policy(RetentionPolicy(id="year", min_age="365d", match={"task": "t"}), by="ops")
        log.set_policy(RetentionPolicy(id="last", max_age="400d", keep_last=50), by="ops")
        assert self.due(log, clock) == ({}, {"s": "min-age"})
        assert self.due(log, clock, days=335)[0] == {"s": "old@2"}

    def test_another_session_or_tenant(self, log, clock):
        """A policy matches by session and tenant; the shortest max_age and the longest min_age count."""
        for name, tenant in (("s", "acme"), ("t", "acme"), ("u", None)):
            close(log.session(name, tenant=tenant))
        log.set_policy(
            RetentionPolicy(id="a", target="envelope", max_age="10d", match={"tenant": "acme"}), by="o"
        )
        log.set_policy(
            RetentionPolicy(id="b", target="envelope", min_age="20d", match={"session": "t"}), by="o"
        )
        clock.advance(15 * DAY)
        assert log.apply_retention(by="o").removed == {"s": "a@1"}
        clock.advance(5 * DAY)
        assert log.apply_retention(by="o").removed == {"t": "a@1"}
        assert [found.id for found in log.sessions()] == ["_store", "u"]

    @pytest.mark.parametrize("change", ["a hold", "an event", "a policy", "a call"])
    def test_what_came_between_the_look_and_the_decision_counts(
        self, log, session, clock, change, monkeypatch
    ):
        """What another process did after the session was looked at is asked again in the transaction."""
        close(session)
        clock.advance(31 * DAY)
        log.set_policy(OLD, by="ops")
        other = ConversationLog.open(log.path, clock=clock)
        real = Removals._decide
        decided = []

        def late(removals, connection, *rest):
            decided.append(real(removals, connection, *rest))
            return decided[-1]

        due = Removals._due

        def interrupted(removals, leaving):
            for found in due(removals, leaving):
                if change == "a hold":
                    other.place_hold(task="t", reason="legal_order", by="c")
                elif change == "an event":
                    other.session("s").message("late", agent="b")
                elif change == "a policy":
                    other.remove_policy("old", by="c")
                else:
                    other.session("s").tool_call("x", {}, agent="b")
                    close(other.session("s"))
                yield found

        monkeypatch.setattr(Removals, "_decide", late)
        monkeypatch.setattr(Removals, "_due", interrupted)
        done = log.apply_retention(by="ops")
        other.close()
        assert done.removed == {}
        assert len(decided) == 1
        assert done.kept == ({"s": "hold"} if change == "a hold" else {})
        assert log.session("s").head > 0
        assert list(log.verify()) == []


class TestTheDatabase:
    FOREIGN = """
        import json, sqlite3, sys
        database = sqlite3.connect(sys.argv[1], isolation_level=None)
        said = []
        for statement in json.loads(sys.argv[2]):
            try:
                said.append(database.execute(statement).rowcount)
            except sqlite3.Error as error:
                said.append(type(error).__name__)
        print(json.dumps(said))
        """
    INTENT = "INSERT INTO intent SELECT zeroblob(16), id, 'x', 3, 'session', 0, '{}', 1 FROM session WHERE name = 's'"
    REMOVAL = "INSERT INTO removal SELECT id, zeroblob(16), 'p', 1, 0, 1, zeroblob(32) FROM session WHERE name = 's'"
    DELETE = "DELETE FROM event WHERE session = (SELECT id FROM session WHERE name = 's')"
    EMPTY = "UPDATE envelope SET bytes = x'' WHERE session = (SELECT id FROM session WHERE name = 's')"

    def foreign(self, path, *statements):
        """What another SQLite is told for each statement: the rows it changed, or the error."""
        return json.loads(run(self.FOREIGN, path / "log.db", json.dumps(statements)).stdout)

    def test_the_triggers_open_only_for_an_intent(self, log):
        """Neither a removal without an intent, nor an intent without a removal, lets a row go."""
        session = log.session("s")
        session.message("x", agent="a")
        close(session)
        log.close()
        refused = "IntegrityError"
        assert self.foreign(log.path, self.DELETE, self.EMPTY, self.REMOVAL) == [refused] * 3
        assert self.foreign(log.path, self.INTENT, self.DELETE, self.EMPTY) == [1, refused, refused]

    def test_nor_for_another_session(self, log):
        """While one session is removed, the rows of another are as closed as ever."""
        for name in ("s", "other"):
            log.session(name).message("x", agent="a")
            close(log.session(name))
        log.close()
        others = [statement.replace("'s'", "'other'") for statement in (self.DELETE, self.EMPTY)]
        changed = "UPDATE envelope SET {} WHERE session = (SELECT id FROM session WHERE name = 's')"
        partly = [
            changed.format(what)
            for what in ("bytes = x'00'", "leaf = zeroblob(32), bytes = x''", "id = id || x''")
        ]
        assert (
            self.foreign(log.path, self.INTENT, self.REMOVAL, *others, *partly)
            == [1, 1] + ["IntegrityError"] * 5
        )
        assert self.foreign(log.path, self.DELETE, self.EMPTY) == [3, 3]

    @pytest.mark.parametrize("needed", ["open", "call", "effect", "fork", "erasure", "store"])
    def test_a_removal_of_what_is_needed_is_refused(self, log, needed):
        """The database knows by itself which session may go."""
        session = log.session("s")
        session.message("x", agent="a")
        if needed == "call":
            session.tool_call("x", {}, agent="a")
        if needed != "open":
            close(session)
        log.session("child").message("x", agent="a")
        log.close()
        before = {
            "effect": "INSERT INTO effect SELECT 1, id, NULL, 1, 1, NULL FROM session WHERE name = 's'",
            "fork": "INSERT INTO fork SELECT c.id, p.id, 1 FROM session AS c, session AS p WHERE c.name = 'child' AND p.name = 's'",
            "erasure": self.INTENT.replace("zeroblob(16)", "randomblob(16)"),
        }.get(needed, "SELECT 1")
        statements = [self.INTENT, self.REMOVAL]
        if needed == "store":
            statements = [statement.replace("'s'", "'_store'") for statement in statements]
        assert self.foreign(log.path, before, *statements)[1:] == [1, "IntegrityError"]

    def test_nothing_is_added_to_a_removed_session(self, removed, log):
        """Neither an event, nor a fork of it, nor its removal once more or undone."""
        event = "INSERT INTO event SELECT s.id, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, NULL, 1, 1, 0 FROM session AS s WHERE name = 's'"
        fork = "INSERT INTO fork SELECT c.id, p.id, 1 FROM session AS c, session AS p WHERE c.name = 'other' AND p.name = 's'"
        log.close()
        statements = (
            event,
            fork,
            self.INTENT,
            self.REMOVAL,
            "DELETE FROM removal",
            "UPDATE removal SET version = 2",
        )
        refused = "IntegrityError"
        assert self.foreign(log.path, *statements) == [refused, refused, 1, refused, refused, refused]

    @pytest.mark.parametrize(
        ("change", "detail"),
        [
            ("INSERT INTO posting SELECT id, 1, 1, 1 FROM session WHERE name = 's'", "index still names it"),
            (
                "DROP TRIGGER removal_update; UPDATE removal SET chain = zeroblob(32)",
                "does not end where it did",
            ),
            ("DROP TRIGGER removal_update; UPDATE removal SET intent = zeroblob(16)", "no session-removed"),
            (
                "DROP TRIGGER tombstone_delete; DELETE FROM tombstone WHERE pos = (SELECT min(pos) FROM envelope WHERE bytes = x'')",
                "no tombstone says so",
            ),
            (
                "DROP TRIGGER envelope_update; UPDATE envelope SET bytes = x'7b7d' WHERE pos = (SELECT min(pos) FROM envelope WHERE bytes = x'')",
                "not all rows",
            ),
            (
                "DROP TRIGGER envelope_update; UPDATE envelope SET bytes = x'' WHERE pos = (SELECT max(pos) FROM envelope)",
                "the envelope or its commitment was changed",
            ),
            (
                "DROP TRIGGER envelope_update; UPDATE envelope SET leaf = zeroblob(32) WHERE pos = (SELECT min(pos) FROM envelope WHERE bytes = x'')",
                "does not follow on the one before it in its session",
            ),
        ],
    )
    def test_verify_finds_what_is_wrong(self, removed, log, change, detail):
        """What was left, forged or brought back is named."""
        log.close()
        self.foreign(log.path, *change.split("; "))
        with ConversationLog.open(log.path, read_only=True) as changed:
            assert any(detail in finding.detail for finding in changed.verify())

    def test_an_older_keystore_is_noticed(self, log, clock, tmp_path):
        """Keys that a restored keystore brought back are destroyed again when the store is opened."""
        session = log.session("s")
        fill(session)
        close(session)
        kept = (log.path / "log.keys").read_bytes()
        clock.advance(31 * DAY)
        log.set_policy(OLD, by="ops")
        log.apply_retention(by="ops")
        log.close()
        (log.path / "log.keys").write_bytes(kept + bytes((log.path / "log.keys").stat().st_size - len(kept)))
        with ConversationLog.open(log.path, read_only=True) as other:
            assert "the key may be there" in "".join(finding.detail for finding in other.verify())
        with ConversationLog.open(log.path) as other:
            assert not [finding for finding in other.verify() if finding.rule == "removal"]


DYING = """
    import os, signal, sys
    from convlog_sqlite import ConversationLog, files, mirror
    from convlog_sqlite.keystore import Keystore
    from convlog_sqlite.store import committing, emptying, erasing, removing

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def die_after(owner, name, times=1):
        real, calls = getattr(owner, name), []
        def step(*arguments, **more):
            done = real(*arguments, **more)
            calls.append(1)
            if len(calls) == times:
                die()
            return done
        setattr(owner, name, step)

    clock = lambda: int(sys.argv[2])
    emptying.BLOCK = 5
    log = ConversationLog.open(sys.argv[1], clock=clock)
    {step}
    log.apply_retention(by="ops")
    print("returned")
    """
STEPS = {
    "the intent is committed": "die_after(removing.Removals, 'intend')",
    "before a key is destroyed": "Keystore.destroy = die",
    "some keys are destroyed": "die_after(Keystore, 'destroy', 2)",
    "all keys are destroyed": "die_after(emptying.Emptier, '_destroy_keys')",
    "inside the transaction that records it": "die_after(committing.Writer, 'record_inside')",
    "it is recorded": "die_after(emptying.Emptier, '_record_removal')",
    "a block is gone": "die_after(emptying.Emptier, '_remove_block')",
    "inside the second block": "die_after(emptying, '_delete', 2)",
    "the events are gone": "die_after(emptying.Emptier, '_remove_block', 3)",
    "the rows are gone": "die_after(emptying.Emptier, 'empty')",
    "a file is overwritten": "die_after(files, 'destroy')",
    "one place of two is done": "die_after(mirror.Mirror, 'remove')",
    "before the intent is forgotten": "erasing.Eraser.settle = die",
}


@pytest.mark.parametrize("step", STEPS)
def test_the_next_open_finishes_what_a_kill_left(log, clock, tmp_path, step):
    """After kill -9 at each step nothing false is claimed; one open for writing completes the removal."""
    session = log.session("s")
    fill(session)
    close(session)
    log.session("other").message("kept", agent="a")
    out = tmp_path / "out"
    log.export_to(out)
    clock.advance(31 * DAY)
    log.set_policy(OLD, by="ops")
    log.close()
    done = run(DYING.replace("{step}", STEPS[step]), log.path, clock.now, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with ConversationLog.open(log.path, read_only=True) as half:
        assert [finding for finding in half.verify() if finding.rule != "mirror-behind"] == []
        with pytest.raises(SessionRemoved):
            half.session("s")
        assert half.session("other").tail(1)[0].body == "kept"
    with ConversationLog.open(log.path, clock=clock) as whole:
        assert count(whole, "SELECT count(*) FROM intent") == 0
        assert {table: count(whole, statement) for table, statement in ROWS.items()} == dict.fromkeys(ROWS, 0)
        assert count(whole, ENVELOPES + " AND bytes <> x''") == 0
        assert list(whole.verify()) == []
        assert [found.id for found in whole.removed_sessions()] == ["s"]
        assert len(whole.session("_store").tail(9, kind="session-removed")) == 1
        assert whole.apply_retention(by="ops").removed == {}
        assert b"".join(whole.lines("_store")) == whole.mirror.path("_store").read_bytes()
    for root in (log.path / "sessions", out):
        assert not (root / "s").exists()
    assert residue(tmp_path) == []


def test_appenders_and_retention_at_once(log):
    """Two processes append to sessions and close them, two remove what is closed: nothing acknowledged is lost."""
    writer = """
        import json, sys
        from convlog_sqlite import ConversationLog, SessionRemoved
        acknowledged = {}
        with ConversationLog.open(sys.argv[1], durability="normal") as log:
            for number in range(30):
                name = f"s{number}"
                try:
                    session = log.session(name)
                    for n in range(6):
                        event = session.message(f"{n}", agent=sys.argv[2])
                        acknowledged.setdefault(name, []).append(event.id)
                        event = session.mutation("session-closed", agent=sys.argv[2])
                        acknowledged[name].append(event.id)
                except SessionRemoved:
                    pass
        print(json.dumps(acknowledged))
        """
    remover = """
        import sys, time
        from convlog_sqlite import ConversationLog
        removed = []
        with ConversationLog.open(sys.argv[1], clock=lambda: time.time_ns() + 86_400 * 10**9) as log:
            print("ready", flush=True)
            end = time.monotonic() + 60
            while len(log.removed_sessions()) < 30 and time.monotonic() < end:
                removed += log.apply_retention(by="ops").removed
        print(*removed)
        """
    log.set_policy(RetentionPolicy(id="now", target="envelope", max_age="1m"), by="ops")
    start = [sys.executable, "-c"]
    removers = [
        subprocess.Popen([*start, textwrap.dedent(remover), log.path], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in removers:
        assert process.stdout.readline() == "ready\n"
    writers = [
        subprocess.Popen([*start, textwrap.dedent(writer), log.path, name], stdout=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    said = [json.loads(process.communicate(timeout=120)[0]) for process in writers]
    names = [process.communicate(timeout=120)[0].split() for process in removers]
    assert [process.returncode for process in (*writers, *removers)] == [0] * 4
    assert sorted(names[0] + names[1]) == sorted(f"s{number}" for number in range(30))  # each removed once
    for found in log.removed_sessions():
        acknowledged = sum(len(one.get(found.id, ())) for one in said)
        assert found.events == acknowledged + 1  # and its opening
    assert len(log.session("_store").tail(99, kind="session-removed")) == 30
    assert list(log.verify()) == []
    assert [path.name for path in (log.path / "sessions").iterdir()] == ["_store"]


def test_a_file_of_somebody_else_beside_the_mirror_stays(log, clock):
    """The directory of a removed session goes unless there is more in it than convlog put there."""
    session = log.session("s")
    close(session)
    note = log.mirror.path("s").with_name("note.txt")
    note.write_text("mine")
    clock.advance(31 * DAY)
    log.set_policy(OLD, by="ops")
    assert log.apply_retention(by="ops").complete
    assert [path.name for path in note.parent.iterdir()] == ["note.txt"]


def test_an_appender_that_comes_late_leaves_no_file(log, clock):
    """Who appended before the session was removed, and mirrors after, makes no file of it again."""
    session = log.session("s")
    close(session)
    clock.advance(31 * DAY)
    log.set_policy(OLD, by="ops")
    log.apply_retention(by="ops")
    log.mirror.after_append("s")
    assert log.mirror.problem is None
    assert not (log.path / "sessions" / "s").exists()


def test_explain_tells_of_the_session(log, clock):
    """The line of an event says what becomes of its session too, at every stage."""
    session = log.session("s")
    event = session.message("x", agent="a")
    assert "session" not in log.explain(event.id)
    log.set_policy(OLD, by="ops")
    assert "removed once it is closed, after max_age 30d of policy old@1" in log.explain(event.id)
    call = session.tool_call("x", {}, agent="a")
    close(session)
    assert "its session is closed, and removed when retention is applied after 2026-02-01" in log.explain(
        event.id
    )
    clock.advance(31 * DAY)
    assert "due to be removed, and kept by a call without a result" in log.explain(event.id)
    session.tool_result(call, None, agent="a")
    close(session)
    clock.advance(31 * DAY)
    assert "its session is removed when retention is next applied: due since" in log.explain(event.id)


def test_a_step_that_fails_leaves_it_pending(log, clock, monkeypatch):
    """The error is raised, nothing is claimed, and the next call finishes it."""
    session = log.session("s")
    fill(session)
    close(session)
    clock.advance(31 * DAY)
    log.set_policy(OLD, by="ops")
    with monkeypatch.context() as patch:

        def fail(*_):
            raise StoreFull(log.path)

        patch.setattr(emptying, "_delete", fail)
        with pytest.raises(StoreFull):
            log.apply_retention(by="ops")
    assert count(log, "SELECT count(*) FROM intent") == 1
    assert [finding for finding in log.verify() if finding.severity == "fault"] == []
    assert log.apply_retention(by="ops").complete
    assert count(log, "SELECT count(*) FROM intent") == 0
    assert list(log.verify()) == []
