"""The Claude Code importer: figures of real transcripts, and one small input for each rule."""

import base64
import json
import os
import tracemalloc
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from convlog_sqlite.adapters.claude_code import ImportCounts, Transcript, find, memory, read, session_id
from convlog_sqlite.drafts import ForeignDraft, check_session_id, validate
from convlog_sqlite.errors import ImportFailed
from convlog_sqlite.vocabulary import MAX_EVENT

SESSION = "0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f"
PNG = base64.b64encode(b"\x89PNG not really").decode()


def uuid(number: int) -> str:
    """A real uuid for record `number`."""
    return f"00000000-0000-4000-8000-{number:012d}"


def record(number: int, parent: int | None = None, **keys: Any) -> dict[str, Any]:
    """A chain record under record `parent`."""
    base = {
        "uuid": uuid(number),
        "parentUuid": None if parent is None else uuid(parent),
        "sessionId": SESSION,
    }
    return base | {"timestamp": "2026-01-05T14:30:36.152Z"} | keys


def user(number: int, content: Any, parent: int | None = None, **keys: Any) -> dict[str, Any]:
    """A user record."""
    return record(number, parent, type="user", message={"role": "user", "content": content}, **keys)


def assistant(number: int, *blocks: Any, parent: int | None = None, **keys: Any) -> dict[str, Any]:
    """An assistant record of the response msg_1, unless `message` says otherwise."""
    message = {"id": "msg_1", "model": "claude-x", "content": list(blocks)} | keys.pop("message", {})
    return record(number, parent, type="assistant", message=message, **keys)


def call(given: str | None, name: str = "Bash", **args: Any) -> dict[str, Any]:
    """A tool_use block with the id `given`."""
    block = {"type": "tool_use", "name": name, "input": args}
    return block if given is None else block | {"id": given}


def result(given: str, content: Any = "done", **keys: Any) -> dict[str, Any]:
    """A tool_result block for the call `given`."""
    return {"type": "tool_result", "tool_use_id": given, "content": content} | keys


