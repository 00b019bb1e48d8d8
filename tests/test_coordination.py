"""Agents that work together: conflicting decisions show, a task has one agent, approvals are checked, replies are awaited."""

import asyncio
import json
import random
import subprocess
import sys
import threading

import pytest

from convlog_sqlite import (
    AsyncConversationLog,
    ConversationLog,
    Draft,
    InvalidEvent,
    NoReply,
    NotAuthorized,
    StateConflict,
    UnknownReference,
)
from convlog_sqlite.database import value
from convlog_sqlite.instants import id_bytes
from convlog_sqlite.store import states
from convlog_sqlite.store.reading import SELECT_POS


def standing(log, session, key):
    """The ids of what stands for a state key, and for each the position it replaced unsaid."""
    with log._store.database.read() as connection:
        row = log._store.writer.sessions.require(connection, session.id)
        number = log._store.writer.names.find(connection, key)
        return [(str(head.id.hex()), head.over) for head in states.heads(connection, row, number)]


def position(log, event):
    """Where an event stands in the store."""
    with log._store.database.read() as connection:
        return value(connection, SELECT_POS, (id_bytes(event.id),))


def hexed(*events):
    """Ids as the tables have them."""
    return [event.id.replace("-", "") for event in events]


# What stands


def test_two_decisions_on_one_state_both_stand_until_one_supersedes_both(log):
    """A mutation decided on what no longer stands is a conflict; superseding both heads ends it."""
    session = log.session("s")
    first = session.mutation("decision-made", 1, agent="a", state_key="port")
    ours = session.mutation("decision-made", 2, agent="a", state_key="port", links={"supersedes": [first.id]})
    theirs = session.mutation(
        "decision-made", 3, agent="b", state_key="port", links={"supersedes": [first.id]}
    )
    assert standing(log, session, "port") == [(one, None) for one in hexed(ours, theirs)]
    both = {"supersedes": [ours.id, theirs.id]}
    last = session.mutation("decision-made", 4, agent="c", state_key="port", links=both)
    assert standing(log, session, "port") == [(one, None) for one in hexed(last)]


def test_a_write_that_supersedes_nothing_over_anothers_value_is_marked(log):
    """It alone stands, and says whose value it replaced; over one's own value nothing is marked."""
    session = log.session("s")
    session.mutation("state-set", 1, agent="a", state_key="k")
    second = session.mutation("state-set", 2, agent="a", state_key="k")
    assert standing(log, session, "k") == [(*hexed(second), None)]
    third = session.mutation("state-set", 3, agent="b", state_key="k")
    assert standing(log, session, "k") == [(*hexed(third), position(log, second))]


def test_later_prose_does_not_end_a_conflict(log):
    """A write that supersedes nothing joins the heads of a conflict, and silences none."""
    session = log.session("s")
    first = session.mutation("state-set", 1, agent="a", state_key="k")
    link = {"supersedes": [first.id]}
    heads = [session.mutation("state-set", n, agent=n, state_key="k", links=link) for n in "bc"]
    heads.append(session.mutation("state-set", 4, agent="d", state_key="k"))
    assert standing(log, session, "k") == [(one, None) for one in hexed(*heads)]


def test_expect_writes_only_on_what_it_expects(log):
    """Strict: nothing is written when something else stands, and the error says what does."""
    session = log.session("s")
    first = session.mutation("state-set", 1, agent="a", state_key="k", expect=None)
    head = session.head
    with pytest.raises(StateConflict) as refused:
        session.mutation("state-set", 2, agent="b", state_key="k", expect=None)
    assert (refused.value.state_key, refused.value.heads, session.head) == ("k", (first.id,), head)
    second = session.mutation("state-set", 2, agent="b", state_key="k", expect=first)
    assert second.links == {"supersedes": [first.id]}
    with pytest.raises(StateConflict):
        session.mutation("state-set", 3, agent="a", state_key="k", expect=first.id)


