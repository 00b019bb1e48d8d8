"""Views: a slice holds exactly what its definition says, whatever way the tables are asked."""

import os
import random

import pytest

from convlog_sqlite import (
    Attachment,
    ConversationLog,
    Draft,
    InvalidEvent,
    NotAuthorized,
    Select,
    StateConflict,
    UnknownReference,
    View,
)

AGENTS = ("ann", "bob", "cid", "dot")
TASKS = ("t1", "t2", "t3", "t4")
THREADS = ("h1", "h2")
ROLES = ("worker", "verifier", "lead")
KINDS = (
    "decision-made",
    "plan-set",
    "state-set",
    "task-claimed",
    "task-assigned",
    "task-released",
    "task-done",
)
ACTS = ("propose", "inform", "request", "refuse", "agree")
LEVELS = ("public", "internal", "confidential", "restricted")
PURPOSES = ("audit", "training", "support")
PEOPLE = ("Ada", "Bob")
KEYS = ("body", "args", "result", "value", "usage", "meta")
LINKS = ("evidence", "derived_from", "supersedes")


def seeds():
    """Some seeds of our own, and one of this run."""
    own = 11 if "CI" in os.environ else int.from_bytes(os.urandom(4), "big")
    return [1, 2, 3, own]


@pytest.fixture(params=seeds(), ids=lambda seed: f"seed-{seed}")
def chance(request):
    """Random numbers whose seed stands in the test's name."""
    return random.Random(request.param)


@pytest.fixture
def log(store_path):
    """A log of its own."""
    with ConversationLog.init(store_path, mirror=False) as opened:
        yield opened


def some(chance, options, most=2):
    """None, one or a few of some options."""
    return tuple(chance.sample(options, chance.randint(0, min(most, len(options)))))


def raised(event):
    """What a label may say of an event that has no other label: its sensitivity or above."""
    return LEVELS[LEVELS.index(event.sensitivity) :]


def keys(chance, session):
    """What any draft may say of itself."""
    said = {"agent": chance.choice(AGENTS)}
    if chance.random() < 0.5:
        said["task_id"] = chance.choice(TASKS)
    if chance.random() < 0.3:
        said["thread_id"] = chance.choice(THREADS)
    if chance.random() < 0.4:
        said["role"] = chance.choice(ROLES)
    if chance.random() < 0.5:
        said["to"] = [chance.choice([*AGENTS, "role:worker", "role:lead"])]
    if chance.random() < 0.4:
        said["sensitivity"] = chance.choice(LEVELS)
    if chance.random() < 0.2:
        said["purposes"] = chance.sample(PURPOSES, chance.randint(1, 2))
    if chance.random() < 0.15:
        said["subjects"] = [chance.choice(PEOPLE)]
    if chance.random() < 0.2:
        said["source"] = {"harness": "claude-code", "at": "2026-01-02T03:04:05.000000Z"}
    if session and chance.random() < 0.3:
        said["links"] = {chance.choice(LINKS): [chance.choice(session).id]}
    if chance.random() < 0.2:
        said["meta"] = {"n": 1}
    return said


def write(chance, log, session, count):
    """Random events of every type, and labels on some of them."""
    events = []
    for number in range(count):
        said = keys(chance, events)
        shape = chance.random()
        if shape < 0.45:
            if chance.random() < 0.5:
                said["performative"] = chance.choice(ACTS)
            event = session.message(f"text {number}", **said)
        elif shape < 0.6:
            event = session.tool_call("shell", {"n": number}, **said)
            if chance.random() < 0.7:
                events.append(event)
                event = session.tool_result(event, "ok", agent=said["agent"])
        elif shape < 0.65:
            said.pop("links", None)
            event = session.tool_call("pay", {"n": number}, effect={"state": "proposed"}, **said)
        else:
            kind = chance.choice(KINDS)
            if kind.startswith("task-"):
                said.setdefault("task_id", chance.choice(TASKS))
            try:
                event = session.mutation(kind, {"n": number}, **said)
            except StateConflict:  # a task that another has is not claimed
                continue
        events.append(event)
        if chance.random() < 0.1:
            which = chance.choice(events)
            events.append(
                log.label(
                    which.id,
                    subjects=some(chance, PEOPLE, 1),
                    sensitivity=chance.choice(raised(which)),
                    by="ann",
                )
            )
        if chance.random() < 0.05:
            a, b = chance.sample(TASKS, 2)
            session.depends(a, b, agent="ann")
    return events