def write(path: Path, records: Iterable[dict[str, Any] | bytes]) -> Path:
    """Write records as lines, and bytes as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n" for item in records)
    path.write_bytes(b"".join(lines))
    return path


class Reading(list[ForeignDraft]):
    """The drafts of one read, and its figures."""

    counts: ImportCounts

    def bodies(self) -> list[str]:
        return [item.draft.body for item in self if isinstance(item.draft.body, str)]


def drafts(transcript: Transcript, *, raw: bool = False) -> Reading:
    """Read a transcript; every draft must be one that the log accepts, under a key of its own."""
    counts = ImportCounts()
    found = Reading(read(transcript, raw=raw, counts=counts))
    found.counts = counts
    for item in found:
        validate(item.draft)
    assert len({item.key for item in found}) == len(found)
    assert counts.events == len(found)
    return found


def reading(tmp_path: Path, *records: dict[str, Any] | bytes, raw: bool = False) -> Reading:
    """Write and read a main transcript."""
    return drafts(Transcript(SESSION, write(tmp_path / f"{SESSION}.jsonl", records)), raw=raw)


class TestSamples:
    def test_every_figure_of_the_manifest_is_reproduced(self, samples: Path):
        """The counts of each real transcript are those that were taken independently, raw or not."""
        rows = [json.loads(line) for line in (samples / "MANIFEST.jsonl").read_text().splitlines()]
        wanted = [row for row in rows if row["file"].startswith("claude-code/") and "lines" in row]
        assert len(wanted) > 40
        figures = (
            "lines", "bad_lines", "tool_calls", "tool_results", "unanswered_calls", "orphan_results", "dup_uuids"
        )  # fmt: skip
        for row in wanted:
            for raw in (False, True):
                counts = drafts(Transcript("s", samples / row["file"]), raw=raw).counts.to_dict()
                assert {key: counts[key] for key in figures} == {key: row[key] for key in figures}, row[
                    "file"
                ]
                assert counts["kinds"] == row["types"], row["file"]

    def test_a_file_of_edge_lines_is_read_to_the_end(self, samples: Path):
        """Each damaged line is named with its number and what became of it; the records around it are taken."""
        found = drafts(Transcript("s", samples / "synthetic" / "edge_lines.jsonl"))
        assert (found.counts.lines, found.counts.bad_lines, found.counts.blank_lines) == (16, 4, 2)
        outcomes = {problem.line: problem.outcome for problem in found.counts.problems}
        assert outcomes == {
            5: "recovered", 10: "recovered", 11: "skipped", 14: "skipped", 18: "left for the next run"
        }  # fmt: skip
        assert {"a", "b", "lone \ufffd surrogate"} <= set(found.bodies())

    def test_parents_and_calls_in_real_transcripts_resolve(self, samples: Path):
        """In whole sessions every parent is an earlier event, but for the few the harness itself lost."""
        for path in sorted((samples / "claude-code" / "entire").glob("*.jsonl")):
            known: set[str] = set()
            missing = 0
            for item in drafts(Transcript("s", path)):
                missing += item.parent_key is not None and item.parent_key not in known
                assert item.call_key is None or item.call_key in known
                known.add(item.key)
            assert missing <= 1, path.name


class TestLines:
    def test_an_unreadable_last_line_waits_for_the_next_run(self, tmp_path):
        """A last line without newline that cannot be read is left; once it is whole, it is taken."""
        whole = json.dumps(user(2, "second")).encode()
        first = reading(tmp_path, user(1, "first"), whole[:-9])
        assert first.bodies() == ["first"]
        assert (first.counts.truncated_lines, first.counts.damaged_lines) == (1, 0)
        second = reading(tmp_path, user(1, "first"), whole)
        assert second.bodies() == ["first", "second"]
        assert second[0].key == first[0].key

    def test_glued_objects_are_taken_apart(self, tmp_path):
        """Two objects on one line are two records; what is damaged behind them is not taken."""
        one, two = (json.dumps(user(number, str(number))).encode() for number in (1, 2))
        found = reading(tmp_path, one + two + b"\n", one.replace(b"0001", b"0003") + b'{"x\n')
        assert found.bodies() == ["1", "2", "1"]
        assert (found.counts.recovered_lines, found.counts.bad_lines) == (2, 2)

    def test_damage_is_skipped_and_named(self, tmp_path):
        """Noise, NULs, non-objects and bottomless nesting never stop the import."""
        deep = b'{"type":"user","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
        found = reading(
            tmp_path,
            b"\xef\xbb\xbf",
            user(1, "a"),
            b"{noise\n",
            b"\0\0\0\n",
            b"[1]\n",
            deep,
            b"\0\0",
            user(2, "b"),
        )
        assert found.bodies() == ["a", "b"]
        assert [(problem.line, problem.outcome) for problem in found.counts.problems] == [
            (2, "skipped"), (3, "skipped"), (4, "skipped"), (5, "skipped"), (6, "recovered")
        ]  # fmt: skip
        assert found.counts.non_objects == 1

    def test_values_the_log_refuses_are_altered_and_counted(self, tmp_path):
        """Lone surrogates, NaN, infinities, huge numbers, bad bytes and deep nesting become what can be kept."""
        line = (
            b'{"type":"odd","a":"\\ud83d","b":NaN,"c":-Infinity,"d":12345678901234567890123,"e":1e400,'
            b'"f":"\xff","\\udc00":1,"g":' + b"[" * 300 + b"]" * 300 + b"}\n"
        )
        found = reading(tmp_path, line)
        value = found[0].draft.value
        assert value["a"] == value["f"] == "\ufffd"
        assert value["\ufffd"] == 1
        assert (value["b"], value["c"], value["d"], value["e"]) == (
            "NaN", "-Infinity", "12345678901234567890123", "1e400"
        )  # fmt: skip
        assert found.counts.altered == 8

    def test_an_event_that_is_too_large_moves_to_an_attachment(self, tmp_path):
        """A text over the limit of one event is kept whole as an attachment, its head as body."""
        text = "ä" * (MAX_EVENT // 2 + 10)
        found = reading(tmp_path, user(1, text))
        draft = found[0].draft
        assert draft.attachments[0].content == text.encode()
        assert isinstance(draft.body, str)
        assert len(draft.body) < 4096
        assert found.counts.altered == 1

    def test_a_missing_file_is_an_error_with_its_name(self, tmp_path):
        """What cannot be opened is an ImportFailed that names the file."""
        with pytest.raises(ImportFailed) as caught:
            list(read(Transcript("s", tmp_path / "none.jsonl")))
        assert caught.value.file == str(tmp_path / "none.jsonl")
        with pytest.raises(ImportFailed):
            find([tmp_path / "none"])


class TestIdentity:
    def test_keys_and_native_ids_come_from_the_uuid(self, tmp_path):
        """Block n of a record has the key and native id `uuid#n` and the block before it as parent."""
        found = reading(
            tmp_path, user(1, "hi"), assistant(2, {"type": "text", "text": "a"}, call("t"), parent=1)
        )
        assert [item.key for item in found] == [f"{uuid(1)}#0", f"{uuid(2)}#0", f"{uuid(2)}#1"]
        assert [item.parent_key for item in found] == [None, f"{uuid(1)}#0", f"{uuid(2)}#0"]
        assert found[0].draft.source == {
            "harness": "claude-code", "at": "2026-01-05T14:30:36.152000Z", "native_id": f"{uuid(1)}#0"
        }  # fmt: skip

    def test_the_parent_is_the_last_event_of_the_parent_record(self, tmp_path):
        """A record that gave several events is continued from its last one."""
        found = reading(tmp_path, assistant(1, {"type": "text", "text": "a"}, call("t")), user(2, "b", 1))
        assert found[2].parent_key == f"{uuid(1)}#1"

    def test_records_without_uuid_have_keys_but_no_native_id(self, tmp_path):
        """Equal side records are told apart by their number, and nothing made of content is a native id."""
        mode = {"type": "mode", "mode": "plan", "sessionId": SESSION}
        found = reading(
            tmp_path, mode, mode, {"type": "user", "uuid": "not an id", "message": {"content": "x"}}
        )
        assert [item.draft.source for item in found] == [{"harness": "claude-code"}] * 3
        again = reading(tmp_path, mode, mode, mode)
        assert [item.key for item in again][:2] == [item.key for item in found][:2]

    def test_a_made_up_uuid_is_unique_in_its_session_only(self, tmp_path):
        """Hand-written ids such as u1 do not meet across sessions."""
        path = write(tmp_path / "x.jsonl", [{"type": "user", "uuid": "u1", "message": {"content": "x"}}])
        assert drafts(Transcript("a", path))[0].key != drafts(Transcript("b", path))[0].key

    def test_the_first_of_equal_uuids_counts(self, tmp_path):
        """An echo is dropped and counted; one with other bytes is counted as differing too."""
        found = reading(tmp_path, user(1, "a"), user(1, "a"), user(1, "b"), user(2, "c", 1))
        assert found.bodies() == ["a", "c"]
        counts = found.counts
        assert (counts.dup_uuids, counts.duplicates, counts.differing_duplicates) == (1, 2, 1)

    def test_reading_again_gives_the_same(self, tmp_path):
        """The same bytes give equal drafts and keys, and a grown file begins with the same ones."""
        records = [user(1, "a"), assistant(2, call("t"), parent=1), {"type": "mode", "mode": "x"}]
        first = reading(tmp_path, *records)
        assert list(reading(tmp_path, *records)) == list(first)
        grown = reading(tmp_path, *records, user(3, [result("t")], 2))
        assert list(grown)[: len(first)] == list(first)


class TestPairs:
    def test_a_result_names_its_call(self, tmp_path):
        """A result has its call as parent and call, its tool, author and correlation, wherever it stands."""
        found = reading(
            tmp_path,
            assistant(1, call("t1", "Read", file_path="x")),
            assistant(2, call("t2"), parent=1),
            user(3, [result("t1", is_error=True)], 2),
        )
        answer = found[2]
        assert answer.call_key == answer.parent_key == f"{uuid(1)}#0"
        assert (answer.draft.tool, answer.draft.agent, answer.draft.correlation_id) == (
            "Read",
            "assistant",
            "msg_1",
        )
        assert (answer.draft.status, answer.draft.performative) == ("error", "failure")
        assert (found.counts.unanswered_calls, found.counts.orphan_results) == (1, 0)

    def test_an_orphan_and_a_second_result_have_no_call(self, tmp_path):
        """A result without a call, or of a call that was answered, is kept without a call."""
        found = reading(
            tmp_path,
            user(1, [result("gone")]),
            assistant(2, call("t")),
            user(3, [result("t")]),
            user(4, [result("t")]),
        )
        assert [item.call_key for item in found] == [None, None, f"{uuid(2)}#0", None]
        assert found[3].parent_key == f"{uuid(2)}#0"
        assert found[3].draft.meta["repeated"] is True
        assert (found.counts.orphan_results, found.counts.tool_results) == (1, 2)

    def test_calls_without_an_id_are_counted_apart(self, tmp_path):
        """A call without id is an event, but no pair can be made of it."""
        found = reading(tmp_path, assistant(1, call(None)))
        assert found[0].draft.tool == "Bash"
        assert (found.counts.tool_calls, found.counts.calls_without_id, found.counts.unanswered_calls) == (
            0,
            1,
            0,
        )

    @pytest.mark.parametrize(
        ("block", "keys", "status", "performative"),
        [
            ({}, {}, "ok", "inform"),
            ({"is_error": True}, {"toolDenialKind": "user-rejected"}, "denied", "refuse"),
            (
                {"is_error": True, "content": "The user doesn't want to proceed with this tool use. …"},
                {}, "denied", "refuse",
            ),
            ({}, {"toolUseResult": {"stdout": "", "interrupted": True}}, "interrupted", "failure"),
        ],
    )  # fmt: skip
    def test_how_a_call_ended(self, tmp_path, block, keys, status, performative):
        """Denied and interrupted are told from failed."""
        found = reading(tmp_path, assistant(1, call("t")), user(2, [result("t", **block)], **keys))
        assert (found[1].draft.status, found[1].draft.performative) == (status, performative)

    def test_notes_beside_a_result_lose_what_it_says(self, tmp_path):
        """The harness's notes keep what is new, without the text of the result and whole old files."""
        text = "x" * 100
        notes = {
            "stdout": text,
            "stderr": "warn",
            "originalFile": text * 9,
            "structuredPatch": [{"lines": 1}],
        }
        found = reading(tmp_path, assistant(1, call("t")), user(2, [result("t", text)], toolUseResult=notes))
        assert found[1].draft.meta["toolUseResult"] == {"stderr": "warn", "structuredPatch": [{"lines": 1}]}

    def test_a_hook_message_hangs_on_its_call(self, tmp_path):
        """What a hook said about a call is a harness message under that call; a blocking hook refuses."""
        hook = {
            "type": "hook_blocking_error",
            "toolUseID": "t",
            "hookName": "PreToolUse:Bash",
            "stderr": "no",
        }
        found = reading(tmp_path, assistant(1, call("t")), record(2, 1, type="attachment", attachment=hook))
        assert found[1].parent_key == f"{uuid(1)}#0"
        draft = found[1].draft
        assert (draft.agent, draft.performative, draft.body) == ("harness", "refuse", "no")