def test_a_strict_write_and_a_claim_can_be_tried_again(log):
    """With an idempotency key the first event comes back, though it no longer is what it was decided on."""
    session = log.session("s")
    for _ in range(2):
        write = session.mutation(
            "state-set", 1, agent="a", state_key="k", expect=None, idempotency_key="w", links=None
        )
    session.mutation("state-set", 2, agent="a", state_key="k", expect=write)
    again = session.mutation("state-set", 1, agent="a", state_key="k", expect=None, idempotency_key="w")
    assert again == write
    draft = Draft(type="mutation", agent="a", kind="task-claimed", task_id="jwt", idempotency_key="c")
    session.mutation("task-created", agent="lead", task_id="jwt")
    assert session.append(draft) == session.append(draft)


def test_within_one_append_each_draft_sees_those_before_it(log):
    """A batch that would conflict with itself is refused whole."""
    session = log.session("s")
    draft = Draft(type="mutation", agent="a", kind="state-set", state_key="k", value=1, expect=None)
    with pytest.raises(StateConflict) as refused:
        session.append_many([draft, draft])
    assert refused.value.index == 1
    assert not session.head


def test_the_heads_are_those_that_the_rule_gives_for_any_sequence(log):
    """What is kept at append equals a fold of the whole session, for random writes and links."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    session = log.session("s")
    written = {key: [] for key in "xyz"}
    for _ in range(120):
        key = chance.choice("xyz")
        known = chance.sample(written[key], min(len(written[key]), chance.randrange(3)))
        links = {"supersedes": [event.id for event in known]} if known else None
        keys = {} if links is None else {"links": links}
        written[key].append(
            session.mutation("state-set", 1, agent=chance.choice("ab"), state_key=key, **keys)
        )
    for key, events in written.items():
        heads = []
        for event in events:
            replaced = {position(log, one) for one in events if one.id in event.links.get("supersedes", ())}
            heads = states.fold(heads, states.Head(position(log, event), event.id, event.agent), replaced)
        assert standing(log, session, key) == [(head.id.replace("-", ""), head.over) for head in heads]


# Claims


def test_a_task_is_claimed_by_one_agent(log):
    """The second agent is told who has it; given back, it can have it. The seq is the fencing number."""
    session = log.session("s")
    claim = session.claim("jwt", agent="a")
    with pytest.raises(StateConflict) as refused:
        session.claim("jwt", agent="b")
    assert (refused.value.holder, refused.value.heads) == ("a", (claim.id,))
    assert session.claim("jwt", agent="a").seq > claim.seq
    session.release("jwt", agent="a")
    assert session.claim("jwt", agent="b").seq > claim.seq


@pytest.mark.parametrize("kind", ["task-done", "task-failed"])
def test_a_task_that_ended_is_not_claimed(log, kind):
    """Nobody does again what is done, unless it is created anew."""
    session = log.session("s")
    session.claim("jwt", agent="a")
    session.mutation(kind, agent="a", task_id="jwt")
    with pytest.raises(StateConflict):
        session.claim("jwt", agent="a")
    session.mutation("task-created", agent="lead", task_id="jwt")
    session.claim("jwt", agent="b")


def test_an_assigned_task_is_for_those_it_was_assigned_to(log):
    """Others are told whose it is."""
    session = log.session("s")
    session.mutation("task-assigned", agent="lead", task_id="jwt", to=["b"])
    with pytest.raises(StateConflict) as refused:
        session.claim("jwt", agent="a")
    assert refused.value.holder == "b"
    session.claim("jwt", agent="b")


def test_a_claim_ends_with_its_lease(store_path, clock):
    """The clock that decides is that of the log; a renewal starts the lease anew."""
    with ConversationLog.open(store_path, clock=clock) as log:
        session = log.session("s")
        session.claim("jwt", agent="a", lease=60)
        clock.advance(59)
        session.claim("jwt", agent="a", lease=60)
        clock.advance(59)
        with pytest.raises(StateConflict):
            session.claim("jwt", agent="b")
        clock.advance(2)
        session.claim("jwt", agent="b")


CLAIMER = """
import sys
from convlog_sqlite import ConversationLog, StateConflict
agent, tasks = sys.argv[2], int(sys.argv[3])
with ConversationLog.open(sys.argv[1]) as log:
    session = log.session("s")
    for number in range(tasks):
        try:
            session.claim(f"t{number}", agent=agent)
        except StateConflict:
            continue
        print(number, flush=True)
