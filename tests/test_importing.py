"""Importing transcripts: all of it arrives, once, with figures that can be checked against the files."""

import base64
import json
import subprocess
import sys
import textwrap

import pytest

from convlog_sqlite import ConversationLog, ImportFailed, InvalidEvent, import_transcripts

FIGURES = ("lines", "bad_lines", "tool_calls", "tool_results", "unanswered_calls", "orphan_results")
SESSION = "0b1f3c5e-0000-4000-8000-000000000001"


def manifest(samples):
    """The rows of the manifest that are about Claude Code transcripts which are there."""
    rows = [json.loads(line) for line in (samples / "MANIFEST.jsonl").read_text().splitlines()]
    return [row for row in rows if row["file"].startswith("claude-code/") and row["file"].endswith(".jsonl")]


def record(number, kind="user", content=None, session=SESSION, **more):
    """One line of a transcript."""
    return (
        json.dumps(
            {
                "type": kind,
                "uuid": f"00000000-0000-4000-8000-{number:012x}",
                "parentUuid": f"00000000-0000-4000-8000-{number - 1:012x}" if number > 1 else None,
                "sessionId": session,
                "timestamp": "2026-01-01T00:00:00Z",
                "message": {"role": kind, "content": content if content is not None else f"message {number}"},
                **more,
            }
        )
        + "\n"
    )


@pytest.fixture
def transcript(tmp_path):
    """A transcript of five records: asked, called, answered, a result without call, said."""
    path = tmp_path / "project" / f"{SESSION}.jsonl"
    path.parent.mkdir()
    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "files"}
    orphan = {"type": "tool_result", "tool_use_id": "toolu_none", "content": "from nowhere"}
    path.write_text(
        record(1)
        + record(2, "assistant", [call])
        + record(3, "user", [result])
        + record(4, "user", [orphan])
        + record(5, "assistant", [{"type": "text", "text": "done"}]),
    )
    return path


class TestSamples:
    def test_each_file_in_a_store_of_its_own(self, samples, tmp_path):
        """The figures of every file are those of the manifest, and a second import writes nothing."""
        rows = manifest(samples)
        assert len(rows) > 20
        for number, row in enumerate(rows):
            with ConversationLog.open(tmp_path / f"{number}", durability="normal") as log:
                once = import_transcripts(log, "claude-code", [samples / row["file"]])
                pos = log.anchor().pos
                again = import_transcripts(log, "claude-code", [samples / row["file"]])
                assert once.refused == again.refused == 0, (row["file"], once.refusals)
                assert again.new == 0, row["file"]
                assert again.already + again.copied == once.new + once.already + once.copied
                assert log.anchor().pos == pos
                assert list(log.verify()) == [], row["file"]
                if once.counts["files"] == 1:
                    figures = {key: once.counts[key] for key in FIGURES}
                    assert figures == {key: row[key] for key in FIGURES}, row["file"]
                    calls = row["tool_calls"] + once.counts["calls_without_id"]
                    results = row["tool_results"] + once.counts["results_without_id"]
                    assert recorded(log) == (calls, results), row["file"]

    def test_all_of_them_in_one_store(self, samples, log):
        """Sessions that share records (resumed, forked, copied) make no record twice; the totals are the manifest's."""
        once = import_transcripts(log, "claude-code", [samples / row["file"] for row in manifest(samples)])
        assert once.refused == 0, once.refusals
        files = {row["file"]: row for row in manifest(samples)}
        assert once.counts["files"] == len(files)
        for key in FIGURES[:2]:
            assert once.counts[key] == sum(row[key] for row in files.values()), key
        head = log.anchor().pos
        again = import_transcripts(log, "claude-code", [samples / row["file"] for row in manifest(samples)])
        assert (again.new, again.already + again.copied) == (0, once.new + once.already + once.copied)
        assert log.anchor().pos == head
        assert sum(once.sessions.values()) == once.new
        assert list(log.verify()) == []
        for name in log.reader.session_ids():
            assert log.mirror.path(name).read_bytes() == b"".join(log.lines(name))

    def test_raw_keeps_every_record_byte_for_byte(self, samples, log):
        """With `raw`, each record's line is there as a sealed attachment, untouched."""
        row = max(manifest(samples), key=lambda row: row["lines"] if row["bytes"] < 1 << 20 else 0)
        report = import_transcripts(log, "claude-code", [samples / row["file"]], raw=True)
        kept = set()
        for name in report.sessions:
            session = log.session(name)
            for event in session.follow(0, timeout=0):
                for index, item in enumerate(event.attachments):
                    if item["media_type"] == "application/json":
                        kept.add(session.attachment(event, index))
        lines = {line.strip() for line in (samples / row["file"]).read_bytes().split(b"\n") if line.strip()}
        assert len(lines - kept) <= row["bad_lines"]
        assert kept <= lines
        assert list(log.verify()) == []