class TestChain:
    def test_children_of_progress_hang_on_what_was_kept(self, tmp_path):
        """Progress is dropped, however long its chain, and its children get the nearest kept ancestor."""
        progress = [record(n, n - 1, type="progress", data={"type": "bash_progress"}) for n in (2, 3)]
        records = [user(1, "a"), *progress, user(4, "b", 3)]
        found = reading(tmp_path, *records)
        assert [item.parent_key for item in found] == [None, f"{uuid(1)}#0"]
        assert found.counts.dropped == 2
        kept = reading(tmp_path, *records, raw=True)
        assert [item.draft.kind for item in kept] == [None, "claude-progress", "claude-progress", None]
        assert kept[3].parent_key == f"{uuid(3)}#0"

    def test_a_compaction_follows_its_logical_parent(self, tmp_path):
        """A compact boundary is a context-compacted mutation under the record before it; its summary a message."""
        found = reading(
            tmp_path,
            user(1, "a"),
            record(
                2,
                type="system",
                subtype="compact_boundary",
                logicalParentUuid=uuid(1),
                compactMetadata={"a": 1},
            ),
            user(3, "So far: …", 2, isCompactSummary=True),
        )
        assert (found[1].draft.kind, found[1].parent_key) == ("context-compacted", f"{uuid(1)}#0")
        assert found[1].draft.value == {"subtype": "compact_boundary", "compactMetadata": {"a": 1}}
        assert (found[2].draft.agent, found[2].draft.meta["isCompactSummary"]) == ("harness", True)

    def test_a_record_that_is_its_own_parent_has_none(self, tmp_path):
        """A self-reference is no parent."""
        assert reading(tmp_path, user(1, "a", 1))[0].parent_key is None