def random_view(chance):
    """A view that asks for anything that a view can ask for."""
    selects = [
        Select(
            tasks=some(chance, TASKS), threads=some(chance, THREADS, 1), agents=some(chance, AGENTS),
            roles=some(chance, ROLES), types=some(chance, ("message", "tool_call", "tool_result", "mutation")),
            kinds=some(chance, KINDS), performatives=some(chance, ACTS), own=chance.random() < 0.3,
            dependencies=chance.random() < 0.3, addressed=chance.random() < 0.3, authored=chance.random() < 0.2,
            effects=chance.random() < 0.1,
        )
        if chance.random() < 0.3
        else Select(**{chance.choice(("own", "dependencies", "addressed", "authored", "effects")): True})
        if chance.random() < 0.5
        else Select(**{key: some(chance, options, 3) for key, options in [chance.choice((
            ("tasks", TASKS), ("threads", THREADS), ("agents", AGENTS), ("roles", ROLES), ("kinds", KINDS),
            ("performatives", ACTS),
        ))]})
        for _ in range(chance.randint(0, 3))
    ]  # fmt: skip
    return View(
        name="v", selects=selects, max_sensitivity=chance.choice(LEVELS), people=chance.random() < 0.7,
        unlabelled=chance.random() < 0.7, purpose=chance.choice([None, "*", *PURPOSES]),
        links=some(chance, LINKS), payload=chance.choice([("*",), (), some(chance, KEYS, 3)]),
    )  # fmt: skip


class Naive:
    """A view read word by word, over every event of a session, in Python."""

    def __init__(self, view, reader, roles, events, labels=None):
        self.labelling = [event for event in labels or events if event.kind == "event-labelled"]
        self.view, self.reader, self.events = view, reader, {event.seq: event for event in events}
        self.by_id = {event.id: event for event in events}
        self.addressed = {reader, *(f"role:{role}" for role in roles)}
        holders, waits = {}, {}
        for event in events:
            if event.kind == "task-claimed":
                holders[event.task_id] = {event.agent}
            elif event.kind == "task-assigned":
                holders[event.task_id] = set(event.to)
            elif event.kind in ("task-created", "task-released"):
                holders[event.task_id] = set()
            elif event.kind == "task-depends":
                _, task, on = event.state_key.split("/")
                waits.setdefault(task, set()).add(on)
        self.own = {task for task, who in holders.items() if reader in who}
        self.awaited = {on for task in self.own for on in waits.get(task, ())}

    def labels(self, event):
        return [label for label in self.labelling if event.id in label.links.get("evidence", ())]

    def is_below(self, event):
        view, labels = self.view, self.labels(event)
        level = max(LEVELS.index(one.sensitivity) for one in [event, *labels])
        if level > LEVELS.index(view.max_sensitivity):
            return False
        if not view.people and any(one.subjects for one in [event, *labels]):
            return False
        if not view.unlabelled and event.source and "sensitivity" not in event.envelope and not labels:
            return False
        return view.purpose == "*" or not event.purposes or view.purpose in event.purposes

    def is_selected(self, event):
        if not self.is_below(event):
            return False
        return not self.view.selects or any(self.takes(select, event) for select in self.view.selects)

    def takes(self, select, event):
        asks = select.tasks or select.own or select.dependencies
        tasks = {
            *select.tasks,
            *(self.own if select.own else ()),
            *(self.awaited if select.dependencies else ()),
        }
        return (
            (not asks or event.task_id in tasks)
            and (not select.threads or event.thread_id in select.threads)
            and (not select.agents or event.agent in select.agents)
            and (not select.roles or event.role in select.roles)
            and (not select.types or event.type in select.types)
            and (not select.kinds or event.kind in select.kinds)
            and (not select.performatives or event.performative in select.performatives)
            and (not select.addressed or bool(self.addressed & set(event.to)))
            and (not select.authored or event.agent == self.reader)
            and (not select.effects or event.effect is not None)
        )

    def selected(self):
        return [seq for seq, event in sorted(self.events.items()) if self.is_selected(event)]

    def with_linked(self, seqs):
        more = {
            self.by_id[target].seq
            for seq in seqs
            for link in self.view.links
            for target in self.events[seq].links.get(link, ())
            if target in self.by_id and self.is_below(self.by_id[target])
        }
        return sorted(more | set(seqs))