def recorded(log):
    """(calls, results) that the log holds."""
    types = [json.loads(line)["type"] for line in log.lines()]
    return types.count("tool_call"), types.count("tool_result")


class TestOne:
    def test_what_becomes_of_it(self, log, transcript):
        """Calls and results are paired, parents are linked, orphans are marked, and the report says all that."""
        report = import_transcripts(log, "claude-code", [transcript])
        assert (report.new, report.already, report.copied, report.refused) == (5, 0, 0, 0)
        assert (report.orphans, report.unresolved_parents) == (1, 0)
        assert report.sessions == {SESSION: 5}
        asked, call, result, orphan, said = log.session(SESSION).tail(5)
        assert (call.type, call.tool, call.parent_id) == ("tool_call", "Bash", asked.id)
        assert (result.call_id, result.parent_id) == (call.id, call.id)
        assert orphan.call_id is None
        assert orphan.meta["orphan"] is True
        assert said.body == "done"
        assert said.source == {
            "harness": "claude-code",
            "native_id": "00000000-0000-4000-8000-000000000005#0",
            "at": "2026-01-01T00:00:00.000000Z",
        }
        assert log.session(SESSION).open_calls() == []
        assert list(log.verify()) == []

    def test_a_grown_transcript_adds_what_is_new(self, log, transcript):
        """The second import takes the new records and links them to what is there."""
        import_transcripts(log, "claude-code", [transcript])
        with transcript.open("a") as file:
            file.write(record(6) + record(7, "assistant"))
        report = import_transcripts(log, "claude-code", [transcript])
        assert (report.new, report.already) == (2, 5)
        last, newest = log.session(SESSION).tail(2)
        assert newest.parent_id == last.id
        assert last.parent_id == log.session(SESSION).event(6).id

    def test_a_copied_record_stays_where_it_is(self, log, transcript, tmp_path):
        """A session resumed elsewhere repeats records: they are counted as copied, new ones go to the new session."""
        import_transcripts(log, "claude-code", [transcript])
        other = SESSION.replace("1", "2")
        resumed = tmp_path / f"{other}.jsonl"
        resumed.write_text(transcript.read_text() + record(6, session=other))
        report = import_transcripts(log, "claude-code", [resumed])
        assert (report.new, report.copied) == (1, 5)
        (opened, new) = log.session(other).tail(5)
        assert opened.kind == "session-opened"
        assert log.event(new.parent_id).session == SESSION

    def test_a_parent_that_is_not_there_is_marked(self, log, transcript):
        """An unknown parent is kept in meta, not invented."""
        transcript.write_text(record(9))
        report = import_transcripts(log, "claude-code", [transcript])
        assert report.unresolved_parents == 1
        assert log.session(SESSION).tail(1)[0].parent_id is None
        assert "unresolved_parent" in log.session(SESSION).tail(1)[0].meta

    def test_a_dry_run_writes_nothing(self, log, transcript):
        """With a log or without, the report says what would come."""
        before = log.anchor().pos
        for where in (log, None):
            report = import_transcripts(where, "claude-code", [transcript], dry_run=True)
            assert (report.new, report.dry_run) == (5, True)
        assert log.anchor().pos == before
        assert [one.id for one in log.sessions()] == ["_store"]

    def test_two_imports_at_once(self, store_path, transcript):
        """Two processes that import the same file write each event once."""
        transcript.write_text("".join(record(n, "user" if n % 2 else "assistant") for n in range(1, 1500)))
        program = """
            import sys
            from convlog_sqlite import ConversationLog, import_transcripts
            with ConversationLog.open(sys.argv[1], durability="normal") as log:
                sys.stdin.readline()
                report = import_transcripts(log, "claude-code", [sys.argv[2]])
                print(report.new, report.already, report.refused)
            """
        ConversationLog.open(store_path).close()
        both = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(program), str(store_path), str(transcript)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for one in both:
            one.stdin.write("go\n")
            one.stdin.flush()
        said = [tuple(map(int, one.communicate(timeout=60)[0].split())) for one in both]
        assert sum(new for new, _, _ in said) == 1499
        assert [new + already for new, already, _ in said] == [1499, 1499]
        assert [refused for _, _, refused in said] == [0, 0]
        with ConversationLog.open(store_path) as log:
            assert [event.seq for event in log.session(SESSION).follow(0, timeout=0)] == list(range(1, 1501))
            assert list(log.verify()) == []

    def test_raw_and_images(self, log, transcript):
        """An image is an attachment; with `raw` the line is one more."""
        image = base64.b64encode(b"\x89PNG image").decode()
        block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}
        line = record(1, "user", [{"type": "text", "text": "look"}, block])
        transcript.write_text(line)
        import_transcripts(log, "claude-code", [transcript], raw=True)
        session = log.session(SESSION)
        contents = [
            (item["media_type"], session.attachment(event, index))
            for event in session.tail(5)
            for index, item in enumerate(event.attachments)
        ]
        assert ("image/png", b"\x89PNG image") in contents
        assert line.strip().encode() in [content for _, content in contents]

    def test_progress_is_told(self, log, transcript):
        """The callback gets what is done and what there is, and at last all of it."""
        told = []
        import_transcripts(
            log,
            "claude-code",
            [transcript],
            progress=lambda done, total, report: told.append((done, total, report.new)),
        )
        assert told[-1] == (1, 1, 5)

    def test_what_cannot_be_imported_says_so(self, log, transcript, tmp_path):
        """An unknown harness, a missing path, a session that no file has."""
        with pytest.raises(InvalidEvent):
            import_transcripts(log, "unknown", [transcript])
        with pytest.raises(ImportFailed):
            import_transcripts(log, "claude-code", [tmp_path / "missing"])
        with pytest.raises(ImportFailed):
            import_transcripts(log, "claude-code", [transcript], session="another")

    def test_garbage_is_counted_and_harms_nothing(self, log, transcript):
        """Broken lines between sound ones: the sound ones arrive, the broken ones are named with their line."""
        transcript.write_bytes(
            record(1).encode()
            + b"{broken\n"
            + b"\xff\xfe\n"
            + b"[1]\n"
            + b"\n"
            + record(2, "assistant").encode()
            + b'{"cut'
        )
        report = import_transcripts(log, "claude-code", [transcript])
        assert report.refused == 0
        assert {event.body for event in log.session(SESSION).tail(20, type="message")} >= {
            "message 1",
            "message 2",
        }
        assert report.counts["bad_lines"] == 3
        assert report.counts["non_objects"] == 1
        assert list(log.verify()) == []


