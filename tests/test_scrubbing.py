"""Scrubbing: secrets give way to placeholders in all that is stored readable, and ordinary text is left as it is."""

import ast
import json
import multiprocessing
import os
import random
import string
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import convlog_sqlite
from convlog_sqlite import (
    Attachment,
    ConversationLog,
    Draft,
    InvalidEvent,
    Scrubber,
    ScrubFailed,
    import_transcripts,
    patterns,
)
from convlog_sqlite.scrubbing import PLACEHOLDER

PLAIN = Scrubber(environment={})
SEED = 20260102
LETTERS = string.ascii_letters + string.digits


def made_up(count, alphabet=LETTERS, seed=SEED):
    """The random part of a token that nobody has."""
    return "".join(random.Random(f"{seed}{count}{alphabet}").choices(alphabet, k=count))


HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + "234567"
GITHUB = "ghp_" + made_up(36)
PEM = "-----BEGIN {0}PRIVATE KEY-----\n{1}\n-----END {0}PRIVATE KEY-----"
BODY = "\n".join(made_up(64, LETTERS + "+/", seed) for seed in range(8))
JWT = f"eyJ{made_up(20)}.eyJ{made_up(40)}.{made_up(43)}"

# kind -> texts, each with one secret that must be gone.
KNOWN = {
    "age-key": ["AGE-SECRET-KEY-1" + made_up(58, UPPER)],
    "aws-access-key": ["AKIA" + made_up(16, UPPER), "ASIA" + made_up(16, UPPER)],
    "aws-secret-key": [
        f"aws_secret_access_key = {made_up(40)}",
        f'"SecretAccessKey": "{made_up(40)}"',
        f"AWS_SESSION_TOKEN={made_up(220)}==",
    ],
    "github-token": [GITHUB, "ghs_" + made_up(36), "github_pat_" + made_up(22) + "_" + made_up(59)],
    "gitlab-token": ["glpat-" + made_up(20)],
    "slack-token": [f"xoxb-{made_up(11, string.digits)}-{made_up(24)}"],
    "slack-webhook": [
        f"https://hooks.slack.com/services/T{made_up(8, UPPER)}/B{made_up(8, UPPER)}/{made_up(24)}"
    ],
    "anthropic-key": ["sk-ant-api03-" + made_up(95, LETTERS + "_-")],
    "openrouter-key": ["sk-or-v1-" + made_up(64, HEX)],
    "openai-key": ["sk-" + made_up(48), "sk-proj-" + made_up(74, LETTERS + "_-")],
    "stripe-key": ["sk_live_" + made_up(24), "whsec_" + made_up(32)],
    "google-key": ["AIza" + made_up(35)],
    "google-oauth": ["ya29." + made_up(120), "GOCSPX-" + made_up(28)],
    "azure-key": [f"AccountName=x;AccountKey={made_up(86)}==;EndpointSuffix=core"],
    "npm-token": ["npm_" + made_up(36)],
    "pypi-token": ["pypi-AgEIcHlwaS5vcmc" + made_up(150)],
    "docker-token": ["dckr_pat_" + made_up(27)],
    "huggingface-token": ["hf_" + made_up(34, string.ascii_letters)],
    "model-host-key": ["gsk_" + made_up(52), "xai-" + made_up(80)],
    "digitalocean-token": ["dop_v1_" + made_up(64, HEX)],
    "sendgrid-key": [f"SG.{made_up(22)}.{made_up(43)}"],
    "telegram-token": [f"{made_up(10, string.digits)}:AA{made_up(33)}"],
    "discord-webhook": [f"https://discord.com/api/webhooks/{made_up(18, string.digits)}/{made_up(68)}"],
    "shopify-token": ["shpat_" + made_up(32, HEX)],
    "vault-token": ["hvs." + made_up(90)],
    "service-token": ["lin_api_" + made_up(40), "dapi" + made_up(32, HEX)],
    "jwt": [JWT],
    "private-key": [
        PEM.format("RSA ", BODY),
        PEM.format("OPENSSH ", BODY).replace("\n", "\\n"),
        PEM.format("EC ", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB-CD\n\n" + BODY),
        PEM.format("", BODY).partition("-----END")[0],
    ],
    "connection-string": [
        f"postgres://app:{made_up(12)}@db.internal:5432/app",
        f"redis://:{made_up(12)}@10.0.0.5/0",
        f"https://bob:p@{made_up(9)}@git.internal/x.git",
    ],
    "authorization": [
        f"Authorization: Bearer {made_up(40)}",
        f"curl -H 'authorization: bearer {made_up(24)}9a'",
        f'"Authorization": "Basic {made_up(24)}1a=="',
    ],
    "assignment": [f"export DB_PASSWORD={made_up(16)}", f'STRIPE_API_KEY="{made_up(20)}"'],
    "keyed-value": [
        f'{{"password": "{made_up(12)}"}}',
        f'{{\\"clientSecret\\":\\"{made_up(30)}\\"}}',
        f"{{'api_key': '{made_up(30)}'}}",
    ],
}
ORDINARY = [
    "password = get_password()",
    'parser.add_argument("--token", help="the access token")',
    '{"password": "string", "apiKey": "YOUR_API_KEY_GOES_HERE1", "secret": "${SECRET_1}"}',
    "postgres://user:password@localhost:5432/db and http://localhost:8080/a@b",
    "OPENAI_API_KEY=sk-... or ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "Bearer authentication is described in RFC 6750",
    "AKIAIOSFODNN7EXAMPLE",
    "the file begins with -----BEGIN RSA PRIVATE KEY----- and ends with -----END RSA PRIVATE KEY-----",
    "commit 2b1c3d4e5f60718293a4b5c6d7e8f9a0b1c2d3e4, uuid 0197a3c4-e32e-7e5e-bc95-9b9ad2100727",
    "risk-assessment-of-the-whole-system-and-its-parts, task-claimed-by-someone-else-entirely-now",
    "max_tokens=1000, SECRET_KEY=os.environ['SECRET_KEY'], API_KEY=${API_KEY}",
    "data:image/png;base64," + made_up(2000, LETTERS + "+/"),
]


def stored(log, name="s"):
    """Every readable byte of a session: lines, whole values, attachments."""
    session = log.session(name)
    found = [b"".join(session.jsonl())]
    for event in session.follow(0, timeout=0):
        if "truncated" in event.content:
            found.append(json.dumps(session.content(event)).encode())
        found += [session.attachment(event, number) for number in range(len(event.attachments))]
    return b"\n".join(found)


@pytest.fixture
def scrubbing(store_path):
    """An open log that scrubs."""
    with ConversationLog.open(store_path, scrub=PLAIN) as opened:
        yield opened


class TestForms:
    @pytest.mark.parametrize("kind", sorted(KNOWN))
    def test_each_kind_is_found_wherever_it_stands(self, kind):
        """At an end, in quotes, beside letters of other scripts, in a long text: one hit of its kind, nothing left."""
        for text in KNOWN[kind]:
            for around in (
                "{}",
                "see {} now",
                'x="{}";',
                "ключ {} é",
                "{}\n",
                "a\n" * 5000 + "{}" + "\nb" * 5000,
            ):
                cleaned, found = PLAIN.text(
                    around.format(text) if "{" not in text else around.replace("{}", text)
                )
                assert found == {kind: 1}, (around[:20], text, cleaned[-200:])
                assert PLACEHOLDER.format(kind) in cleaned

    def test_every_kind_has_an_example(self):
        """No pattern is in the table that this file does not try."""
        assert {pattern.kind for pattern in patterns.PATTERNS} == set(KNOWN)
        assert len(KNOWN) == len(patterns.PATTERNS)

    @pytest.mark.parametrize("text", ORDINARY)
    def test_ordinary_text_is_left_as_it_is(self, text):
        """Code, documentation, hashes, ids and what only stands for a secret are no hits."""
        assert PLAIN.text(text) == (text, {})

    @given(st.text(), st.sampled_from(sorted(KNOWN)), st.text())
    def test_scrubbing_again_changes_nothing(self, before, kind, after):
        """What was scrubbed is clean: placeholders are no secrets."""
        once, _ = PLAIN.text(before + " " + KNOWN[kind][0] + " " + after)
        assert PLAIN.text(once) == (once, {})

    @pytest.mark.parametrize(
        "piece",
        ["-----BEGIN PRIVATE KEY-----", "eyJ", "eyJaaaaaaaaaa.", "sk-", "://a:b", "://:", "TOKEN=", "Bearer ", "A",
         '"password":"', "ghp_", "AKIA ", "ecret_access_key=", "\\n", "-", '"key" : ', "key_"],
    )  # fmt: skip
    def test_the_time_grows_with_the_length_and_no_faster(self, piece):
        """Text made to be searched in vain, past the gate: ten times the text is not a hundred times the time."""
        lure = " ".join(literal for pattern in patterns.PATTERNS for literal in pattern.literals)
        lure += f" {'a' * 20} @ :// key"
        times = []
        for size in (200_000, 2_000_000):
            text = piece * (size // len(piece)) + lure
            begun = time.process_time()
            PLAIN.text(text)
            times.append(time.process_time() - begun)
        assert times[1] < max(40 * times[0], 0.5), times


class TestKnownValues:
    def test_a_registered_value_goes_under_its_kind(self):
        """As it is, in JSON and in a URL."""
        scrubber = Scrubber(environment={}, values={"db-password": 'pä"ss/w0rd'})
        for text in ('pä"ss/w0rd', r"p\u00e4\"ss/w0rd", r"pä\"ss/w0rd", "p%C3%A4%22ss%2Fw0rd"):
            assert scrubber.text(f"<{text}>") == ("<[secret:db-password]>", {"db-password": 1})
        assert "ss" not in repr(scrubber).replace("<scrubber", "")

    def test_the_longest_value_goes_first(self):
        """A value that begins with another is replaced whole."""
        scrubber = Scrubber(environment={}, values=["abcd1234", "abcd1234efgh"])
        assert scrubber.text("abcd1234efgh abcd1234") == (
            "[secret:registered] [secret:registered]",
            {"registered": 2},
        )

    @pytest.mark.parametrize(
        "values", ["text", {"A B": "abcdefgh"}, ["abc"], [7], ["secret"], {"x": "github-token"}, 5]
    )
    def test_a_value_that_no_placeholder_can_stand_for_is_refused(self, values):
        """Too short, no text, or a part of placeholders; the error does not quote it."""
        with pytest.raises(InvalidEvent) as refused:
            Scrubber(values=values)
        assert refused.value.pointer.startswith("/values")
        assert "abcdefgh" not in str(refused.value)

    def test_variables_are_taken_by_their_names(self, tmp_path):
        """Those that say that they hold a secret, unless the value is a word, short, or a file that exists."""
        (tmp_path / "key").touch()
        scrubber = Scrubber(
            environment={
                "MY_API_KEY": "a1b2c3d4e5", "DB_PASSWORD": "correct horse battery staple", "GITHUB_TOKEN": "x1",
                "APP_SECRET": "password", "SIGNING_KEY": str(tmp_path / "key"), "HOME": "/home/a1b2c3",
                "SSH_KEY_PATH": "/home/x/.ssh/id_1", "KEYBOARD": "qwertz12345", "MONKEY_COUNT": "12345678a",
            }
        )  # fmt: skip
        text = "a1b2c3d4e5; correct horse battery staple; x1; password; /home/a1b2c3; qwertz12345; 12345678a"
        assert scrubber.text(text + str(tmp_path / "key")) == (
            "[secret:environment]; [secret:environment]; x1; password; /home/a1b2c3; qwertz12345; 12345678a"
            + str(tmp_path / "key"),
            {"environment": 2},
        )

    def test_the_environment_is_that_of_the_moment_it_was_made(self, monkeypatch):
        """A variable that changes later changes nothing: a retry is scrubbed as the first time."""
        monkeypatch.setenv("BUILD_TOKEN", "old-value-123")
        scrubber = Scrubber()
        monkeypatch.setenv("BUILD_TOKEN", "new-value-456")
        assert scrubber.text("old-value-123 new-value-456")[0] == "[secret:environment] new-value-456"


class TestDrafts:
    def test_every_readable_place_is_scrubbed(self, scrubbing):
        """Bodies, values at any depth, keys, meta, usage, attachments, names in the envelope: in line, blob and file."""
        session = scrubbing.session("s")
        big = {"rows": ["x" * 5000, {GITHUB: [GITHUB, {"deep": f"a {GITHUB} b"}]}, "y" * 9000]}
        call = session.tool_call(
            f"tool {GITHUB}", big, agent=f"worker {GITHUB}", to=[GITHUB, "b"], task_id=GITHUB, thread_id=GITHUB,
            correlation_id=GITHUB, model=GITHUB, purposes=[GITHUB], role=GITHUB, meta={GITHUB: GITHUB}, usage={"u": GITHUB},
            attachments=[Attachment("text/plain", GITHUB.encode()), Attachment("image/png", b"\xff\x00" + GITHUB.encode())],
            source={"harness": "h", "native_id": GITHUB},
        )  # fmt: skip
        session.tool_result(call, GITHUB, agent="worker")
        session.mutation("state-set", [GITHUB], agent="a", state_key=f"key/{GITHUB}")
        session.message(GITHUB, agent="a")
        found = stored(scrubbing)
        assert found.count(GITHUB.encode()) == 1, "only in the bytes that are no text"
        assert b"[secret:github-token]" in found
        assert scrubbing.scrubbed["github-token"] == 21
        assert GITHUB.encode() not in b"".join(scrubbing.lines("s"))
        assert GITHUB not in scrubbing.mirror.path("s").read_text()
        assert list(scrubbing.verify()) == []

    def test_a_secret_on_the_cut_of_a_preview_is_gone_from_both(self, scrubbing):
        """Wherever the preview cuts: neither part of the line nor the whole value holds any of it."""
        session = scrubbing.session("s")
        for at in range(3060, 3100, 4):
            text = "a" * at + f" {GITHUB} " + "b " * 6000
            event = session.message(text, agent="a")
            assert event.truncated
            assert GITHUB[8:16] not in event.body
            assert GITHUB[8:16] not in session.content(event)

    def test_ten_megabytes_are_searched_to_the_end(self, scrubbing):
        """A secret behind ten megabytes of text that looks like one is gone from the whole value."""
        body = "eyJ-sk-ghp_ TOKEN=://a:b " * 400_000 + GITHUB
        event = scrubbing.session("s").message(body, agent="a")
        assert scrubbing.session("s").content(event) == body.replace(GITHUB, "[secret:github-token]")

    def test_two_secrets_as_keys_stay_two_keys(self):
        """No value is lost, also where the placeholder stood there before."""
        args = {GITHUB: 1, "ghs_" + made_up(36): 2, "[secret:github-token]": 3}
        cleaned, found = PLAIN.draft(Draft(type="tool_call", agent="a", tool="t", args=args))
        assert cleaned.args == {
            "[secret:github-token]": 1,
            "[secret:github-token] 2": 2,
            "[secret:github-token] 3": 3,
        }
        assert found == {"github-token": 2}

    def test_a_value_is_a_secret_by_its_key(self):
        """At a key such as password, whatever it looks like; not where it refers to something else."""
        args = {
            "a": [
                {
                    "Client-Secret": "tr0ub4dor&3",
                    "password": "$DB_PASSWORD1",
                    "tokens": "abcdef123",
                    "secret": 5,
                }
            ]
        }
        cleaned, found = PLAIN.draft(Draft(type="tool_call", agent="a", tool="t", args=args))
        assert cleaned.args["a"][0] == args["a"][0] | {"Client-Secret": "[secret:keyed-value]"}
        assert found == {"keyed-value": 1}

    @pytest.mark.parametrize("mark", ["", "+", " "])
    def test_a_private_key_in_a_list_of_lines_is_one_secret(self, mark):
        """As diffs and notebooks hold it: every line from BEGIN to END, and none beside them."""
        key = [mark + line for line in PEM.format("RSA ", BODY).split("\n")]
        value = ["before", *key, "after", "word"]
        cleaned, found = PLAIN.draft(Draft(type="mutation", agent="a", kind="k", value=value))
        assert cleaned.value == ["before", *["[secret:private-key]"] * len(key), "after", "word"]
        assert found == {"private-key": 1}

    def test_a_clean_draft_is_given_back_as_it_is(self):
        """Nothing is copied where there is nothing to do."""
        draft = Draft(type="tool_call", agent="a", tool="t", args={"key": ["value", {"a": 1}]}, to=("b",))
        assert PLAIN.draft(draft) == (draft, {})
        assert PLAIN.draft(draft)[0] is draft

    def test_what_has_no_place_for_a_placeholder_is_refused(self, scrubbing):
        """Kind, media type and session id: nothing is written, and no error names the secret."""
        slack = "xoxb-12345678901-" + made_up(24, string.ascii_lowercase + "1")
        session = scrubbing.session("s")
        refusals = [
            lambda: session.mutation(slack, agent="a"),
            lambda: session.message("x", agent="a", content_type=f"text/{GITHUB}"),
            lambda: scrubbing.session(slack).message("x", agent="a"),
            lambda: session.message("x", agent="a", meta={GITHUB: float("nan")}),
            lambda: session.message("x", agent="a", meta={"k": {GITHUB: {1, 2}}}),
        ]
        for refused in refusals:
            with pytest.raises(InvalidEvent) as error:
                refused()
            assert slack not in str(error.value)
            assert GITHUB not in str(error.value)
        assert scrubbing.reader.session_ids() == ["_store"]

    def test_what_is_stored_as_a_digest_is_left_as_it_is(self, scrubbing):
        """People and idempotency keys stay apart from each other."""
        session = scrubbing.session("s")
        one, two = (
            session.message("x", agent="a", subjects=[key], idempotency_key=key)
            for key in (GITHUB, "ghs_" + made_up(36))
        )
        assert one.subjects != two.subjects
        assert one.id != two.id

    def test_bad_values_are_refused_by_their_own_rules(self, scrubbing):
        """Cycles, deep nesting, tuples and objects: scrubbing neither hides nor changes what is wrong."""
        cycle = [GITHUB]
        cycle.append(cycle)
        deep = GITHUB
        for _ in range(300):
            deep = [deep]
        for value in (cycle, deep, (GITHUB,), {GITHUB: {1}}, {7: GITHUB}, object()):
            with pytest.raises(InvalidEvent):
                scrubbing.session("s").tool_call("t", value, agent="a")
        for draft in ("no draft", None):
            with pytest.raises(InvalidEvent):
                scrubbing.session("s").append(draft)


class TestFunction:
    def test_it_sees_what_is_left_and_decides(self, store_path):
        """It gets every string after the patterns, keys and names too, and its changes are counted."""
        seen = []

        def function(text):
            seen.append(text)
            return text.replace("Ann", "[person]")

        with ConversationLog.open(store_path, scrub=Scrubber(environment={}, function=function)) as log:
            event = log.session("s").tool_call("call Ann", {"Ann": [GITHUB]}, agent="a")
            assert (event.tool, event.args) == ("call [person]", {"[person]": ["[secret:github-token]"]})
            assert log.scrubbed == {"function": 2, "github-token": 1}
        assert GITHUB not in seen

    @pytest.mark.parametrize(
        "give", [lambda text: text[5:0] + str(1 / 0), lambda text: None, lambda text: text.encode()]
    )
    def test_where_it_fails_nothing_is_written(self, store_path, give):
        """The append is refused, with the place and the kind of failure and none of the content, held or chained."""
        with ConversationLog.open(store_path, scrub=Scrubber(environment={}, function=give)) as log:
            with pytest.raises(ScrubFailed) as error:
                log.session("s").append_many(
                    [Draft(type="message", agent="a", body="hunter2") for _ in range(2)]
                )
            assert error.value.index == 0
            assert error.value.pointer == "/agent"
            assert "hunter2" not in str(error.value)
            assert error.value.__cause__ is None
            assert log.reader.session_ids() == ["_store"]
            assert log.scrubbed == {}

    def test_what_it_gives_is_held_to_the_rules(self, store_path):
        """It can no more break a rule than a caller can."""
        with (
            ConversationLog.open(
                store_path, scrub=Scrubber(environment={}, function=lambda _: "\ud800")
            ) as log,
            pytest.raises(InvalidEvent),
        ):
            log.session("s").message("x", agent="a")


class TestAppends:
    def test_off_unless_asked_for(self, log):
        """In the library, what is said is recorded."""
        assert log.session("s").message(GITHUB, agent="a").body == GITHUB
        assert log.scrubbed == {}

    @pytest.mark.parametrize("wanted", [None, 1, "yes", {}])
    def test_scrub_is_true_false_or_a_scrubber(self, store_path, wanted):
        """Anything else is refused before a store is made."""
        with pytest.raises(InvalidEvent):
            ConversationLog.open(store_path, scrub=wanted)
        assert not store_path.exists()

    def test_an_ephemeral_log_scrubs_too(self):
        """The same argument, the same result."""
        with ConversationLog.ephemeral(scrub=True) as log:
            assert log.session("s").message(GITHUB, agent="a").body == "[secret:github-token]"

    def test_a_retry_is_the_first_event_and_counts_once(self, store_path):
        """The same key and content give the first event, in another handle too."""
        keys = {"agent": "a", "idempotency_key": "k", "attachments": [Attachment("text/x", GITHUB.encode())]}
        with ConversationLog.open(store_path, scrub=PLAIN) as log:
            first = log.session("s").message(GITHUB + "x" * 20 + " y" * 9000, **keys)
        with ConversationLog.open(store_path, scrub=PLAIN) as log:
            assert log.session("s").message(GITHUB + "x" * 20 + " y" * 9000, **keys) == first
            assert log.scrubbed == {}

    def test_every_call_of_prepare_is_accounted_for(self):
        """No append skips the scrubber: who prepares drafts without one writes nothing of a caller's content."""
        without = {
            "branching.py": "the opening of a fork: names of sessions and of the agent",
            "keeping.py": "policies and holds: names that must stay what they are",
            "noting.py": "changes of the keystore: an act and the agent",
            "redaction.py": "fences: a digest and the agent",
            "restoring.py": "restored: positions and the agent",
            "store/committing.py": "session-opened: the agent, scrubbed already",
            "store/emptying.py": "removals: names, policy and counts",
            "store/erasing.py": "redactions: a reason and counts",
            "store/lapsing.py": "readings that went: a policy and a count",
            "store/opening.py": "the store's first settings",
        }
        package = Path(convlog_sqlite.__file__).parent
        found = set()
        for path in package.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id == "prepare"
                ) and not any("scrubber" in ast.unparse(argument) for argument in node.args):
                    found.add(path.relative_to(package).as_posix())
        assert found == set(without)

    def test_two_processes_scrub_at_once(self, store_path):
        """Concurrent writers: no secret of either is stored, and the log verifies."""
        with ConversationLog.open(store_path):
            pass
        context = multiprocessing.get_context("spawn")
        workers = [
            context.Process(target=_append_some, args=(str(store_path), number)) for number in range(2)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
        with ConversationLog.open(store_path) as log:
            lines = b"".join(log.lines("s"))
            assert lines.count(b"[secret:github-token]") == 100
            assert GITHUB.encode() not in lines
            assert list(log.verify()) == []


def _append_some(path, number):
    with ConversationLog.open(path, scrub=PLAIN, durability="normal") as log:
        for count in range(50):
            log.session("s").message(f"{number} {count} {GITHUB}", agent=f"a{number}")


RECORD = {
    "type": "user",
    "uuid": "00000000-0000-4000-8000-000000000001",
    "parentUuid": None,
    "sessionId": "0b1f3c5e-0000-4000-8000-000000000001",
    "timestamp": "2026-01-01T00:00:00Z",
    "message": {"role": "user", "content": f"use {GITHUB}"},
}


class TestImports:
    @pytest.fixture
    def transcript(self, tmp_path):
        """A transcript of one record that holds a token."""
        path = tmp_path / "project" / f"{RECORD['sessionId']}.jsonl"
        path.parent.mkdir()
        path.write_text(json.dumps(RECORD) + "\n")
        return path

    def test_it_is_on_and_counted(self, log, transcript):
        """Events and untouched records are scrubbed; a dry run tells the same count; again, it is a no-op."""
        planned = import_transcripts(log, "claude-code", [transcript], dry_run=True)
        once = import_transcripts(log, "claude-code", [transcript], raw=True)
        assert planned.scrubbed == {"github-token": 1}
        assert once.to_dict()["scrubbed"] == {"github-token": 2}
        assert GITHUB.encode() not in stored(log, RECORD["sessionId"])
        again = import_transcripts(log, "claude-code", [transcript])
        assert (again.new, again.scrubbed) == (0, {})

    def test_with_and_without_do_not_conflict(self, log, transcript):
        """An import made without is not doubled by one with, nor the other way round."""
        assert import_transcripts(log, "claude-code", [transcript], scrub=False).new == 1
        again = import_transcripts(log, "claude-code", [transcript])
        assert (again.new, again.already, again.refused) == (0, 1, 0)
        assert GITHUB.encode() in stored(log, RECORD["sessionId"])

    def test_a_log_that_scrubs_does_so_in_any_case(self, scrubbing, transcript):
        """`scrub=False` does not undo what the log was opened with."""
        assert import_transcripts(scrubbing, "claude-code", [transcript], scrub=False).scrubbed == {
            "github-token": 1
        }
        assert GITHUB.encode() not in stored(scrubbing, RECORD["sessionId"])

    def test_no_false_hits_in_the_samples(self, samples):
        """Real transcripts whose secrets were taken out: not one hit, in any of the files."""
        hits = []
        files = [path for path in samples.rglob("*") if path.is_file() and path.name != "SOURCES.md"]
        assert len(files) > 100
        for path in files:
            for line in path.read_text(errors="replace").splitlines():
                cleaned, found = PLAIN.text(line)
                if found:
                    hits.append((path.name, found, cleaned[:100]))
        assert hits == []


class TestCommand:
    def run(self, store_path, *arguments, stdin=b"", **environment):
        """Run the command as a user does."""
        command = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path), *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, check=False, env=os.environ | environment, timeout=60
        )

    def test_append_scrubs_where_asked(self, store_path):
        """The line holds the placeholder, stderr the counts; without the option nothing changes."""
        arguments = ("append", "s", "--agent", "a", "--body", f"{GITHUB} of-the-env-42")
        done = self.run(store_path, *arguments, "--scrub", BUILD_TOKEN="of-the-env-42")
        assert json.loads(done.stdout)["body"] == "[secret:github-token] [secret:environment]"
        assert "scrubbed: 1 environment, 1 github-token" in done.stderr.decode()
        assert json.loads(self.run(store_path, *arguments, "--no-scrub").stdout)["body"].startswith(GITHUB)
        assert GITHUB in json.loads(self.run(store_path, *arguments).stdout)["body"]

    def test_batches_and_streams_scrub_too(self, store_path):
        """All ways in pass the same place."""
        draft = json.dumps({"type": "message", "agent": "a", "body": GITHUB}).encode() + b"\n"
        for way in (("--jsonl", "-"), ("--stream",)):
            done = self.run(store_path, "append", "s", *way, "--scrub", stdin=draft)
            assert done.returncode == 0
            assert b"scrubbed: 1 github-token" in done.stderr
        with ConversationLog.open(store_path) as log:
            assert GITHUB.encode() not in stored(log)

    def test_import_scrubs_unless_told_not_to(self, store_path, tmp_path):
        """The report counts by kind."""
        path = tmp_path / f"{RECORD['sessionId']}.jsonl"
        path.write_text(json.dumps(RECORD) + "\n")
        done = self.run(store_path, "import", "claude-code", str(path), "--json")
        assert json.loads(done.stdout)["scrubbed"] == {"github-token": 1}
        other = store_path.with_name("other")
        assert (
            json.loads(self.run(other, "import", "claude-code", str(path), "--no-scrub").stdout)["scrubbed"]
            == {}
        )