def seqs(events):
    """The seqs of events."""
    return [event.seq for event in events]


def walked(slice_, **how):
    """Every page of a read, in order."""
    found, place = [], 0
    while place is not None:
        page = slice_.selected(after=place, **how)
        found += seqs(page)
        place = page.next
    return found


def everything(session):
    """Every event that a session shows."""
    return list(session.read(limit=100_000))


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "forked"])
def test_a_slice_is_what_a_naive_reading_selects(log, chance, forked):
    """For random logs and views, tail, read, page by page and bounded, jsonl and event give what the words say."""
    session = log.session("s")
    log.grant_role("bob", "worker", by="ann")
    write(chance, log, session, 60)
    if forked:
        at = chance.randint(2, session.head)
        write(chance, log, session, 10)
        session = session.fork("child", at, agent="ann")
        write(chance, log, session, 40)
    events = everything(session)
    labels = events + everything(
        log.session("s")
    )  # one that came after the fork counts for what is shared too
    for _ in range(25):
        view, reader = random_view(chance), chance.choice(AGENTS)
        naive = Naive(view, reader, ["worker"] if reader == "bob" else [], events, labels)
        slice_ = session.through(view, reader=reader)
        expected = naive.selected()
        n, scan = chance.randint(0, 30), chance.choice([1, 3, 10, 1000])
        last = expected[max(len(expected) - n, 0) :]
        assert seqs(slice_.tail(n)) == naive.with_linked(last), view
        assert walked(slice_, limit=7, max_scan=scan) == expected, view
        before, backwards = None, []
        while True:
            page = slice_.tail(5, before=before, max_scan=scan)
            backwards = [seq for seq in seqs(page) if seq in expected] + backwards
            before = page.next
            if before is None:
                break
        assert sorted(set(backwards)) == expected, view
        assert seqs(slice_.read(limit=10)) == naive.with_linked(expected[:10])
        assert [line.count(b"\n") for line in slice_.jsonl(inherited=True)] == [1] * len(expected)
        for event in events:
            explained = slice_.explain(event)
            assert explained.shown == (event.seq in expected), explained
            assert (slice_.event(event.seq) is not None) == explained.shown
            assert explained.because


def test_filters_narrow_a_slice(log, chance):
    """A filter beside a view leaves what both select."""
    session = log.session("s")
    write(chance, log, session, 80)
    events = everything(session)
    for _ in range(40):
        view, reader = random_view(chance), chance.choice(AGENTS)
        filters = {
            key: value
            for key, value in (
                ("agent", chance.choice(AGENTS)), ("task_id", chance.choice(TASKS)), ("type", "message"),
                ("kind", chance.choice(KINDS)), ("tool", "shell"), ("to", chance.choice(AGENTS)),
                ("performative", chance.choice(ACTS)), ("thread_id", "h1"),
            )
            if chance.random() < 0.2
        }  # fmt: skip
        expected = [
            seq
            for seq in Naive(view, reader, [], events).selected()
            if all(
                value in event.to if key == "to" else getattr(event, key) == value
                for event in [next(event for event in events if event.seq == seq)]
                for key, value in filters.items()
            )
        ]
        slice_ = session.through(view, reader=reader)
        assert walked(slice_, limit=9, **filters) == expected, (
            view,
            filters,
        )


def test_keys_that_are_not_granted_never_appear(log, chance):
    """Whatever way a slice is read, it holds the payload keys of its view and says that it kept others back."""
    session = log.session("s")
    write(chance, log, session, 60)
    session.message(
        "x" * 20_000, agent="ann", meta={"m": 1}, attachments=[Attachment("text/plain", b"bytes")]
    )
    for _ in range(20):
        view = random_view(chance)
        granted = set(KEYS) if "*" in view.payload else set(view.payload)
        slice_ = session.through(view, reader="ann")
        for event in [*slice_.tail(50), *slice_.read(), *slice_.selected()]:
            whole = session.event(event.seq)
            shown = set(event.content) - {"withheld", "truncated"}
            assert shown == {key for key in whole.content if key in granted or "*" in view.payload} - {
                "truncated"
            }
            assert event.withheld == (len(event.content) - event.withheld < len(whole.content))
            assert event.envelope_bytes == whole.envelope_bytes


