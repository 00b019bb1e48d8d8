"""What a view keeps back, it keeps back in every way of asking, whoever asks and whenever it was made."""

import json

import pytest

from convlog_sqlite import (
    Attachment,
    ConversationLog,
    Draft,
    InvalidEvent,
    NotAuthorized,
    Select,
    StaleContext,
    UnknownReference,
    View,
)
from convlog_sqlite.cli import main
from convlog_sqlite.store.reading import SCAN

LONG = 20_000  # characters: more than a line holds whole


@pytest.fixture
def log(store_path):
    """A log of its own."""
    with ConversationLog.init(store_path, mirror=False) as opened:
        yield opened


def bodies(page):
    """What the messages of a page say."""
    return [event.body for event in page if event.type == "message"]


class TestPurposes:
    """What is limited to other purposes stays out."""

    @pytest.fixture
    def session(self, log):
        """A session whose messages may be used for different purposes."""
        session = log.session("s")
        session.message("diagnosis", agent="ann", purposes=["care"])
        session.message("invoice", agent="ann", purposes=["billing"])
        session.message("hello", agent="ann")
        return session

    def test_a_view_that_asks_for_none_is_read_for_the_purpose_that_is_given(self, session, tmp_path, log):
        """`everything` and `auditor` for a purpose keep back what is for others, in each kind of read."""
        slice_ = session.through("everything", purpose="billing")
        assert bodies(slice_.tail()) == bodies(slice_.read()) == ["invoice", "hello"]
        assert b"diagnosis" not in b"".join(slice_.jsonl())
        assert slice_.event(2) is None
        assert not slice_.explain(session.event(2)).shown
        assert bodies(session.at(3).through("everything", purpose="billing").tail()) == ["invoice"]
        assert bodies(session.follow(0, timeout=0, through=slice_)) == ["invoice", "hello"]
        assert bodies(session.listener("bob", view="everything", purpose="billing").listen()) == [
            "invoice",
            "hello",
        ]
        log.export_to(tmp_path / "out", view="everything", purpose="billing")
        assert "diagnosis" not in (tmp_path / "out" / "s" / "conversation.jsonl").read_text()
        assert [event.seq for event in session.through("auditor", purpose="billing").tail()] == [1, 3, 4]

    def test_who_reads_cannot_ask_for_all_purposes(self, session, log):
        """`*` is what a view says of itself: a reader that gives it is refused."""
        log.grant_role("bob", "worker", by="ops")
        for call in (session.through, session.at(4).through):
            with pytest.raises(NotAuthorized):
                call(reader="bob", purpose="*")
        with pytest.raises(NotAuthorized):
            session.listener("bob", purpose="*")
        with pytest.raises(NotAuthorized):
            session.through(View(name="v"), purpose="*")
        assert len(session.through("everything", purpose="*").tail()) == 4


class TestForks:
    """A fork shows what it shares, and nothing of how its parent went on."""

    @pytest.fixture
    def branched(self, log):
        """A fork, and an event behind it in the parent at a seq at which the fork has one too."""
        parent = log.session("parent")
        parent.message("shared", agent="ann")
        fork = parent.fork("fork", agent="ann")
        parent.message("padding", agent="ann")
        hidden = parent.message(
            "secret" * LONG, agent="ann", sensitivity="restricted", attachments=[Attachment("text/plain", b"secret")]
        )  # fmt: skip
        own = fork.message("own" * LONG, agent="ann", attachments=[Attachment("text/plain", b"own")])
        while own.seq < hidden.seq:
            own = fork.message("own" * LONG, agent="ann", attachments=[Attachment("text/plain", b"own")])
        assert own.seq == hidden.seq
        return fork, hidden, own

    @pytest.mark.parametrize("view", ["everything", View(name="v", max_sensitivity="internal")])
    def test_an_event_of_the_parent_behind_it_is_not_taken_for_its_own(self, branched, view):
        """Neither its content nor its attachments are given, nor is it said to be shown."""
        fork, hidden, own = branched
        slice_ = fork.through(view)
        assert not slice_.shows(hidden)
        assert slice_.shown(hidden) is None
        with pytest.raises(NotAuthorized):
            slice_.content(hidden)
        with pytest.raises(NotAuthorized):
            slice_.attachment(hidden)
        assert slice_.content(own) == "own" * LONG
        assert slice_.attachment(own) == b"own"

    def test_its_lines_are_its_own(self, branched):
        """Through a view as without: what it shares comes where that is asked for."""
        fork, _, _ = branched
        slice_ = fork.through("everything")
        assert list(slice_.jsonl()) == list(fork.jsonl())
        assert list(slice_.jsonl(inherited=True)) == list(fork.jsonl(inherited=True))
        assert b'"withheld":true' in b"".join(fork.through("auditor").jsonl())
        assert len(list(fork.through("auditor").jsonl())) == len(list(fork.jsonl()))