class TestAuthors:
    @pytest.mark.parametrize(
        ("text", "keys", "agent", "performative"),
        [
            ("do it", {}, "user", "request"),
            ("do it", {"promptSource": "typed", "promptId": "p1"}, "user", "request"),
            ("do it", {"isMeta": True}, "harness", "inform"),
            ("do it", {"origin": {"kind": "task-notification"}}, "harness", "inform"),
            ("<system-reminder>x</system-reminder>", {}, "harness", "inform"),
            ("<command-name>/model</command-name>", {}, "harness", "inform"),
            ("[Request interrupted by user for tool use]", {}, "harness", "cancel"),
        ],
    )
    def test_who_said_what_a_user_record_holds(self, tmp_path, text, keys, agent, performative):
        """A person asks; what the program put in is the harness's."""
        draft = reading(tmp_path, user(1, text, **keys))[0].draft
        assert (draft.agent, draft.performative, draft.body) == (agent, performative, text)
        assert draft.to == ("assistant",)
        assert draft.correlation_id == draft.task_id == keys.get("promptId")

    def test_teammates_speak_for_themselves(self, tmp_path):
        """Bundled teammate messages are one event each, by their senders, with the act that they perform."""
        answer = json.dumps({"type": "plan_approval_response", "requestId": "r-1", "approve": False})
        text = (
            '<teammate-message teammate_id="alice" color="blue" self="x">\nhello\n</teammate-message>\n'
            f'<teammate-message teammate_id="bob">{answer}</teammate-message> and more'
            '<teammate-message teammate_id="system">note</teammate-message>'
        )
        found = reading(tmp_path, user(1, text))
        assert [(item.draft.agent, item.draft.performative) for item in found] == [
            ("alice", "inform"), ("bob", "reject-proposal"), ("harness", "inform"), ("harness", "inform")
        ]  # fmt: skip
        assert (found[0].draft.body, found[1].draft.correlation_id) == ("hello", "r-1")
        assert found[0].draft.meta["color"] == "blue"

    def test_an_unclosed_teammate_message_is_kept(self, tmp_path):
        """A message that is cut off inside a wrapper loses nothing."""
        text = '<teammate-message teammate_id="a">cut'
        assert reading(tmp_path, user(1, text)).bodies() == [text]

    def test_what_the_harness_says_for_the_model_is_its_own(self, tmp_path):
        """An API error in an assistant record is a failure by the harness, of no model."""
        block = {"type": "text", "text": "API Error"}
        record = assistant(1, block, message={"model": "<synthetic>"}, isApiErrorMessage=True)
        draft = reading(tmp_path, record)[0].draft
        assert (draft.agent, draft.performative, draft.model) == ("harness", "failure", None)

    def test_a_message_to_a_teammate_is_addressed(self, tmp_path):
        """SendMessage names its recipient and its act."""
        draft = reading(
            tmp_path, assistant(1, call("t", "SendMessage", recipient="bob", type="shutdown_request"))
        )[0].draft
        assert (draft.type, draft.to, draft.performative) == ("tool_call", ("bob",), "request")