def test_the_content_behind_a_preview_is_kept_back_with_it(log):
    """Neither the whole value nor an attachment is given where the view does not show them."""
    session = log.session("s")
    event = session.message("x" * 20_000, agent="a", attachments=[Attachment("text/plain", b"bytes")])
    envelopes = session.through("auditor", reader="a")
    for read in (envelopes.content, envelopes.attachment):
        with pytest.raises(NotAuthorized):
            read(event)
    assert session.through("everything").content(event) == "x" * 20_000
    assert session.through("everything").attachment(event) == b"bytes"
    hidden = session.message("secret", agent="a", sensitivity="restricted")
    below = session.through(View(name="v", max_sensitivity="public"))
    with pytest.raises(NotAuthorized):
        below.content(hidden)


class TestStates:
    """A state through a view is folded over what the view shows."""

    def test_values_above_the_ceiling_are_not_there(self, log):
        """Neither the value of a hidden mutation nor its key, nor a value that the view withholds."""
        session = log.session("s")
        session.mutation("state-set", "open", agent="a", state_key="colour")
        session.mutation("state-set", "hidden", agent="a", state_key="secret", sensitivity="restricted")
        shown = session.through(View(name="v", max_sensitivity="internal")).state()
        assert (
            [entry["value"] for entry in shown["colour"]["heads"]] == ["open"]
            if "heads" in shown["colour"]
            else True
        )
        assert "secret" not in shown
        assert "hidden" not in str(shown)
        assert "open" not in str(session.through("auditor", reader="a").state())

    @pytest.mark.parametrize(
        "projection", ["open", "tasks", "agents", "plans", "calls", "effects", "threads"]
    )
    def test_everything_shows_the_state_of_the_session(self, log, projection):
        """Through `everything` each projection says what it says without a view."""
        session = log.session("s")
        write(random.Random(5), log, session, 60)
        assert session.through("everything").state(projection) == session.state(projection)


class TestWhoReads:
    """A view by role, and what is refused."""

    def test_a_role_has_a_view(self, log):
        """A granted role, or the one an agent joined with, gives the view; its own tasks and mail are in it."""
        session = log.session("s")
        log.grant_role("bob", "worker", by="ann")
        session.mutation("task-assigned", agent="ann", task_id="t1", to=["bob"])
        mine = session.message("about t1", agent="ann", task_id="t1")
        mail = session.message("to you", agent="ann", to=["role:worker"])
        other = session.message("elsewhere", agent="ann", task_id="t2")
        found = session.through(reader="bob")
        assert found.label == "worker@0"
        shown = seqs(found.tail(10))
        assert mine.seq in shown
        assert mail.seq in shown
        assert other.seq not in shown
        session.mutation("agent-joined", agent="cid", role="auditor")
        assert session.through(reader="cid").label == "auditor@0"

    def test_what_is_unknown_or_not_for_the_reader_is_refused(self, log):
        """Never an empty list, as if nothing were there."""
        session = log.session("s")
        session.message("hello", agent="ann")
        with pytest.raises(NotAuthorized):
            session.through(reader="nobody")
        with pytest.raises(UnknownReference) as unknown:
            session.through("nonsense", reader="ann")
        assert (unknown.value.field, unknown.value.value) == ("view", "nonsense")
        with pytest.raises(UnknownReference) as unknown:
            session.through(reader="ann", role="captain")
        assert (unknown.value.field, unknown.value.value) == ("role", "captain")
        log.grant_role("ann", "painter", by="bob")
        with pytest.raises(NotAuthorized):
            session.through(reader="ann")
        with pytest.raises(InvalidEvent) as refused:
            session.through("worker")
        assert refused.value.pointer == "/reader"
        with pytest.raises(InvalidEvent) as refused:
            session.through()
        assert refused.value.pointer == "/view"

    def test_two_roles_with_two_views_are_not_guessed_between(self, log):
        """The reader says in which of its roles it reads."""
        session = log.session("s")
        session.message("hello", agent="ann")
        for role in ("worker", "verifier"):
            log.grant_role("bob", role, by="ann")
        with pytest.raises(InvalidEvent) as refused:
            session.through(reader="bob")
        assert refused.value.pointer == "/role"
        assert session.through(reader="bob", role="verifier").label == "verifier@0"

    def test_a_view_of_some_sessions_or_one_purpose_is_for_nothing_else(self, log):
        """A view that names sessions or a purpose refuses another; one of another tenant sees no such session."""
        session = log.session("s", tenant="acme")
        session.message("hello", agent="ann", purposes=["audit"])
        with pytest.raises(NotAuthorized):
            session.through(View(name="v", sessions=("other",)))
        with pytest.raises(NotAuthorized):
            session.through(View(name="v", purpose="audit"), purpose="support")
        with pytest.raises(UnknownReference):
            session.through(View(name="v", tenant="globex"))
        assert len(session.through(View(name="v", purpose="audit")).tail()) == 2
        assert len(session.through(View(name="v"), purpose="support").tail()) == 1