@pytest.mark.parametrize("purpose", [None, "*"])
def test_a_view_of_one_tenant_shows_no_session_that_came_to_be_later(log, purpose):
    """A slice that was made of a session before its first event is of that tenant alone all the same."""
    session = log.session("s", tenant="globex")
    slice_ = session.through(View(name="v", tenant="acme", purpose=purpose))
    assert slice_.tail() == []
    session.message("theirs", agent="ann")
    for ask in (
        slice_.tail,
        slice_.read,
        lambda: list(slice_.jsonl()),
        lambda: slice_.event(2),
        slice_.state,
    ):
        with pytest.raises(UnknownReference):
            ask()


def test_what_came_later_is_not_said_to_be_shown(log):
    """A slice of an earlier time explains an event as it shows it."""
    session = log.session("s")
    events = [session.message(body, agent="ann") for body in ("one", "two")]
    then = session.at(events[0]).through("everything")
    assert [then.explain(event).shown for event in events] == [True, False]
    assert [then.shows(event) for event in events] == [True, False]


def test_what_an_agent_is_to_hear_does_not_hang_on_the_handle(log, store_path):
    """Also where a handle of the tenant appends for it, which does not know the view that it reads through."""
    log.define_view(View(name="messages", selects=[Select(types=["message"])]), by="ops")
    session = log.session("s", tenant="acme")
    bob = session.join("bob", view="messages")
    session.listening("require", by="ops")
    session.mutation("state-set", 1, agent="ann", state_key="k")
    with ConversationLog.open(store_path, tenant="acme") as acme:
        assert acme.session("s").message("nothing was missed", agent="bob").agent == "bob"
        bob.listen()
        bob.message("heard")
        assert acme.session("s").informed().message("said", agent="bob").seen["view"] == "messages@1"
        unheard = session.message("for bob", agent="ann")
        with pytest.raises(StaleContext) as refused:
            acme.session("s").message("deaf", agent="bob")
        assert refused.value.event == unheard.id


def test_an_explanation_is_short_however_long_the_view(log):
    """Of thousands of tasks it names some, and says how many more there are."""
    session = log.session("s")
    event = session.message("words", agent="ann", task_id="other")
    tasks = [f"task-{number:04}" for number in range(5000)]
    for view in (
        View(name="v", selects=[Select(tasks=tasks)]),
        View(name="v", selects=[Select(agents=tasks)]),
    ):
        (because,) = session.through(view).explain(event).because
        assert "task-0019 or one of 4,980 more" in because
        assert len(because) < 500
    (because,) = (
        session.through(View(name="v", selects=[Select(tasks=[*tasks, "other"])])).explain(event).because
    )
    assert len(because) < 500


class TestTenants:
    """A view of one tenant takes nobody's place in the sessions of others."""

    @pytest.fixture(autouse=True)
    def defined(self, log):
        """A view for workers of one tenant, and one of its own under a name that ships with convlog."""
        log.grant_role("bob", "worker", by="ops")
        log.define_view(View(name="theirs", tenant="acme", roles=["worker"]), by="ops")
        log.define_view(View(name="auditor", tenant="acme"), by="ops")

    @pytest.mark.parametrize(
        ("tenant", "worker", "auditor"),
        [
            ("acme", "theirs@1", "auditor@1"),
            ("globex", "worker@0", "auditor@0"),
            (None, "worker@0", "auditor@0"),
        ],
    )
    def test_a_session_is_read_through_what_is_for_its_tenant(self, log, tenant, worker, auditor):
        """By role and by name, before its first event and after it."""
        session = log.session("s", tenant=tenant)
        for _ in range(2):
            assert session.through(reader="bob").label == worker
            assert session.through("auditor").label == auditor
            assert session.join("bob", role="worker").view == worker
            session.message("words", agent="ann")
        assert log.memory(session="s", reader="bob") == []
        assert log.why(session.event(1).id, view="auditor").events

    def test_one_that_is_named_and_for_another_finds_no_session(self, log):
        """It is there, and shows nothing of other tenants."""
        session = log.session("s", tenant="globex")
        session.message("words", agent="ann")
        for name in ("theirs", "auditor@1"):
            with pytest.raises(UnknownReference) as refused:
                session.through(name)
            assert refused.value.field == "session"