class TestContent:
    def test_thinking_is_restricted_and_its_signature_exact(self, tmp_path):
        """Thinking is told apart and its signature kept as it is."""
        draft = reading(
            tmp_path, assistant(1, {"type": "thinking", "thinking": "hm", "signature": "Eo4C+/=="})
        )[0].draft
        assert (draft.sensitivity, draft.body) == ("restricted", "hm")
        assert (draft.meta["block"], draft.meta["signature"]) == ("thinking", "Eo4C+/==")

    def test_usage_adds_up_to_what_a_response_cost(self, tmp_path):
        """Repeated figures count once, and figures that grow from line to line end at the last ones."""

        def line(number, out):
            usage = {"input_tokens": 8, "output_tokens": out, "cache_creation": {"h": 5}}
            return assistant(number, {"type": "text", "text": "x"}, message={"usage": usage}, requestId="r")

        found = reading(tmp_path, line(1, 1), line(2, 1), line(3, 90))
        assert [item.draft.usage for item in found] == [
            {"input_tokens": 8, "output_tokens": 1, "cache_creation": {"h": 5}}, None, {"output_tokens": 89}
        ]  # fmt: skip

    def test_images_become_attachments(self, tmp_path):
        """Base64 leaves the text, once, even where the harness noted it twice; a placeholder says what was there."""
        data = base64.b64encode(bytes(3000)).decode()
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        notes = {"type": "image", "file": {"base64": data, "type": "image/png"}}
        found = reading(
            tmp_path,
            assistant(1, call("t", "Read")),
            user(2, [result("t", [image])], toolUseResult=notes),
            user(
                3, [image, {"type": "image", "source": {"type": "base64", "data": "?", "media_type": "??"}}]
            ),
        )
        answer, shown, broken = (item.draft for item in found[1:])
        assert [file.content for file in answer.attachments] == [bytes(3000)]
        assert answer.attachments[0].media_type == "image/png"
        assert data not in json.dumps([answer.result, answer.meta])
        assert shown.body == "[attachment 0: image/png, 3000 bytes]"
        assert shown.agent == "user"
        assert broken.value["source"]["data"] == "?"
        assert found.counts.attachments == 2

    def test_queued_prompts_are_said_by_who_queued_them(self, tmp_path):
        """A prompt typed while the model was busy is the user's, a notification the harness's."""
        prompts = ["next", "<task-notification>x</task-notification>", [{"type": "text", "text": "also"}]]
        found = reading(
            tmp_path,
            *(
                record(number, type="attachment", attachment={"type": "queued_command", "prompt": prompt})
                for number, prompt in enumerate(prompts)
            ),
        )
        assert [item.draft.agent for item in found] == ["user", "harness", "user"]

    def test_side_and_unknown_records_are_mutations(self, tmp_path):
        """Any other record is kept as value under a kind made of its type; nothing of it is in the envelope."""
        found = reading(
            tmp_path,
            {"type": "pr-link", "sessionId": SESSION, "prUrl": "https://example.invalid/1", "prNumber": 1},
            record(1, type="Brand_newType", secret="s"),
            {"type": "x" * 900, "a": 1},
            record(2, type="system", subtype="turn_duration", durationMs=5),
            {"no": "type"},
        )
        assert [item.draft.kind for item in found] == [
            "claude-pr-link", "claude-brand-new-type", "claude-record", "claude-turn-duration", "claude-record"
        ]  # fmt: skip
        assert found[0].draft.value == {"prUrl": "https://example.invalid/1", "prNumber": 1}

    def test_records_of_wrong_shape_are_kept(self, tmp_path):
        """A message, block, name or time of the wrong type never stops the import and is not lost."""
        odd = {"body": 1, "self": 2, "performative": 3, "more": 4, "kind": 5}
        found = reading(
            tmp_path,
            user(1, 7, timestamp=5), user(2, [None, ["x"], {"type": None}]), record(3, type="user", message="text"),
            record(4, type="user"), record(5, type="assistant"), assistant(6), assistant(7, {"type": "fallback"}),
            assistant(8, call("t", "bad\nname" * 99), message={"id": 3, "model": [], "usage": []}),
            record(9, type="attachment"), record(10, type="attachment", attachment={"type": 5, "content": odd}),
            record(11, type="system", subtype=["x"]), record(12, type="system", subtype=None, content="hm", **odd),
            record(13, type="system", subtype="stop_hook_summary", hookErrors=[{"a": 1}], **odd),
            {"type": ["x"], "uuid": 4, "parentUuid": {}, "sessionId": 9},
            user(14, [result("t")], toolUseResult=[1, {"a": 2}], origin=3, isSidechain="yes"),
        )  # fmt: skip
        assert len(found) == 17
        assert found.counts.altered >= 1

    def test_raw_keeps_every_line(self, tmp_path):
        """With raw, the first event of each record carries the untouched line, echoes and progress too."""
        records = [user(1, "ü"), user(1, "other"), record(2, 1, type="progress", data={})]
        found = reading(tmp_path, *records, raw=True)
        kept = [json.loads(item.draft.attachments[0].content) for item in found]
        assert kept == records
        assert all(item.draft.attachments[0].media_type == "application/json" for item in found)