class TestDefinitions:
    """Views are kept in the log, with versions."""

    def test_a_definition_stands_in_every_handle_and_keeps_its_versions(self, log, store_path):
        """The newest of a name stands, an older one is read by its version, a shipped one gives way."""
        first = log.define_view(View(name="mine", selects=[Select(kinds=["decision-made"])]), by="ann")
        second = log.define_view(View(name="mine", payload=("body",)), by="ann")
        assert (first.label, second.label) == ("mine@1", "mine@2")
        with ConversationLog.open(store_path) as other:
            assert other.view("mine") == second
            assert other.view("mine@1").selects == (Select(kinds=("decision-made",)),)
            assert "worker" in [view.name for view in other.views()]
        log.define_view(View(name="worker", roles=("worker",)), by="ann")
        assert log.view("worker").version == 1
        assert log.view("worker@0").selects
        assert list(log.verify()) == []

    def test_the_last_definition_that_names_a_role_is_its_view(self, log):
        """A store's own view for a role goes before the one that ships."""
        log.define_view(View(name="house-worker", roles=("worker",)), by="ann")
        log.grant_role("bob", "worker", by="ann")
        session = log.session("s")
        session.message("hello", agent="ann")
        assert session.through(reader="bob").label == "house-worker@1"

    @pytest.mark.parametrize(
        ("view", "pointer"),
        [
            (View(name=""), "/name"),
            (View(name="v", max_sensitivity="secret"), "/max_sensitivity"),
            (View(name="v", payload=("bodies",)), "/payload/0"),
            (View(name="v", links=("because",)), "/links/0"),
            (View(name="v", sessions=("../x",)), "/sessions/0"),
            (View(name="v", selects=(Select(types=("messages",)),)), "/selects/0/types/0"),
            (View(name="v", selects=(Select(agents="ann"),)), "/selects/0/agents"),
            (View(name="v", selects=(Select(addressed="yes"),)), "/selects/0/addressed"),
            (View(name="v", roles=("",)), "/roles/0"),
        ],
        ids=lambda value: value if isinstance(value, str) else None,
    )
    def test_a_definition_that_means_nothing_is_refused(self, log, view, pointer):
        """With a pointer to the place, and nothing written."""
        before = len(list(log.lines()))
        with pytest.raises(InvalidEvent) as refused:
            log.define_view(view, by="ann")
        assert refused.value.pointer == pointer
        assert len(list(log.lines())) == before

    def test_the_json_form_comes_back_the_same(self, chance):
        """For random views."""
        view = random_view(chance)
        assert View.from_stored(view.to_stored()).to_stored() == view.to_stored()

    @pytest.mark.parametrize(
        ("said", "pointer"),
        [
            ([], ""),
            ({}, "/name"),
            ({"name": "v", "colour": 1}, "/colour"),
            ({"name": "v", "format": 2}, "/format"),
            ({"name": "v", "selects": [{"colour": 1}]}, "/selects/0/colour"),
            ({"name": "v", "selects": "all"}, "/selects"),
            ({"name": 5}, "/name"),
            ({"name": "v", "people": "yes"}, "/people"),
            ({"name": "v", "max_sensitivity": []}, "/max_sensitivity"),
        ],
    )
    def test_json_that_is_no_view_is_refused(self, said, pointer):
        """With a pointer to the place."""
        with pytest.raises(InvalidEvent) as refused:
            View.from_stored(said)
        assert refused.value.pointer == pointer

    def test_a_definition_of_a_later_format_is_refused_by_name(self, log):
        """It is not taken for an older one of that name, nor for none."""
        value = {"format": 9, "name": "later"}
        log._record(
            Draft(type="mutation", agent="ann", kind="view-defined", state_key="view/later", value=value)
        )
        session = log.session("s")
        session.message("hello", agent="ann")
        with pytest.raises(InvalidEvent) as refused:
            session.through("later")
        assert "later@1" in refused.value.rule