class TestDefinitions:
    """A definition is taken whole, or refused."""

    def test_one_that_is_longer_than_a_line_holds_is_kept_whole(self, log, store_path):
        """It stands, and so do the others."""
        tasks = [f"task-{number}" for number in range(2000)]
        log.define_view(View(name="long", tenant="acme", selects=[Select(tasks=tasks)]), by="ops")
        log.define_view(View(name="short"), by="ops")
        with ConversationLog.open(store_path) as again:
            assert list(again.view("long@1").selects[0].tasks) == tasks
            assert again.view("short").version == 1
        with ConversationLog.open(store_path, tenant="acme") as bound:
            assert list(bound.view("long").selects[0].tasks) == tasks
        assert not list(log.verify())

    @pytest.mark.parametrize("name", ["words@1", "auditor@0", "x@y@3"])
    def test_no_view_is_called_like_a_version_of_another(self, log, name):
        """What was read or exported through a version would be shown through that view."""
        with pytest.raises(InvalidEvent) as refused:
            log.define_view(View(name=name), by="ops")
        assert refused.value.pointer == "/name"
        with pytest.raises(InvalidEvent):
            View.from_stored({"name": name})

    def test_a_version_is_found_before_a_view_that_is_called_so(self, log, monkeypatch):
        """Where an older convlog let one be called so."""
        log.session("s").message("words", agent="ann")
        with monkeypatch.context() as older:
            older.setattr(View, "check_definable", View.check)
            log.define_view(View(name="auditor@0"), by="ops")
        assert bodies(log.session("s").through("auditor@0").tail()) == [None]
        assert log.view("auditor@0@1").name == "auditor@0"

    def test_the_longest_name_is_said(self, log):
        """A name that is too long is refused at its own place, and one that is not is taken."""
        assert log.define_view(View(name="x" * 251), by="ops").version == 1
        with pytest.raises(InvalidEvent) as refused:
            log.define_view(View(name="x" * 252), by="ops")
        assert refused.value.pointer == "/name"

    @pytest.mark.parametrize(
        ("pointer", "said"),
        [
            ("/selects", {"selects": 5}),
            ("/payload", {"payload": "metadata"}),
            ("/sessions", {"sessions": "session"}),
            ("/max_sensitivity", {"max_sensitivity": "secret"}),
            ("/people", {"people": "no"}),
            ("/selects/0/tasks", {"selects": [Select(tasks="login")]}),
        ],
    )
    def test_what_is_no_view_shows_nothing(self, log, pointer, said):
        """A View that nobody defined is held to the same rules: `payload="metadata"` does not grant `meta`."""
        session = log.session("s")
        session.message("words", agent="ann", meta={"key": "value"})
        for call in (session.through, lambda view: log.define_view(view, by="ops")):
            with pytest.raises(InvalidEvent) as refused:
                call(View(**({"name": "v"} | said)))
            assert refused.value.pointer == pointer
        with pytest.raises(InvalidEvent):
            session.through({"name": "v"})

    def test_who_is_known_to_have_read_reads_through_a_view_that_the_store_keeps(self, log):
        """By its label alone is it known later what was read, and what is to be heard first."""
        session = log.session("s")
        session.message("words", agent="ann")
        for call in (session.join, session.listener):
            with pytest.raises(InvalidEvent) as refused:
                call("bob", view=View(name="auditor"))
            assert refused.value.pointer == "/view"
            with pytest.raises(UnknownReference):
                call("bob", view=View(name="mine"))
        kept = log.define_view(View(name="mine"), by="ops")
        bob = session.join("bob", view=kept)
        assert bodies(bob.listen()) == ["words"]
        assert bob.message("heard").seen["view"] == "mine@1"
        assert session.seen("bob").matches


def test_the_last_events_of_a_view_come_once_and_in_order(log, store_path, capfdbinary):
    """Also where a read stops in between, and what they name stands far in front: as many as were asked for."""
    session = log.session("s")
    log.define_view(View(name="v", selects=[Select(roles=["lead"])], links=["evidence"]), by="ops")
    grounds = session.message("grounds", agent="ann")
    first = session.message("first", agent="ann", role="lead")
    session.message("second", agent="ann", role="lead")
    session.append_many([Draft(type="message", agent="ann", body="noise")] * SCAN)
    session.message("third", agent="ann", role="lead", links={"evidence": [grounds.id, first.id]})
    assert session.through("v").tail(3).next is not None
    for count, expected in ((1, []), (2, ["second"]), (3, ["second"]), (9, ["second"])):
        status = main(("--store", str(store_path), "tail", "s", "--view", "v", "-n", str(count)))
        lines = capfdbinary.readouterr().out.splitlines()
        assert status == 0
        assert [json.loads(line)["body"] for line in lines] == ["grounds", "first", *expected, "third"]