class TestSubAgents:
    def session(self, project: Path, meta: dict[str, Any] | None, **keys: Any) -> Path:
        spawn = call("toolu_s", "Agent", prompt="look", subagent_type="scout")
        main = write(project / f"{SESSION}.jsonl", [assistant(1, spawn), *keys.pop("then", [])])
        folder = project / SESSION / "subagents"
        inside = {"isSidechain": True, "agentId": "a1"}
        write(
            folder / "agent-a1.jsonl",
            [user(11, "look", **inside), assistant(12, call("t2"), parent=11, **inside)],
        )
        if meta is not None:
            (folder / "agent-a1.meta.json").write_text(json.dumps(meta))
        return main

    def test_meta_names_the_agent_and_its_call(self, tmp_path):
        """A sub-agent's file is a thread of its session, by its type, under the call that spawned it."""
        self.session(tmp_path, {"agentType": "explorer", "toolUseId": "toolu_s"})
        (transcript,) = find([tmp_path])
        found = drafts(transcript)
        asked, acted = found[1], found[2]
        assert asked.parent_key == f"{uuid(1)}#0"
        assert acted.parent_key == f"{uuid(11)}#0"
        assert (asked.draft.agent, asked.draft.to, asked.draft.thread_id) == (
            "assistant",
            ("explorer",),
            "a1",
        )
        assert (acted.draft.agent, acted.draft.thread_id) == ("explorer", "a1")
        assert found[0].draft.to == ("scout",)

    def test_the_result_names_the_agent_where_meta_does_not(self, tmp_path):
        """Without meta the id noted beside the spawning call's result links the thread."""
        answer = user(2, [result("toolu_s")], toolUseResult={"agentId": "a1"})
        self.session(tmp_path, None, then=[answer])
        found = drafts(find([tmp_path])[0])
        assert (found[2].parent_key, found[3].draft.agent) == (f"{uuid(1)}#0", "scout")

    def test_without_a_trace_the_thread_is_left_unlinked(self, tmp_path):
        """No guess is made: the thread has no parent and the agent is named by its id."""
        self.session(tmp_path, {})
        found = drafts(find([tmp_path])[0])
        assert (found[1].parent_key, found[2].draft.agent) == (None, "agent-a1")

    def test_old_sidechains_are_linked_by_their_prompt(self, tmp_path):
        """A sidechain in the main file is a thread named by its root, linked to the call with the same prompt."""
        found = reading(
            tmp_path,
            assistant(1, call("t", "Task", prompt="look", subagent_type="scout")),
            user(2, "look", isSidechain=True),
            assistant(3, {"type": "text", "text": "ok"}, parent=2, isSidechain=True),
            user(4, "other", isSidechain=True),
        )
        assert [item.draft.thread_id for item in found] == [None, uuid(2), uuid(2), uuid(4)]
        assert found[1].parent_key == f"{uuid(1)}#0"
        assert found[2].draft.agent == "scout"
        assert found[3].parent_key is None

    def test_nested_agents_come_after_those_that_spawned_them(self, tmp_path):
        """A sub-agent of a sub-agent is read later and linked to the call in the other's file."""
        main = self.session(tmp_path, {"agentType": "z", "toolUseId": "toolu_s", "spawnDepth": 1})
        folder = main.with_suffix("") / "subagents"
        write(folder / "agent-a1.jsonl", [assistant(11, call("t2", "Agent", prompt="deeper"))])
        write(folder / "workflows" / "run" / "agent-a0.jsonl", [user(21, "deeper")])
        (folder / "workflows" / "run" / "agent-a0.meta.json").write_text('{"toolUseId":"t2","spawnDepth":2}')
        found = drafts(find([main])[0])
        assert [item.draft.thread_id for item in found] == [None, "a1", "a0"]
        assert (found[2].parent_key, found[2].draft.agent) == (f"{uuid(11)}#0", "z")