def test_a_slice_of_earlier_shows_nothing_that_came_later(log):
    """The task was another's then; what was labelled since is kept back even so."""
    session = log.session("s")
    log.grant_role("bob", "worker", by="ann")
    session.mutation("task-assigned", agent="ann", task_id="t1", to=["bob"])
    about = session.message("about t1", agent="ann", task_id="t1")
    later = session.message("later", agent="ann", task_id="t1")
    session.mutation("task-released", agent="bob", task_id="t1")
    assert about.seq not in seqs(session.through(reader="bob").tail())
    then = session.at(about.seq).through(reader="bob")
    assert about.seq in seqs(then.tail())
    assert later.seq not in seqs(then.tail())
    log.label(about.id, sensitivity="restricted", by="ann")
    assert about.seq not in seqs(session.at(about.seq).through(reader="bob").tail())


def test_a_slice_takes_up_what_is_appended(log, store_path):
    """A slice that is kept sees new events, new tasks and new names, from this handle and from others."""
    session = log.session("s")
    log.grant_role("bob", "worker", by="ann")
    slice_ = session.through(reader="bob")
    assert slice_.tail() == []
    with ConversationLog.open(store_path) as other:
        there = other.session("s")
        there.mutation("task-assigned", agent="ann", task_id="fresh", to=["bob"])
        event = there.message("about it", agent="ann", task_id="fresh")
        assert event.seq in seqs(slice_.tail())


@pytest.mark.parametrize("share", [0.9, 0.2, 0.02, 0.0], ids=["dense", "some", "sparse", "none"])
@pytest.mark.parametrize("forked", [False, True], ids=["session", "fork"])
def test_many_tasks_are_found_near_and_far(log, chance, share, forked):
    """Whether most of what a reader with many tasks is shown is near or lies far away, it is all of it, in order."""
    tasks = [f"t{number}" for number in range(12)]
    session = log.session("s")
    for part in range(2 if forked else 1):
        if part:
            session = session.fork("f", agent="ops")
        for _ in range(3):
            session.append_many(
                Draft(
                    type="message",
                    agent=chance.choice("abc"),
                    to=[chance.choice("de")],
                    task_id=chance.choice(tasks) if chance.random() < share else f"o{chance.randrange(40)}",
                    body="x",
                )
                for _ in range(250)
            )
    for agents in ((), ("a",)):
        selects = [Select(tasks=tasks), *(Select(agents=[agent]) for agent in agents)]
        shown = session.through(View(name="mine", selects=selects))
        every = [
            event.seq for event in session.read(limit=5000) if event.task_id in tasks or event.agent in agents
        ]
        for limit in (1, 7, 20, 90, 2000):
            for _ in range(6):
                edge = chance.randrange(1, session.head + 2)
                assert [event.seq for event in shown.tail(limit, before=edge)] == [
                    seq for seq in every if seq < edge
                ][-limit:]
                assert [event.seq for event in shown.read(after=edge, limit=limit)] == [
                    seq for seq in every if seq > edge
                ][:limit]
        for scan in (1, 30, 100):
            found, after = [], 0
            while after is not None:
                page = shown.read(after=after, limit=20, max_scan=scan)
                found += [event.seq for event in page]
                after = page.next
            assert found == every
            found, before = [], None
            while True:
                page = shown.tail(20, before=before, max_scan=scan)
                found[:0] = [event.seq for event in page]
                if page.next is None:
                    break
                before = page.next
            assert found == every