"""


def test_agents_in_several_processes_never_have_the_same_task(log, store_path):
    """Eight processes race for a hundred tasks: each goes to one."""
    log.session("s").message("go", agent="lead")
    command = [sys.executable, "-c", CLAIMER, str(store_path)]
    racing = [
        subprocess.Popen([*command, agent, "100"], stdout=subprocess.PIPE, text=True) for agent in "abcdefgh"
    ]
    taken = [line for process in racing for line in process.communicate()[0].split()]
    assert sorted(map(int, taken)) == list(range(100))


def test_two_processes_racing_on_one_key_give_one_winner(log, store_path):
    """Of strict writes on the same head, exactly one lands, whatever the order."""
    session = log.session("s")
    head = session.mutation("state-set", 0, agent="lead", state_key="k")
    landed = []

    def race(agent):
        with ConversationLog.open(store_path) as other:
            try:
                landed.append(
                    other.session("s").mutation("state-set", 1, agent=agent, state_key="k", expect=head)
                )
            except StateConflict as refused:
                landed.append(refused)

    threads = [threading.Thread(target=race, args=(agent,)) for agent in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(isinstance(one, StateConflict) for one in landed) == [False, *[True] * 5]


# Roles and approvals


def test_a_proposal_to_a_role_takes_a_holder_of_it(log):
    """Not its maker, not who lacks the role, and no longer who lost it."""
    session = log.session("s")
    proposal = session.propose("Drop the table?", agent="worker", approver="security")
    assert (proposal.to, proposal.performative) == (["role:security"], "propose")
    for agent in ("worker", "bob"):
        with pytest.raises(NotAuthorized) as refused:
            session.approve(proposal, agent=agent)
        assert refused.value.agent == agent
    log.grant_role("bob", "security", by="ops")
    assert session.approve(proposal, agent="bob").parent_id == proposal.id
    session.revoke_role("bob", "security", agent="ops")
    with pytest.raises(NotAuthorized):
        session.approve(proposal, agent="bob")
    session.grant_role("bob", "security", agent="ops")
    session.approve(proposal, agent="bob")


def test_the_maker_of_a_proposal_that_holds_the_role_still_needs_another(log):
    """Nobody approves what it proposed itself, nor grants itself the role."""
    session = log.session("s")
    session.grant_role("worker", "security", agent="ops")
    proposal = session.propose("Drop it?", agent="worker", approver="security")
    with pytest.raises(NotAuthorized):
        session.approve(proposal, agent="worker")
    with pytest.raises(NotAuthorized):
        session.grant_role("worker", "admin", agent="worker")
    with pytest.raises(NotAuthorized):
        log.grant_role("worker", "admin", by="worker")


def test_the_check_cannot_be_passed_by_another_way_in(log):
    """A draft that says the same as `approve` is held to the same rule."""
    session = log.session("s")
    proposal = session.propose("Drop it?", agent="worker", approver="security")
    draft = {"type": "message", "agent": "x", "body": "ok", "performative": "agree", "parent_id": proposal.id}
    with pytest.raises(NotAuthorized):
        session.append(Draft.from_dict(draft))


def test_agents_that_bid_need_no_role(log):
    """A proposal to an agent is accepted by anybody but its maker, as in a contract net."""
    session = log.session("s")
    bid = session.message("10 minutes", agent="b", to=["lead"], performative="propose")
    with pytest.raises(NotAuthorized):
        session.approve(bid, agent="b")
    session.approve(bid, agent="lead")


def test_names_with_slashes_hold_their_own_roles(log):
    """The state key of a role keeps agent and role apart, whatever is in their names."""
    session = log.session("s")
    session.grant_role("team", "a/security", agent="ops")
    proposal = session.propose("?", agent="worker", approver="security")
    with pytest.raises(NotAuthorized):
        session.approve(proposal, agent="team/a")


# Asking


def test_a_reply_is_the_first_event_of_another_on_the_request(log, store_path):
    """What the asker adds itself is no reply."""
    session = log.session("s")

    def answer():
        with ConversationLog.open(store_path) as other:
            theirs = other.session("s")
            request = next(theirs.follow(0, to="backend"))
            theirs.message("hurry", agent="lead", parent_id=request.id)
            theirs.message("8080", agent="backend", parent_id=request.id)

    thread = threading.Thread(target=answer)
    session.message("start", agent="lead")
    thread.start()
    assert session.ask("Which port?", agent="lead", to="backend", timeout=20).body == "8080"
    thread.join()


def test_nobody_answers(log):
    """The error names the request, which stands and can be answered later."""
    session = log.session("s")
    with pytest.raises(NoReply) as late:
        session.ask("Anyone?", agent="a", to="b", timeout=0.05)
    said = session.message("Yes", agent="b", parent_id=late.value.request)
    assert session.reply_to(late.value.request, timeout=0) == said


def test_an_approval_is_awaited_and_a_rejection_raises(log):
    """`approved` passes over what decides nothing."""
    session = log.session("s")
    proposal = session.propose("Deploy?", agent="a", approver="ops")
    session.grant_role("o", "ops", agent="lead")
    session.message("Thinking.", agent="o", parent_id=proposal.id)
    with pytest.raises(NoReply):
        session.approved(proposal, timeout=0)
    yes = session.approve(proposal, agent="o")
    assert session.approved(proposal, timeout=0) == yes
    other = session.propose("Again?", agent="a", approver="ops")
    session.reject(other, agent="o")
    with pytest.raises(NotAuthorized):
        session.approved(other, timeout=0)


def test_tasks_await_replies_and_give_up_when_cancelled(store_path):
    """The async twin waits beside the loop, and a cancelled wait leaves no thread behind."""

    async def body():
        async with AsyncConversationLog.open(store_path) as log:
            session = log.session("s")
            asking = asyncio.ensure_future(session.ask("Which port?", agent="a", to="b"))
            async for request in session.follow(0, to="b"):
                await session.message("8080", agent="b", parent_id=request.id)
                break
            assert (await asking).body == "8080"
            before = threading.active_count()
            waiting = asyncio.ensure_future(session.approved(request))
            while threading.active_count() == before:
                await session.head()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert threading.active_count() <= before

    asyncio.run(asyncio.wait_for(body(), 60))


# Why


def test_why_goes_back_to_the_roots_and_forward_to_what_came_of_it(log):
    """Parents, calls and links are edges; each event stands once, nearest first."""
    session = log.session("s")
    root = session.message("Do it.", agent="user")
    proof = session.message("It is safe.", agent="b")
    call = session.tool_call("deploy", {}, agent="a", parent_id=root.id, links={"evidence": [proof.id]})
    result = session.tool_result(call, "done", agent="a")
    trace = log.why(result.id)
    assert [event.id for event in trace.events] == [result.id, call.id, root.id, proof.id]
    assert trace.depths == [0, 1, 2, 2]
    assert {(edge.source, edge.relation, edge.target) for edge in trace.edges} == {
        (result.id, "parent_id", call.id),
        (result.id, "call_id", call.id),
        (call.id, "parent_id", root.id),
        (call.id, "evidence", proof.id),
    }
    assert [event.id for event in log.why(root.id, forward=True).events] == [root.id, call.id, result.id]
    assert trace.is_whole


def test_why_is_bounded_and_says_so(log):
    """A long chain ends at the limit; the nearest events are those shown."""
    session = log.session("s")
    last = session.message("0", agent="a")
    for number in range(1, 30):
        last = session.message(str(number), agent="a", parent_id=last.id)
    trace = log.why(last.id, limit=10)
    assert ([event.body for event in trace.events], trace.is_whole) == (
        [str(n) for n in range(29, 19, -1)],
        False,
    )


def test_many_that_name_one_event_do_not_hang_a_walk(log):
    """A thousand links to one event: a bounded walk forward looks at no more than it shows."""
    session = log.session("s")
    root = session.message("root", agent="a")
    drafts = [Draft(type="message", agent="a", body="x", links={"evidence": [root.id]}) for _ in range(1000)]
    session.append_many(drafts)
    trace = log.why(root.id, forward=True, limit=20)
    assert (len(trace.events), trace.is_whole) == (20, False)


def test_a_link_stays_in_its_session(log):
    """Evidence of another session is refused, with the place named."""
    there = log.session("there").message("x", agent="a")
    with pytest.raises(InvalidEvent) as refused:
        log.session("here").message("y", agent="a", links={"evidence": [there.id]})
    assert refused.value.pointer == "/links/evidence"
    assert not log.session("here").head


def test_why_crosses_sessions_and_shows_what_was_erased(log):
    """A parent may be in another session; an erased event still stands in the trace."""
    here, there = log.session("here"), log.session("there")
    root = there.message("secret", agent="a")
    leaf = here.message("x", agent="a", parent_id=root.id)
    log.redact(events=[root.id], reason="test", by="ops")
    assert [(event.session, event.answer) for event in log.why(leaf.id).events] == [
        ("here", "live"),
        ("there", "erased"),
    ]
    with pytest.raises(UnknownReference):
        log.why("00000000-0000-7000-8000-000000000000")


# The command


@pytest.fixture
def command(store_path):
    """The command on a store that is there, in a process of its own."""
    ConversationLog.init(store_path).close()

    def run(*words):
        whole = [sys.executable, "-m", "convlog_sqlite", "--store", str(store_path), *words]
        return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=60)

    return run


def test_people_ask_approve_and_look_for_reasons_from_the_shell(command):
    """role, approve, reject and why work by ids as they are printed."""
    run = command
    said = run(
        "append", "s", "--agent", "w", "--body", "Drop it?", "--performative", "propose", "--to", "role:dba"
    )
    proposal = json.loads(said.stdout)["id"]
    assert run("approve", proposal, "--as", "eve").returncode == 3
    assert run("role", "grant", "eve", "dba", "--by", "ops").returncode == 0
    approved = json.loads(run("approve", proposal, "--as", "eve").stdout)
    assert (approved["performative"], approved["parent_id"]) == ("accept-proposal", proposal)
    lines = [json.loads(line) for line in run("why", approved["id"]).stdout.splitlines()]
    assert [(line["depth"], line["event"]["id"]) for line in lines] == [(0, approved["id"]), (1, proposal)]
    assert lines[1]["edges"] == [{"relation": "parent_id", "id": approved["id"]}]
    assert run("role", "revoke", "eve", "dba", "--by", "ops").returncode == 0
    assert run("approve", proposal, "--as", "eve").returncode == 3
    assert json.loads(run("reject", proposal, "--as", "eve").stdout)["body"] == "rejected"
    assert run("ask", "s", "--to", "b", "--body", "?", "--as", "a", "--timeout", "0").returncode == 1


def test_claims_and_strict_writes_from_the_shell(command):
    """`append --kind task-claimed --lease` claims, `--expect` is strict."""

    def run(*words):
        return command("append", "s", *words)

    claim = ("--kind", "task-claimed", "--task", "jwt", "--lease", "60", "--agent")
    assert run(*claim, "a").returncode == 0
    assert run(*claim, "b").returncode == 3
    write = ("--kind", "state-set", "--state-key", "k", "--value", "1", "--agent", "a", "--expect")
    first = json.loads(run(*write, "none").stdout)["id"]
    assert run(*write, "none").returncode == 3
    assert run(*write, first).returncode == 0