class TestDiscovery:
    def test_sub_agents_are_never_sessions_of_their_own(self, tmp_path):
        """A sub-agent's file, deep or flat, belongs to its session, whichever file is given."""
        main = write(tmp_path / "p" / f"{SESSION}.jsonl", [user(1, "a")])
        deep = write(tmp_path / "p" / SESSION / "subagents" / "agent-x.jsonl", [user(2, "b")])
        flat = write(tmp_path / "p" / "agent-y.jsonl", [user(3, "c")])
        for given in (tmp_path, tmp_path / "p", deep, flat, main, tmp_path / "p" / SESSION):
            (transcript,) = find([given])
            assert (transcript.session_id, transcript.main) == (SESSION, main)
            assert deep in transcript.files
        assert find([tmp_path])[0].files == (main, deep, flat)

    def test_a_lone_sub_agent_stands_for_its_session(self, tmp_path):
        """Without its session's file a sub-agent is a thread of the session that its records name, or its own."""
        named = write(tmp_path / "agent-y.jsonl", [user(3, "c")])
        (transcript,) = find([named])
        assert (transcript.session_id, transcript.main) == (SESSION, None)
        assert drafts(transcript)[0].draft.thread_id == "y"
        write(named, [{"type": "user", "message": {"content": "x"}}])
        assert find([named])[0].session_id == "agent-y"

    def test_the_session_id_is_the_transcripts(self, tmp_path):
        """A UUID in the file's name wins, then the first id named inside, then the name."""
        other = {"type": "user", "sessionId": "inside", "message": {"content": "x"}}
        write(tmp_path / f"{SESSION}.jsonl", [other])
        write(tmp_path / "chat.jsonl", [{"type": "mode"}, other])
        write(tmp_path / "plain.jsonl", [])
        assert {one.session_id for one in find([tmp_path])} == {SESSION, "inside", "plain"}

    @pytest.mark.parametrize(
        "hostile", ["../../etc/x", "a b", "", ".", "x.", "ä", "_store", "x" * 300, "a/b\n", "\ud800"]
    )
    def test_hostile_session_ids_are_mapped(self, hostile):
        """Whatever a transcript calls itself becomes a session id, and no two become the same."""
        check_session_id(session_id(hostile))
        assert session_id(hostile) != "_store"
        assert session_id(hostile) != session_id(hostile + "?")

    def test_the_default_is_the_harness_s_own_directory(self, tmp_path):
        """Without paths the configured directory is searched, else the one in home; that there is none is said."""
        write(tmp_path / ".claude" / "projects" / "p" / f"{SESSION}.jsonl", [user(1, "a")])
        assert len(find(home=tmp_path, environment={})) == 1
        configured = {"CLAUDE_CONFIG_DIR": str(tmp_path / ".claude")}
        assert len(find(home=tmp_path / "x", environment=configured)) == 1
        with pytest.raises(ImportFailed):
            find(home=tmp_path / "x", environment={})

    def test_folders_are_searched_at_any_depth(self, tmp_path):
        """A transcript in a folder of a folder is found; a directory without one is an error, not nothing."""
        write(tmp_path / "a" / "b" / "c" / f"{SESSION}.jsonl", [user(1, "a")])
        assert len(find([tmp_path])) == 1
        (tmp_path / "empty").mkdir()
        with pytest.raises(ImportFailed):
            find([tmp_path / "empty"])

    def test_a_pipe_is_refused(self, tmp_path):
        """What can be read only once is refused: a transcript is looked at before it is read."""
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ImportFailed):
            find([tmp_path / "pipe"])

    def test_since_takes_what_was_modified_later(self, tmp_path):
        """A session counts as modified when any of its files was."""
        main = write(tmp_path / f"{SESSION}.jsonl", [user(1, "a")])
        agent = write(tmp_path / SESSION / "subagents" / "agent-x.jsonl", [user(2, "b")])
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        os.utime(main, (0, 0))
        os.utime(agent, (moment.timestamp(), moment.timestamp()))
        assert len(find([tmp_path], since=moment)) == 1
        assert find([tmp_path], since=moment + timedelta(seconds=1)) == []