def usage_line(number, message, figures):
    """A record of an answer with these figures, as written: they need not be JSON that anybody would write."""
    line = record(number, "assistant", [{"type": "text", "text": f"answer {number}"}])
    line = line.replace(
        '"role": "assistant"', f'"id": "{message}", "usage": {{{figures}}}, "role": "assistant"'
    )
    assert figures in line
    return line


class TestAbsurd:
    """Figures that no harness writes: what cannot be recorded is left out, and every event arrives."""

    @pytest.mark.parametrize(
        "before_and_after",
        [
            ('"a": NaN, "b": 1e400, "c": 18446744073709551616, "d": -1', '"a": 5, "b": 1e308, "c": 1'),
            ('"c": -9223372036854775808', '"c": 18446744073709551615'),
            ('"c": -9007199254740991', '"c": 9007199254740991'),
            ('"f": -1.7e308', '"f": 1.7e308'),
            ('"f": 0e99999999999999999999', '"f": 1e-99999999999999999999'),
            ('"f": "many", "g": [1], "h": {"i": null}', '"f": 1, "g": 2, "h": {"i": 3}'),
        ],
    )
    def test_absurd_usage_is_no_news(self, log, transcript, before_and_after):
        """Whatever the figures of an answer that is reported twice, both records arrive and none is refused."""
        before, after = before_and_after
        transcript.write_text(usage_line(1, "m", before) + usage_line(2, "m", after) + record(3))
        report = import_transcripts(log, "claude-code", [transcript])
        assert (0, 3) == (report.refused, report.new), report.refusals
        assert ["answer 1", "answer 2", "message 3"] == [event.body for event in log.session(SESSION).tail(3)]
        assert list(log.verify()) == []

    @pytest.mark.parametrize(
        "number",
        [
            "0e99999999999999999999",
            "0.0e-99999999999999999999",
            "1e99999999999999999999",
            "-1e-99999999999999999999",
        ],
    )
    def test_an_exponent_that_no_decimal_holds(self, log, transcript, number):
        """A number whose exponent is beyond every type is kept as text or left out, and the transcript goes on."""
        call = record(
            1, "assistant", [{"type": "tool_use", "id": "t", "name": "Bash", "input": {"n": "HERE"}}]
        )
        transcript.write_text(call.replace('"HERE"', number) + record(2))
        report = import_transcripts(log, "claude-code", [transcript])
        assert (0, 2, 0) == (report.refused, report.new, report.counts["bad_lines"])
        assert list(log.verify()) == []

    def test_a_refused_call_does_not_take_its_result_with_it(self, log, transcript, monkeypatch):
        """When the log refuses a call, its result and its children are recorded, marked as without it."""
        monkeypatch.setattr("convlog_sqlite.store.preparing.MAX_EVENT", 4096)
        once = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "x" * 8192}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "files"}
        transcript.write_text(
            record(1) + record(2, "assistant", [once]) + record(3, "user", [result]) + record(4, "assistant")
        )
        report = import_transcripts(log, "claude-code", [transcript])
        assert (1, 3, 1) == (report.refused, report.new, report.orphans), report.refusals
        asked, answer, said = log.session(SESSION).tail(3)
        assert ["message 1", "files", "message 4"] == [asked.body, answer.result, said.body]
        assert answer.call_id is None
        assert answer.meta["orphan"] is True
        assert said.parent_id == answer.id
        assert list(log.verify()) == []
        again = import_transcripts(log, "claude-code", [transcript])
        assert (0, 3) == (again.new, again.already)


def test_memory_does_not_grow_with_the_file(tmp_path):
    """A file fifteen times as long takes about as much memory."""
    program = """
        import resource, sys
        from convlog_sqlite import ConversationLog, import_transcripts
        with ConversationLog.init(sys.argv[1], mirror=False) as log:
            import_transcripts(log, "claude-code", [sys.argv[2]])
            print(log.anchor().pos, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        """
    peak = []
    for count in (400, 6000):
        path = tmp_path / f"{count}" / f"{SESSION}.jsonl"
        path.parent.mkdir()
        with path.open("w") as file:
            for number in range(1, count + 1):
                file.write(record(number, "user" if number % 2 else "assistant", f"{number} " * 1000))
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / f"store-{count}"), str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        events, most = map(int, done.stdout.split())
        assert events > count
        peak.append(most)
    unit = 1 if sys.platform == "linux" else 1024
    assert (peak[1] - peak[0]) / unit < 24 * 1024, "kilobytes"
