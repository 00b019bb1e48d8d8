"""The command through views: what the verbs show, refuse and explain."""

import json

import pytest

from convlog_sqlite import Attachment, ConversationLog
from convlog_sqlite.cli import main

MARK = "ZEBRA"


@pytest.fixture
def store(store_path, monkeypatch):
    """A store with content in every payload key, and a worker, an auditor and somebody without a role."""
    monkeypatch.setenv("CONVLOG_STORE", str(store_path))
    with ConversationLog.init(store_path, mirror=False) as log:
        for agent, role in (("bob", "worker"), ("aud", "auditor"), ("vera", "verifier")):
            log.grant_role(agent, role, by="lead")
        session = log.session("s")
        session.mutation("task-assigned", MARK, agent="lead", task_id="t", to=["bob"])
        asked = session.message(MARK, agent="lead", task_id="t", meta={"m": MARK}, usage={"u": MARK})
        session.message(MARK * 5000, agent="lead", attachments=[Attachment("text/plain", MARK.encode())])
        call = session.tool_call("shell", {"a": MARK}, agent="bob", task_id="t", parent_id=asked.id)
        session.tool_result(call, MARK, agent="bob")
        session.mutation(
            "decision-made", MARK, agent="lead", state_key="plan", links={"evidence": [asked.id]}
        )
        session.mutation("skill-activated", {"skill": MARK}, agent="bob")
        session.message("far from it", agent="lead", task_id="other")
        session.message(MARK, agent="lead", sensitivity="restricted", task_id="t")
    return store_path


def run(capfdbinary, *arguments):
    """(status, lines of stdout, stderr) of the command."""
    status = main(arguments)
    out, err = capfdbinary.readouterr()
    return status, out.decode().splitlines(), err.decode()


def verbs(path):
    """Each verb that shows content, for every event of the session."""
    with ConversationLog.open(path) as log:
        ids = [event.id for event in log.session("s").read()]
    yield from (
        ["tail", "s", "-n", "50"],
        ["tail", "s", "-n", "50", "--pairs"],
        ["tail", "s", "--after", "0"],
    )
    yield from (["tail", "s", "--since-last"], ["tail", "s", "--at", "5"], ["export", "s"], ["export"])
    yield from (["state", "s"], ["state", "s", "--open"], ["state", "s", "--at", "8"])
    yield from (
        ["state", "s", "-p", name] for name in ("tasks", "agents", "plans", "calls", "effects", "threads")
    )
    for event_id in ids:
        yield from (["show", event_id], ["show", event_id, "--full"], ["show", event_id, "--attachment", "0"])
        yield from (["why", event_id], ["why", event_id, "--forward"])


def test_content_that_the_view_does_not_grant_is_printed_by_no_verb(store, capfdbinary):
    """Through `auditor`, every verb shows envelopes and no content, on a terminal's form too."""
    for argv in verbs(store):
        for form in ((), ("--color",)):
            _, out, err = run(capfdbinary, *form, *argv, "--as", "aud")
            assert MARK not in "\n".join(out) + err, argv
    _, out, _ = run(capfdbinary, "seen", "aud", "s")
    assert out
    assert MARK not in "\n".join(out)
    status, out, _ = run(capfdbinary, "tail", "s", "-n", "50", "--as", "aud")
    assert status == 0
    assert all(json.loads(line).get("withheld") for line in out[1:])


def test_the_marks_are_there_without_a_view(store, capfdbinary):
    """What the test above looks for is found by the same verbs where no view keeps it back."""
    found = [argv for argv in verbs(store) if MARK in "\n".join(run(capfdbinary, *argv)[1])]
    assert {argv[0] for argv in found} == {"tail", "export", "state", "show", "why"}


def test_a_worker_sees_its_work(store, capfdbinary):
    """Its task and what it wrote; not another's task, nor what is above the ceiling."""
    status, out, _ = run(capfdbinary, "tail", "s", "-n", "50", "--as", "bob")
    shown = [json.loads(line) for line in out]
    assert status == 0
    assert {line.get("task_id") for line in shown} == {"t", None}
    assert all(line.get("sensitivity") != "restricted" for line in shown)
    assert [json.loads(line)["seq"] for line in run(capfdbinary, "export", "s", "--as", "bob")[1]] == [
        line["seq"] for line in shown
    ]