class TestBounds:
    def test_memory_does_not_grow_with_the_file(self, tmp_path, monkeypatch):
        """Of the last 40,000 of 200,000 lines that all ask to be remembered, less than 1 MiB is."""
        for name in [name for name in vars(memory) if name.startswith("MAX_")]:
            monkeypatch.setattr(memory, name, 256)
        path = tmp_path / "big.jsonl"
        with path.open("w") as file:
            file.writelines(_long_transcript(200_000))
        counts = ImportCounts()
        items = read(Transcript(SESSION, path), counts=counts)
        while counts.lines < 160_000:
            next(items)
        tracemalloc.start()
        try:
            for _ in items:
                pass
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (counts.lines, counts.unanswered_calls, counts.dropped) == (200_000, 20_000, 160_000)
        assert peak < 1024 * 1024

    def test_beyond_the_bound_a_result_is_an_orphan(self, tmp_path, monkeypatch):
        """A call that was forgotten cannot be answered; the newest ones can."""
        monkeypatch.setattr(memory, "MAX_CALLS", 2)
        calls = [assistant(number, call(f"t{number}")) for number in range(3)]
        found = reading(tmp_path, *calls, user(8, [result("t0")]), user(9, [result("t2")]))
        assert [item.call_key for item in found[3:]] == [None, f"{uuid(2)}#0"]

    def test_beyond_the_bound_an_echo_has_the_same_key(self, tmp_path, monkeypatch):
        """An echo of a forgotten record comes again under its old key, so that the log knows it."""
        monkeypatch.setattr(memory, "MAX_UUIDS", 1)
        path = write(tmp_path / "x.jsonl", [user(1, "a"), user(2, "b"), user(1, "a")])
        keys = [item.key for item in read(Transcript(SESSION, path))]
        assert keys[0] == keys[2]


def _long_transcript(lines: int) -> Iterator[str]:
    for number in range(0, lines, 10):
        yield (
            json.dumps(assistant(number, call(f"t{number}"), message={"id": f"m{number}", "usage": {"a": 1}}))
            + "\n"
        )
        yield json.dumps({"type": "mode", "mode": str(number)}) + "\n"
        for step in range(1, 9):
            yield (
                f'{{"type":"progress","uuid":"{uuid(number + step)}","parentUuid":"{uuid(number + step - 1)}"}}\n'
            )