def test_an_event_is_explained(store, capfdbinary):
    """Shown or not, with the rule; an event that is not shown is refused with it."""
    with ConversationLog.open(store) as log:
        *_, far, restricted = log.session("s").read()
    status, (line,), _ = run(capfdbinary, "view", "explain", restricted.id, "--as", "bob")
    said = json.loads(line)
    assert (status, said["shown"]) == (0, False)
    assert "restricted" in said["because"][0]
    status, out, err = run(capfdbinary, "show", restricted.id, "--as", "bob")
    assert (status, out) == (3, [])
    assert "restricted" in err
    status, _, err = run(capfdbinary, "why", far.id, "--as", "bob")
    assert status == 3
    status, out, _ = run(capfdbinary, "--color", "view", "explain", far.id, "--view", "everything")
    assert "shows" in out[0]


def test_why_names_what_it_does_not_show(store, capfdbinary):
    """Evidence that the view keeps back is named, and nothing more."""
    with ConversationLog.open(store) as log:
        decision = next(event for event in log.session("s").read() if event.kind == "decision-made")
        log.label(decision.links["evidence"][0], sensitivity="restricted", by="lead")
    status, out, _ = run(capfdbinary, "why", decision.id, "--as", "vera")
    (said,) = map(json.loads, out)
    assert status == 0
    assert said["event"]["id"] == decision.id
    assert said["unknown"] == [{"relation": "evidence", "id": decision.links["evidence"][0]}]


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["tail", "s", "--as", "nobody"], 3),
        (["tail", "s", "--as", "bob", "--view", "nonsense"], 3),
        (["tail", "s", "--view", "worker"], 3),
        (["export", "--as", "nobody"], 3),
        (["export", "--view", "nonsense"], 3),
        (["state", "s", "--as", "nobody"], 3),
        (["view", "show", "nonsense"], 3),
        (["view", "show", "worker@7"], 3),
        (["view", "explain", "0197a3c4"], 2),
        (["view", "define", "nowhere.json", "--by", "ops"], 2),
        (["export", "--mirror", "--view", "worker"], 2),
        (["export", "--out", "x", "--as", "bob"], 2),
        (["export", "--follow", "--view", "auditor"], 2),
        (["export", "--mirror", "--out", "x"], 2),
        (["state", "s", "--view", "auditor", "--rebuild"], 2),
    ],
)
def test_what_cannot_be_read_through_is_refused(store, capfdbinary, argv, status):
    """With a status of its own and one line that says why, never with nothing."""
    found, out, err = run(capfdbinary, *argv)
    assert (found, out) == (status, [])
    assert err.count("\n") >= 1


def test_a_view_is_defined_from_a_file(store, capfdbinary, tmp_path):
    """A shipped one printed, changed and defined; a dry run writes nothing; a wrong key is pointed at."""
    _, (line,), _ = run(capfdbinary, "view", "show", "worker")
    wanted = json.loads(line) | {"name": "mine", "payload": ["body"]}
    del wanted["roles"]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(wanted))
    assert run(capfdbinary, "view", "define", str(file), "--by", "ops", "--dry-run")[0] == 0
    assert run(capfdbinary, "view", "show", "mine")[0] == 3
    status, (line,), _ = run(capfdbinary, "view", "define", str(file), "--by", "ops")
    assert (status, json.loads(line)["view"]) == (0, "mine@1")
    assert json.loads(run(capfdbinary, "view", "show", "mine@1")[1][0]) == wanted
    names = [json.loads(line)["view"] for line in run(capfdbinary, "view", "list")[1]]
    assert names == ["auditor@0", "everything@0", "mine@1", "orchestrator@0", "verifier@0", "worker@0"]
    assert "mine@1" in "\n".join(run(capfdbinary, "--color", "view", "list")[1])
    assert "own tasks" in "\n".join(run(capfdbinary, "--color", "view", "show", "worker")[1])
    file.write_text(json.dumps(wanted | {"colour": 1}))
    status, _, err = run(capfdbinary, "view", "define", str(file), "--by", "ops")
    assert status == 3
    assert "/colour" in err


def test_files_are_kept_through_a_view(store, capfdbinary, tmp_path):
    """--mirror --view --out keeps a directory; the same directory through another view is refused."""
    argv = ["export", "--mirror", "--view", "auditor", "--out", str(tmp_path / "out")]
    status, out, _ = run(capfdbinary, *argv)
    assert status == 0
    assert {json.loads(line)["session"] for line in out} == {"_store", "s"}
    assert MARK not in (tmp_path / "out" / "s" / "conversation.jsonl").read_text()
    assert run(capfdbinary, "export", "--out", str(tmp_path / "out"))[0] == 3
    assert run(capfdbinary, "redact", "--session", "s", "--reason", "test", "--by", "ops", "--yes")[0] == 0
    text = (tmp_path / "out" / "s" / "conversation.jsonl").read_text()
    assert MARK not in text
    assert '"redacted"' in text
