"""A log that is bound to a tenant: every public call of it is made, and nothing of another tenant comes out."""

import asyncio
import contextlib
import dataclasses
import inspect
import itertools
import json
import threading
import types
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convlog_sqlite import (
    AsyncConversationLog,
    AsyncListener,
    AsyncMoment,
    AsyncParticipant,
    AsyncSession,
    AsyncSlice,
    AsyncStoreKeys,
    Attachment,
    ConversationLog,
    ConvlogError,
    Draft,
    EffectCommitted,
    Event,
    InvalidEvent,
    Listener,
    Live,
    Mirror,
    Moment,
    NoReply,
    NotAuthorized,
    Participant,
    Projection,
    Reading,
    RetentionPolicy,
    Session,
    Slice,
    StoreKeys,
    UnknownReference,
    View,
    import_transcripts,
    restore,
)
from convlog_sqlite.cli import OF_TENANTS, VERBS, main
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.store.readings import Noted
from convlog_sqlite.views.shipped import SHIPPED

OWN, OTHER, NOBODYS, STORE = "acme-1", "globex-1", "plain-1", "_store"
MARKS = ("globex", "plain-", "nobody-", "warden")  # of the other tenant, of sessions without one, of `_store`
STOPPED = threading.Event()
STOPPED.set()
FOREIGN = (OTHER, NOBODYS, STORE, "globex-2", "Globex-1")


def filled(session, name):
    """Every kind of event, with the name wherever callers may put one; by what each is."""
    agent, task = f"{name}-agent", f"{name}-task"
    said = {"task_id": task, "thread_id": f"{name}-thread", "correlation_id": f"{name}-corr"}
    made = {
        "message": session.message(
            f"{name} says", agent=agent, to=[f"{name}-peer", "ops"], subjects=[f"{name} Lee"], **said,
            attachments=[Attachment("text/plain", f"{name} file".encode())], idempotency_key=f"{name}-key",
        ),
        "long": session.message(f"{name} " * 5000, agent=agent, meta={name: name}),
        "call": session.tool_call(f"{name}-tool", {name: name}, agent=agent, **said),
        "answered": session.tool_call("grep", {name: name}, agent="shared", task_id="shared"),
        "state": session.mutation("state-set", f"{name} value", agent=agent, state_key=f"{name}-port"),
        "proposal": session.propose(f"{name}?", agent=agent, approver="dba"),
        "request": session.request(f"{name}?", agent=agent, to="ops"),
        "effect": session.tool_call(
            f"{name}-pay", {name: 1}, agent=agent, effect={"state": "proposed"}, idempotency_key="pay-1"
        ),
    }  # fmt: skip
    made["result"] = session.tool_result(made["answered"], f"{name} result", agent=agent)
    session.mutation("effect-attempted", agent=agent, effect={"id": made["effect"].id, "state": "attempted"})
    session.claim(task, agent=agent, lease=900)
    session.claim("shared", agent=agent, lease=900)
    session.mutation("state-set", name, agent=agent, state_key="shared")
    session.mutation("plan-set", f"{name} plan", agent=agent)
    session.mutation("skill-activated", name, agent=agent)
    session.grant_role(f"{name}-dba", "dba", agent=agent)
    session.depends(task, f"{name}-first", agent=agent)
    claimed = session.propose_memory(
        [made["message"]], f"{name} claim", scope="store", key="shared", by=agent
    )
    accepted = session.approve(claimed, agent=f"{name}-peer")
    made |= {
        "claimed": claimed,
        "accepted": accepted,
        "claim": session.promote(by=agent, approved_by=accepted),
    }
    return made


class World:
    """A store of two tenants and of sessions without one, whose events name each other across."""

    def __init__(self, path, outside):
        self.path, self.outside = path, outside
        with ConversationLog.init(path) as log:
            sessions = {
                OWN: log.session(OWN, tenant="acme"),
                OTHER: log.session(OTHER, tenant="globex"),
                NOBODYS: log.session(NOBODYS),
            }
            self.made = {name: filled(session, name.partition("-")[0]) for name, session in sessions.items()}
            own, other = self.made[OWN], self.made[OTHER]
            self.crossing = sessions[OWN].message("acme heard", agent="a", parent_id=other["message"].id)
            self.made[OTHER]["heard"] = sessions[OTHER].message(
                "globex heard", agent="globex-b", parent_id=own["request"].id
            )
            linked = {"evidence": [other["state"].id], "supersedes": [own["state"].id]}
            foreign = Draft(type="message", agent="a", body="acme imported", links=linked)
            log.append_foreign(OWN, [(log.foreign_id("test", "acme"), foreign)])
            back = Draft(type="message", agent="globex-b", body="x", links={"evidence": [own["state"].id]})
            log.append_foreign(OTHER, [(log.foreign_id("test", "globex"), back)])
            self.imported = log.foreign_id("test", "globex")
            sessions[OTHER].fork("globex-2", agent="globex-agent")
            sessions[OWN].fork("acme-2", agent="acme-agent")
            log.grant_role("warden", "warden-role", by="ops")
            log.grant_role("acme-lead", "dba", by="warden")
            with_reader = sessions[OTHER].join("globex-reader", role="globex-role", view="everything")
            with_reader.listen(5)
            with_reader.message("globex heard it")
            log.set_policy(
                RetentionPolicy(id="globex-policy", match={"tenant": "globex"}, max_age="1d"), by="warden"
            )
            self.hold = log.place_hold(session=OTHER, reason="legal_order", by="warden").id
            log.define_view(View(name="globex-view", tenant="globex"), by="warden")
            log.define_view(View(name="acme-view", tenant="acme"), by="warden")
            log.set_task_kind("globex-kind", "done", by="warden")
            log.export_to(outside / "all-out")
            log.mirror.update()  # what was imported waits for this
            named = {event.id for events in self.made[OWN].values() for event in [events]}
            self.ids = {
                event.id
                for session in log.sessions()
                if session.tenant != "acme"
                for event in log.session(session.id).read()
            } - named
        # What an own event names is in its own line.
        self.named = {other["message"].id, other["state"].id}


@pytest.fixture
def world(store_path, tmp_path):
    """A store of two tenants."""
    outside = tmp_path / "outside"
    outside.mkdir()
    return World(store_path, outside)


# What comes out of a call, as text


def text_of(found, depth=0):
    """Everything that can be read in what a call gave."""
    if depth > 6 or found is None or isinstance(found, bool | int | float):
        return repr(found)
    if isinstance(found, str | bytes):
        return found if isinstance(found, str) else found.decode("utf-8", "replace")
    if isinstance(found, Event):
        return found.line.decode() + text_of(found.content if found.answer == "live" else None, depth + 1)
    if isinstance(found, BaseException):
        return f"{type(found).__name__} {found} " + text_of(vars(found), depth + 1)
    if isinstance(found, Mapping):
        return text_of([*found, *found.values()], depth + 1)
    if isinstance(found, Path):
        return str(found)
    if dataclasses.is_dataclass(found):
        return text_of(
            {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}, depth + 1
        )
    if isinstance(found, Session | AsyncSession | Moment | AsyncMoment):
        return f"{found!r} {getattr(found, 'tenant', '')}"
    if isinstance(found, Slice):
        return text_of([repr(found), found.tail(500, pairs=True), found.jsonl(), found.state()], depth + 1)
    if isinstance(found, Listener):
        heard = [repr(found), found.listen(500, pairs=True), found.news(), found.role, found.view]
        return text_of(heard, depth + 1)
    if isinstance(found, Mirror):
        return text_of([found.root, found.problem], depth + 1)
    if isinstance(found, Iterator | list | tuple | set | frozenset):
        extra = text_of(found.next, depth + 1) if hasattr(found, "next") else ""
        return " ".join([extra, *(text_of(item, depth + 1) for item in itertools.islice(found, 500))])
    return repr(found)


def outcome(call):
    """The text of what a call gives or raises."""
    try:
        found = call()
        if isinstance(found, contextlib.AbstractContextManager) and not isinstance(found, Mirror | Path):
            with found as inside:
                return text_of(inside)
        if isinstance(found, Mirror):
            found.close()
        return text_of(found)
    except (ConvlogError, ValueError, TypeError) as error:
        return text_of(error)


async def awaited(found):
    """The text of what an awaitable, an async iterator or an async block gives or raises."""
    try:
        if isinstance(found, AsyncIterator):
            return text_of([item async for item in found])
        if isinstance(found, contextlib.AbstractAsyncContextManager):
            async with found as inside:
                return text_of(inside)
        return text_of(await found if inspect.isawaitable(found) else found)
    except (ConvlogError, ValueError, TypeError) as error:
        return text_of(error)


def assert_nothing_of_others(world, said, given, what):
    """No mark and no id of another tenant stands in a text, but for what the call itself named."""
    text = said
    for named in sorted(map(str, given), key=len, reverse=True):
        text = text.replace(named, "")
    for mark in MARKS:
        assert mark not in text.lower(), f"{what}: {mark!r} in {said[:2000]}"
    for event_id in world.ids - world.named:
        assert event_id not in text, f"{what}: the id {event_id} in {said[:2000]}"


def strings_in(value):
    """Every text in the arguments of a call, and the ids of events among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Event):
        yield from (value.id, value.line.decode(), value.body or "", value.session, value.agent)
    elif isinstance(value, Draft):
        yield from strings_in([value.parent_id, value.call_id, value.links, value.effect, value.body])
    elif isinstance(value, Mapping):
        yield from strings_in([*value, *value.values()])
    elif isinstance(value, EffectCommitted):
        yield value.committed
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_in(item)


# Every public call: by name, the arguments with which it is made. A new one fails until it stands here.

ids = lambda world: [event.id for made in world.made.values() for event in made.values()]  # noqa: E731


def draft(**keys):
    """A message that says x."""
    return Draft(type="message", agent="a", body="x", **keys)


def noted():
    """A reading that nobody made."""
    extent = {"first": 1, "last": 2, "upto": 2, "count": 2, "pairs": False, "digest": "0" * 64}
    who = {"reader": "acme-agent", "role": None, "purpose": None, "view": "everything", "version": 0}
    return Noted(Reading(**who, **extent, at="2026-01-02T03:04:05.000000Z"), 0)


def log_calls(world):
    """(arguments, keywords) for each public method of a log."""
    every, sessions = ids(world), [OWN, *FOREIGN]
    a_draft = [Draft(type="message", agent="a", body="x")]
    naming = [draft(parent_id=event_id) for event_id in every]
    erase = {"reason": "test", "by": "a", "dry_run": True}
    return {
        "append_drafts": [((name, tenant, a_draft), {}) for name in sessions for tenant in (None, "globex")]
        + [((OWN, None, [one]), {}) for one in naming],
        "append_foreign": [((name, [(world.imported, draft())]), {}) for name in sessions],
        "claim": [((event_id,), {}) for event_id in every],
        "memory": [((), {"whole": whole, **more}) for whole in (False, True) for more in
                   ({}, {"purpose": "x"}, {"reader": "acme-lead"}, *({"session": name} for name in sessions))]
        + [((scope,), {}) for scope in ("store", "session", "agent:globex-agent")],
        "memory_ceiling": [((), {})],
        "retract": [((event_id,), {"by": "a"}) for event_id in every],
        "append_together": [(([(name, None, a_draft) for name in sessions],), {})],
        "created": [],
        "diff": [((a, b), {}) for a in sessions for b in sessions],
        "event": [((found,), {}) for event_id in every for found in (event_id, event_id[:13], event_id[:8])],
        "explain": [((event_id,), {}) for event_id in every],
        "export_to": [((world.outside / "out", *some), {}) for some in [(), *((name,) for name in sessions)]],
        "exporter": [((world.outside / "out",), {})],
        "follow_lines": [(some, {"timeout": 0}) for some in [(), *((name,) for name in sessions)]],
        "foreign_id": [(("test", "new"), {})],
        "fork_session": [((name, f"acme-f{n}", None, "a"), {}) for n, name in enumerate(FOREIGN)]
        + [((OWN, name, None, "a"), {}) for name in FOREIGN],
        "label": [((event_id,), {"subjects": ["Ann"], "by": "a"}) for event_id in every],
        "lines": [(some, {}) for some in [(), *((name,) for name in sessions)]],
        "mirror": [],
        "projections": [((), {})],
        "recall_of": [],  # asked inside an append
        "record_readings": [((name, [noted()]), {}) for name in sessions],
        "redact": [((), {"events": [event_id]} | erase) for event_id in every]
        + [((), {scope: name} | erase) for scope in ("session", "task", "agent") for name in (*sessions, "shared")]
        + [((), {"subject": "globex Lee"} | erase)]
        + [((), {"session": OWN, more: value} | erase) for more, value in
           (("fence", True), ("verify", True), ("override_hold", [world.hold]))],
        "register": [((Projection("mine", lambda state, event: state),), {})],
        "removed_sessions": [((), {})],
        "scrubbed": [],
        "session": [((name,), {"tenant": tenant}) for name in sessions for tenant in (None, "acme", "globex")],
        "sessions": [((), {})],
        "state_of": [((name, "agents", None), {"rebuild": rebuild}) for name in sessions for rebuild in (0, 1)],
        "through": [((name, "everything"), {"reader": None, "role": None, "purpose": None}) for name in sessions],
        "verify": [(some, {"projections": True}) for some in [(), *((name,) for name in sessions)]],
        "view": [((name,), {}) for name in ("worker", "globex-view", "globex-view@1", "acme-view")],
        "views": [((), {})],
        "why": [((event_id,), {"forward": forward}) for event_id in every for forward in (False, True)],
    }  # fmt: skip


WHOLE_STORE = {
    "anchor": ((), {}),
    "apply_retention": ((), {"by": "a"}),
    "backup": (("nowhere",), {}),
    "define_view": ((View(name="v"),), {"by": "a"}),
    "exports": ((), {}),
    "fences": ((), {}),
    "forget_export": (("nowhere",), {}),
    "grant_role": (("a", "r"), {"by": "b"}),
    "holds": ((), {}),
    "lift_fence": (("Ann",), {"by": "a"}),
    "place_hold": ((), {"session": OWN, "reason": "legal_order", "by": "a"}),
    "policies": ((), {}),
    "record_erasures": ((), {"by": "a"}),
    "release_hold": (("x",), {"by": "a"}),
    "remove_policy": (("globex-policy",), {"by": "a"}),
    "revoke_role": (("warden", "warden-role"), {"by": "a"}),
    "set_memory_ceiling": (("internal",), {"by": "a"}),
    "set_policy": ((RetentionPolicy(id="mine", max_age="1d"),), {"by": "a"}),
    "set_task_kind": (("x", "done"), {"by": "a"}),
    "status": ((), {}),
    "task_kinds": ((), {}),
}
# These give nothing of the store: they make a log, end it, wait, or run what the caller gives.
SILENT = {
    "open", "init", "ephemeral", "close", "waiter", "run", "make", "to_its_end", "sync", "await_close",
    "record_readings",
}  # fmt: skip


def session_calls(world):
    """(arguments, keywords) for each public method of a session, whichever it is."""
    every = ids(world)
    events = [event for made in world.made.values() for event in made.values()]
    naming = [{"parent_id": event_id} for event_id in every] + [{"links": {"evidence": [i]}} for i in every]
    by = {"agent": "acme-agent"}
    pay = (("acme-agent", "pay", {"acme": 1}), {"idempotency_key": "pay-1"})
    return {
        "against": [(({"globex-port": 1},), {})],
        "append": [
            ((draft(idempotency_key="globex-key"),), {}),
            *(((draft(**keys),), {}) for keys in naming),
        ],
        "append_many": [(([draft(), draft(**keys)],), {}) for keys in naming[:3]],
        "approve": [((event_id,), by) for event_id in every],
        "approved": [((event_id,), {"timeout": 0}) for event_id in every],
        "ask": [(("acme?",), by | {"to": "ops", "timeout": 0})],
        "at": [((point,), {}) for event in events for point in (event.id, event.id[:8], event)],
        "attachment": [((event,), {}) for event in events],
        "begin_effect": [],  # `once` and `effect` begin with it
        "claim": [(("shared",), by), (("acme-task",), by)],
        "commit_effect": [((event, "a", 1), {}) for event in events],
        "compensate": [((event, "a", "undone"), {}) for event in events],
        "content": [
            ((event,), {}) for event in events if event.tenant == "acme" or "truncated" in event.content
        ],
        "depends": [(("shared", "first"), by)],
        "effect": [(pay[0], pay[1])],
        "effects": [((), {}), *(((), {"after": event_id}) for event_id in every)],
        "event": [((seq,), {}) for seq in (1, 2, 5)],
        "find_effect": [((event_id,), {}) for event_id in every],
        "follow": [((0,), {"timeout": 0})],
        "fork": [((name,), by) for name in FOREIGN]
        + [((f"acme-{i}", event_id), by) for i, event_id in enumerate(every)],
        "grant_role": [(("x", "dba"), by)],
        "head": [],
        "informed": [((), {})],
        "join": [(("acme-agent",), {}), (("acme-new",), {"role": "worker"})],
        "jsonl": [((), {}), ((), {"inherited": True})],
        "listener": [(("acme-agent",), {})],
        "listening": [(("warn",), {"by": "acme-agent"})],
        "listening_mode": [((), {})],
        "message": [(("acme",), by | keys) for keys in naming],
        "mutation": [
            (("state-set", 1), by | {"state_key": "shared", "expect": event_id}) for event_id in every
        ]
        + [(("effect-attempted",), by | {"effect": {"id": i, "state": "attempted"}}) for i in every],
        "once": [(pay[0], pay[1] | {"run": lambda key: 1})],
        "open_calls": [((), {})],
        "participant": [((name,), {}) for name in ("acme-agent", "globex-agent", "globex-reader")],
        "propose": [(("acme?",), by | {"approver": "dba"})],
        "read": [((), {}), *(((), {key: "shared"}) for key in ("agent", "task_id"))],
        "readings": [((), {}), (("acme-agent",), {}), (("globex-reader",), {})],
        "receipt": [],  # of an event that the caller has
        "receipt_of": [((EffectCommitted("x", event_id),), {}) for event_id in every],
        "recover": [(("acme-agent",), {})],
        "reject": [((event_id,), by) for event_id in every],
        "release": [(("shared",), by)],
        "replay": [((), {}), *(((), {"start": event_id}) for event_id in every)],
        "reply_to": [((event_id,), {"timeout": 0}) for event_id in every],
        "request": [(("acme?",), by | {"to": "ops"})],
        "memory": [((), {"whole": whole}) for whole in (False, True)],
        "promote": [((), {"by": "acme-agent", "approved_by": event_id}) for event_id in every],
        "propose_memory": [(([event_id], "acme"), {"by": "acme-agent"}) for event_id in every]
        + [(([every[0]], "acme"), {"by": "acme-agent", "supersedes": [event_id]}) for event_id in every],
        "retract": [((event_id,), {"by": "acme-agent"}) for event_id in every],
        "revoke_role": [(("x", "dba"), by)],
        "seen": [((name,), {}) for name in ("acme-agent", "shared", "globex-reader")]
        + [(("acme-agent", event_id), {}) for event_id in every],
        "settle": [((event_id, "undone"), by) for event_id in every],
        "state": [
            ((name,), {}) for name in ("state", "open", "tasks", "agents", "plans", "effects", "threads")
        ]
        + [((), {"at": event_id}) for event_id in every],
        "tail": [((), {}), ((50,), {"pairs": True}), ((), {"to": "ops"}), ((), {"agent": "globex-agent"})],
        "through": [(("everything",), {}), ((), {"reader": "acme-agent", "role": "worker"})],
        "tool_call": [(("x",), by | keys) for keys in naming[:4]],
        "tool_result": [((event_id, "x"), by) for event_id in every],
    }


# What the verbs above are made of, with a waiter that the caller holds.
WAITERS = {"reply_by", "approval_by", "follow_pages", "bound"}
MOMENT_CALLS = {
    "event": [((2,), {})],
    "head": [],
    "jsonl": [((), {}), ((), {"inherited": True})],
    "of": [],  # `Session.at` is it
    "open_calls": [((), {})],
    "read": [((), {})],
    "state": [((), {}), (("agents",), {})],
    "tail": [((), {}), ((50,), {"pairs": True})],
    "through": [(("everything",), {})],
}


def slice_calls(world):
    """(arguments, keywords) for each public method of a slice."""
    events = [event for made in world.made.values() for event in made.values()]
    whole = [event for event in events if event.tenant == "acme" or "truncated" in event.content]
    return {
        "attachment": [((event,), {}) for event in whole],
        "content": [((event,), {}) for event in whole],
        "event": [((seq,), {}) for seq in (1, 2, 3)],
        "explain": [((event,), {}) for event in events],
        "adds": [],
        "between": [((1, 100), {})],
        "head": [],
        "jsonl": [((), {})],
        "label": [],
        "newest": [((50,), {})],
        "purpose": [],
        "read": [((), {}), ((), {"agent": "globex-agent"})],
        "reader": [],
        "role": [],
        "selected": [((), {})],
        "shown": [((event,), {}) for event in events],
        "shows": [((event,), {}) for event in events],
        "state": [((), {}), (("agents",), {})],
        "tail": [((), {}), ((50,), {"pairs": True})],
        "view": [],
        "with_calls": [(([bare(event) for event in events],), {})],
        "with_linked": [(([bare(event) for event in events],), {})],
    }


def bare(event):
    """An event without its content, as anybody can make one."""
    return Event(event.envelope_bytes, Live(b"{}"))


def participant_calls(world):
    """The calls of a session as a participant makes them, which says no agent; and what it hears."""
    found = {"flush": [((), {})], "heard_upto": [], "listen": [((50,), {}), ((5,), {"pairs": True})]}
    found |= {"news": [((), {}), ((2,), {})], "leave": [((), {})]}
    for name, all_arguments in session_calls(world).items():
        if name in public(Participant) and name != "append_many":
            says_who = name in ("once", "effect", "recover")
            found[name] = [
                (arguments[says_who:], {key: item for key, item in keys.items() if key != "agent"})
                for arguments, keys in all_arguments
            ]
    # Last: nothing comes after it.
    return found | {"leave": found.pop("leave")}


# What goes between two calls, of what they gave; a batch is what `append` is made of.
BETWEEN = {"acknowledge", "append_many", "complete", "hear", "say_joined", "wrote"}
MIRROR_CALLS = {
    "after_append": [((name,), {}) for name in (OWN, *FOREIGN)],
    "close": [],
    "follow": [((), {"stop": STOPPED}), (((OTHER,),), {"stop": STOPPED})],
    "path": [((name,), {}) for name in (OWN, *FOREIGN)],
    "remove": [((name,), {}) for name in FOREIGN],
    "rewrite": [((name,), {}) for name in (OWN, *FOREIGN)],
    "sessions": [((), {})],
    "start": [((), {})],
    "stop": [((), {})],
    "update": [((), {}), *(((name,), {}) for name in (OWN, *FOREIGN))],
    "withdrawn": [((), {})],
}


def public(kind):
    """The public names of a class."""
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("kind", "listed"),
    [
        (ConversationLog, lambda world: {*log_calls(world), *WHOLE_STORE, *SILENT}),
        (AsyncConversationLog, lambda world: {*log_calls(world), *WHOLE_STORE, *SILENT}),
        (Session, lambda world: {*session_calls(world), *WAITERS}),
        (AsyncSession, lambda world: {*session_calls(world), *WAITERS}),
        (Moment, lambda world: set(MOMENT_CALLS)),
        (AsyncMoment, lambda world: set(MOMENT_CALLS)),
        (Slice, lambda world: {*slice_calls(world), "oldest", "admitted"}),  # asked in a transaction
        (AsyncSlice, lambda world: {*slice_calls(world), "sync"}),
        (Participant, lambda world: {*participant_calls(world), *BETWEEN}),
        (AsyncParticipant, lambda world: {*participant_calls(world), *BETWEEN}),
        (Listener, lambda world: {*participant_calls(world), *BETWEEN}),
        (AsyncListener, lambda world: {*participant_calls(world), *BETWEEN}),
        (Mirror, lambda world: set(MIRROR_CALLS)),
    ],
)
def test_every_public_call_is_listed(world, kind, listed):
    """Whoever adds one says here what it is asked, or that it is about the whole store."""
    assert public(kind) - listed(world) == set()


def test_every_verb_is_listed():
    """A new verb is refused to tenants until it stands among theirs; then it stands in the walk below."""
    assert VERBS.keys() >= OF_TENANTS
    assert {argv[0] for argv in verb_calls()} == VERBS.keys()


# The walk


def calls(target, table):
    """(what, call, arguments) for every call of a table that the target has."""
    for name, all_arguments in table.items():
        if not hasattr(type(target), name):
            continue
        if isinstance(inspect.getattr_static(target, name), property):
            yield name, lambda name=name: getattr(target, name), ()
            continue
        for arguments, keys in all_arguments:
            call = lambda name=name, a=arguments, k=keys: getattr(target, name)(*a, **k)  # noqa: E731
            yield name, call, [*strings_in(arguments), *strings_in(keys)]


def walk(world, target, table, given=()):
    """Make every call; the text of all that came out."""
    said = []
    for name, call, arguments in calls(target, table):
        found = outcome(call)
        assert_nothing_of_others(
            world, found, [*arguments, *given], f"{type(target).__name__}.{name}{arguments}"
        )
        said.append(found)
    return " ".join(said)


@pytest.fixture
def acme(world):
    """The store, bound to one of its tenants."""
    with ConversationLog.open(world.path, tenant="acme", durability="normal") as log:
        yield log


@pytest.fixture
def whole(world):
    """The same store, bound to nobody."""
    with ConversationLog.open(world.path, durability="normal") as log:
        yield log


def test_no_call_of_a_log_gives_anything_of_another_tenant(world, acme):
    """Each with sessions, ids and beginnings of ids of all tenants; what is the tenant's own does come out."""
    said = walk(world, acme, log_calls(world))
    assert "acme says" in said
    assert "acme imported" in said


@pytest.mark.parametrize("session", [OWN, "acme-2", *FOREIGN])
def test_no_call_of_a_session_gives_anything_of_another_tenant(world, acme, session):
    """A session of one's own, a fork, and those that are not there."""
    target = acme.session(session)
    assert ("acme says" in text_of(target.tail(60))) is session.startswith("acme")
    walk(world, target, session_calls(world), [session])


def test_a_session_object_from_elsewhere_is_no_way_in(world, acme):
    """One that names another tenant, made by hand, reads nothing and writes nothing."""
    for tenant in ("globex", None):
        session = Session(acme, OTHER, tenant)
        assert (session.head, session.tail(), session.state()) == (0, [], {})
        with pytest.raises(UnknownReference):
            session.message("x", agent="a")


def test_an_event_made_by_hand_is_no_way_to_a_blob(world, acme):
    """What an event says of itself opens nothing of another tenant."""
    session = acme.session(OWN)
    for name, session_id in itertools.product(("long", "message", "call"), (OTHER, OWN)):
        envelope = world.made[OTHER][name].envelope_bytes.replace(OTHER.encode(), session_id.encode())
        forged = Event(envelope, Live(b'{"truncated":{"bytes":1,"kept":1},"attachments":[1]}'))
        for call in (session.content, session.attachment):
            with pytest.raises(UnknownReference):
                call(forged)


def test_no_call_of_a_moment_gives_anything_of_another_tenant(world, acme):
    """Nor does one that was made by hand of another's session."""
    assert "acme says" in walk(world, acme.session(OWN).at(world.crossing.seq), MOMENT_CALLS)
    for name in FOREIGN:
        walk(world, Moment(acme.reader, name, 5, acme), MOMENT_CALLS, [name])


def test_a_view_that_is_for_another_tenant_is_in_nobodys_way(world, acme, whole):
    """Neither one of the same name, defined since, nor one that this version does not understand."""
    whole.define_view(View(name="worker", tenant="acme", max_sensitivity="public"), by="warden")
    whole.define_view(View(name="worker", tenant="globex"), by="warden")
    found = acme.view("worker")
    assert (found.tenant, found.label, found.max_sensitivity) == ("acme", "worker@1", "public")
    unknown = {"name": "globex-next", "tenant": "globex", "from-the-future": 1}
    for value in (unknown, unknown | {"tenant": "acme"}):
        assert {view.name for view in acme.views()} == {*SHIPPED, "acme-view"}
        draft = Draft(
            type="mutation", agent="warden", kind="view-defined", value=value, state_key="view/globex-next"
        )
        whole._record(draft)
    with pytest.raises(InvalidEvent):
        acme.views()


@pytest.mark.parametrize("session", [OWN, "acme-2", *FOREIGN])
def test_no_call_of_a_participant_gives_anything_of_another_tenant(world, acme, whole, session):
    """Nor does one that only listens; whoever it says it is, nothing is noted where it may not read."""

    def noted():
        return {name: len(whole.session(name).readings()) for name in (OTHER, NOBODYS)}

    before = noted()
    target = acme.session(session)
    for name in ("acme-agent", "globex-reader"):
        listener = target.listener(name, view="everything")
        walk(world, listener, participant_calls(world), [session, name])
        listener.flush()
    if session.startswith("acme"):
        participant = target.join("acme-agent", role="worker")
        assert "acme says" in text_of(participant.listen(60))
        walk(world, participant, participant_calls(world), [session])
    else:
        with pytest.raises(ConvlogError):
            target.join("acme-agent", view="everything").listen()
    assert noted() == before


@pytest.mark.parametrize("session", [OWN, "acme-2", *FOREIGN])
def test_no_call_of_a_slice_gives_anything_of_another_tenant(world, acme, session):
    """Not through the view that shows most, nor through one of the tenant's own."""
    for name, purpose in (("everything", "*"), ("acme-view", None)):
        found = acme.session(session).through(name, reader="acme-agent", purpose=purpose)
        said = walk(world, found, slice_calls(world), [session])
        assert ("acme-agent" in text_of(found.tail(50))) is session.startswith("acme")
        assert said
    for view in ("globex-view", View(name="v", tenant="globex")):
        with pytest.raises(UnknownReference):
            acme.session(OWN).through(view)


def test_no_call_of_a_mirror_gives_or_harms_anything_of_another_tenant(world, acme, whole):
    """Neither the store's own files nor an export; every file is what it was."""
    whole.mirror.update()
    before = {path: path.read_bytes() for path in world.path.glob("sessions/*/*") if path.is_file()}
    assert len(before) > 4
    walk(world, acme.mirror, MIRROR_CALLS)
    after = {path: path.read_bytes() for path in world.path.glob("sessions/*/*") if path.is_file()}
    assert after == before
    out = world.outside / "all-out"
    before = {path: path.read_bytes() for path in out.glob("*/*") if path.parent.name != OWN}
    exporter = acme.exporter(out)
    walk(world, exporter, MIRROR_CALLS)
    exporter.close()
    after = {path: path.read_bytes() for path in out.glob("*/*") if path.parent.name not in (OWN, "acme-2")}
    assert before.items() >= after.items()
    assert {path.parent.name for path in after} == {*FOREIGN} - {"Globex-1"}


def test_a_tenant_does_not_keep_the_mirror_of_others(world, acme, whole):
    """Whoever appends would leave its lines to it; under whatever name the directory is given."""
    (world.outside / "alias").symlink_to(world.path / "sessions")
    mirror = acme.mirror
    with pytest.raises(NotAuthorized):
        mirror.follow(stop=STOPPED)
    with pytest.raises(NotAuthorized):
        mirror.start()
    for directory in (world.path / "sessions", world.outside / "alias"):
        with pytest.raises(InvalidEvent):
            acme.exporter(directory)
    event = whole.session(OTHER).message("globex goes on", agent="globex-agent")
    assert event.line in whole.mirror.path(OTHER).read_bytes()


def test_no_call_of_a_reader_gives_anything_of_another_tenant(world, acme):
    """What the parts of a log read through sees no more than they do."""
    table = {
        "event": [((event_id,), {}) for event_id in ids(world)],
        "known": [((ids(world),), {})],
        "is_removed": [((name,), {}) for name in FOREIGN],
        "head": [((name,), {}) for name in FOREIGN],
        "find_session": [((name,), {}) for name in FOREIGN],
        "require_session": [((name,), {}) for name in FOREIGN],
        "require_tenant": [((), {})],
        "lines": [((name,), {"own": own}) for name in FOREIGN for own in (True, False)],
        "blocks": [((name,), {}) for name in FOREIGN],
        "read": [((name, 0, None, 100, {}), {}) for name in FOREIGN],
        "tail": [((name, 100, None, {}), {}) for name in FOREIGN],
        "open_calls": [((name, 0, 100), {}) for name in FOREIGN],
        "answered": [((name, [3], 100), {}) for name in FOREIGN],
        "place": [((name, 3), {}) for name in FOREIGN],
        "effect": [((name, event_id), {}) for name in (OWN, *FOREIGN) for event_id in ids(world)],
        "effects": [((name, "attempted", 0, 10), {}) for name in FOREIGN],
        "newest_effects": [((name, "attempted", 10), {}) for name in FOREIGN],
        "changed_sessions": [((0,), {})],
        "session_ids": [((), {})],
        "summaries": [((), {})],
        "removed_sessions": [((), {})],
    }
    walk(world, acme.reader, table)
    assert set(acme.reader.known(ids(world))) == {event.id for event in world.made[OWN].values()}
    # `row` and `head_of` are asked in a transaction, `blob` and `calls_of` with events; `store_head` is a number and a digest.
    assert public(Reader) - table.keys() == {"row", "head_of", "blob", "calls_of", "store_head"}


@pytest.mark.parametrize("name", sorted(WHOLE_STORE))
def test_what_is_about_the_whole_store_is_refused(world, acme, name):
    """With the rule named, and nothing written."""
    arguments, keys = WHOLE_STORE[name]
    before = acme.reader.store_head()
    with pytest.raises(NotAuthorized) as refused:
        getattr(acme, name)(*arguments, **keys)
    assert "whole store" in refused.value.rule
    assert acme.reader.store_head() == before


@pytest.mark.parametrize(
    "keys",
    [
        {"fence": True, "subject": "Ann"},
        {"session": OWN, "override_hold": "x"},
        {"session": OWN, "verify": True},
    ],
)
def test_what_of_a_redaction_is_about_the_whole_store_is_refused(world, acme, keys):
    """A fence, overriding a hold, and the search of every file; an anchor for `verify` likewise."""
    with pytest.raises(NotAuthorized):
        acme.redact(**keys, reason="test", by="a")
    with ConversationLog.open(world.path, read_only=True) as log:
        anchor = log.anchor()
    with pytest.raises(NotAuthorized):
        acme.verify(anchor=anchor)


def test_the_walk_would_find_something(world, whole):
    """On a log that is bound to nobody, the same calls give what is another tenant's."""
    for target, table in ((whole, log_calls(world)), (whole.session(OTHER), session_calls(world))):
        with pytest.raises(AssertionError, match="globex"):
            walk(world, target, table)


def test_the_async_twins_give_nothing_of_another_tenant(world):
    """The same calls, awaited; what is about the whole store is refused there too."""

    async def body():
        said = []
        async with AsyncConversationLog.open(world.path, tenant="acme", durability="normal") as log:
            targets = [(log, log_calls(world), ())]
            targets += [(log.session(name), session_calls(world), (name,)) for name in (OWN, OTHER)]
            targets.append((await log.session(OWN).at(3), MOMENT_CALLS, ()))
            for name in (OWN, OTHER):
                targets.append((await log.session(name).through("everything"), slice_calls(world), (name,)))
                targets.append(
                    (
                        await log.session(name).listener("b", view="everything"),
                        participant_calls(world),
                        (name,),
                    )
                )
            targets.append(
                (await log.session(OWN).join("acme-agent", role="worker"), participant_calls(world), ())
            )
            for target, table, given in targets:
                for name, call, arguments in calls(target, table):
                    try:
                        found = await awaited(call())
                    except (ConvlogError, ValueError, TypeError) as error:
                        found = text_of(error)
                    assert_nothing_of_others(
                        world, found, [*arguments, *given], f"{type(target).__name__}.{name}"
                    )
                    said.append(found)
            for name in WHOLE_STORE.keys() & public(AsyncConversationLog):
                arguments, keys = WHOLE_STORE[name]
                with pytest.raises(NotAuthorized):
                    await getattr(log, name)(*arguments, **keys)
        return " ".join(said)

    assert "acme says" in asyncio.run(body())


# The command


def verb_calls():
    """Arguments for each verb, more than once where it takes sessions or events."""
    named = [OWN, *FOREIGN]
    yield from (["append", name, "--agent", "a", "--body", "x"] for name in named)
    yield from (["tail", name, "-n", "50"] for name in named)
    yield from (["show", name, "2"] for name in named)
    yield from (["state", name, "-p", "agents"] for name in named)
    yield from (["export", name] for name in named)
    yield from (["verify", name] for name in named)
    yield from (["effects", name] for name in named)
    yield from (["recover", name, "--as", "a"] for name in named)
    yield from (["replay", name] for name in named)
    yield from (["fork", name, "acme-new", "--agent", "a"] for name in FOREIGN)
    yield from (["fork", OWN, name, "--agent", "a"] for name in FOREIGN)
    yield from (["diff", OWN, name] for name in named)
    yield from (["ask", name, "--agent", "a", "--to", "b", "--body", "x", "--timeout", "0"] for name in named)
    yield from (["redact", "--session", name, "--reason", "test", "--by", "a", "--dry-run"] for name in named)
    yield from (
        ["redact", "--by", "a", "--dry-run"],
        ["sessions"],
        ["sessions", "--all"],
        ["export"],
        ["verify"],
    )
    yield from (["role", "grant", "x", "dba", "--by", "a", "--session", name] for name in named)
    yield from (
        ["role", "grant", "x", "dba", "--by", "a"],
        ["export", "--mirror"],
        ["export", "--forget", "x"],
    )
    yield from (["import", "claude-code", "nowhere"], ["init"], ["status"], ["anchor"], ["backup", "x"])
    yield from (["restore", "x", "--by", "a"], ["keys", "status"], ["policy", "list"], ["hold", "list"])
    yield from (["fence", "list"], ["verify", "--projections"])
    yield from ([verb, "{event}"] for verb in ("show", "why"))
    yield from ([verb, "{event}", "--as", "acme-lead"] for verb in ("approve", "reject"))
    yield ["label", "{event}", "--subject", "Ann", "--by", "a"]
    yield from (["view", "list"], ["view", "show", "globex-view"], ["view", "define", "nowhere", "--by", "a"])
    yield ["view", "explain", "{event}", "--view", "everything"]
    yield from (["join", name, "--as", "acme-agent", "--view", "everything"] for name in named)
    yield from (["seen", agent, name] for agent in ("acme-agent", "globex-reader") for name in named)
    yield from (
        [verb, name, "--view", "everything"] for verb in ("tail", "state", "export") for name in named
    )
    yield from ([verb, "{event}", "--view", "everything"] for verb in ("show", "why"))
    yield from (
        ["memory", verb, *more] for verb in ("list", "export") for more in ([], *([name] for name in named))
    )
    yield from (["memory", verb, "{event}", "--by", "acme-agent"] for verb in ("promote", "retract"))
    yield from (["memory", "show", "{event}"], ["memory", "ceiling"])
    yield ["memory", "propose", "{event}", "--claim", "x", "--by", "acme-agent"]


def test_no_verb_prints_anything_of_another_tenant(world, capfdbinary, monkeypatch):
    """Each with sessions and events of all tenants, as the option says and as the environment says."""
    others = [event.id for event in world.made[OTHER].values()][:3]
    said = {}
    for number, argv in enumerate(verb_calls()):
        for event_id in others if "{event}" in argv else [""]:
            given = [event_id if item == "{event}" else item for item in argv]
            in_front = [] if number % 2 else ["--tenant", "acme"]
            monkeypatch.setenv("CONVLOG_TENANT", "acme") if number % 2 else monkeypatch.delenv(
                "CONVLOG_TENANT", raising=False
            )
            status = main(["--store", str(world.path), *in_front, *given])
            out, err = capfdbinary.readouterr()
            assert_nothing_of_others(world, (out + err).decode(), given, given)
            if argv[0] not in OF_TENANTS:
                assert (status, out) == (3, b""), given
                assert b"whole store" in err
            said[" ".join(given)] = out.decode()
    assert "acme says" in said[f"tail {OWN} -n 50"]
    assert said["export"].count("\n") > 20
    assert [json.loads(line)["id"] for line in said["sessions"].splitlines()] == [OWN, "acme-2"]


def test_a_shell_completes_only_what_is_the_tenants(world, capfdbinary, monkeypatch):
    """With the tenant in front of the verb as in the environment."""
    from convlog_sqlite.cli.options import complete_session

    def completed(**typed):
        root = types.SimpleNamespace(params={"store": str(world.path)} | typed)
        return complete_session(types.SimpleNamespace(obj=None, find_root=lambda: root), "")

    assert OTHER in completed()
    assert completed(tenant="acme") == [OWN, "acme-2"]
    monkeypatch.setenv("CONVLOG_TENANT", "acme")
    assert completed() == [OWN, "acme-2"]


NEVER = "01a00000-0000-7000-8000-000000000000"


def naming(log):
    """What can be asked of an event by its id, or said of it."""
    session, by, erase = log.session(OWN), {"agent": "a"}, {"reason": "test", "by": "a"}
    effect = {"agent": "a", "idempotency_key": "k"}
    return {
        "event": log.event,
        "why": log.why,
        "explain": log.explain,
        "label": lambda i: log.label(i, subjects=["Ann"], by="a"),
        "redact": lambda i: log.redact(events=[i], **erase),
        "at": session.at,
        "state": lambda i: session.state(at=i),
        "replay": lambda i: list(session.replay(end=i)),
        "fork": lambda i: session.fork("acme-f", i, agent="a"),
        "approve": lambda i: session.approve(i, agent="a"),
        "approved": lambda i: session.approved(i, timeout=0),
        "reject": lambda i: session.reject(i, agent="a"),
        "reply_to": lambda i: session.reply_to(i, timeout=0),
        "find_effect": session.find_effect,
        "settle": lambda i: session.settle(i, "undone", agent="a"),
        "result": lambda i: session.tool_result(i, agent="a"),
        "parent": lambda i: session.message("x", parent_id=i, **by),
        "effect parent": lambda i: session.tool_call(
            "x", parent_id=i, effect={"state": "proposed"}, **effect
        ),
        "evidence": lambda i: session.message("x", links={"evidence": [i]}, **by),
        "supersedes": lambda i: session.mutation("state-set", state_key="k", links={"supersedes": [i]}, **by),
        "authorized by": lambda i: session.message("x", links={"authorized_by": [i]}, **by),
        "expect": lambda i: session.mutation("state-set", state_key="shared", expect=i, **by),
        "attempt": lambda i: session.mutation(
            "effect-attempted", effect={"id": i, "state": "attempted"}, **by
        ),
        "undo": lambda i: session.mutation(
            "effect-compensated", effect={"id": i, "state": "compensated", "outcome": "undone"}, **by
        ),
        "agree": lambda i: session.message("x", performative="agree", parent_id=i, **by),
    }


@pytest.mark.parametrize(
    "name",
    sorted(
        naming(
            types.SimpleNamespace(
                session=lambda _name: types.SimpleNamespace(at=None, find_effect=None),
                event=None,
                why=None,
                explain=None,
            )
        )
    ),
)
def test_an_event_of_another_tenant_is_as_unknown_as_one_that_never_was(world, acme, name):
    """To the letter, whatever is asked or said of it: not even that it is there can be found out."""
    ask = naming(acme)[name]
    never = outcome(lambda: ask(NEVER)).replace(NEVER, "ID")
    for session in (OTHER, NOBODYS):
        for what, event in world.made[session].items():
            assert outcome(lambda event=event: ask(event.id)).replace(event.id, "ID") == never, what


def test_what_another_tenant_imported_is_not_to_be_had(world, acme):
    """Its id is taken; that it is there is neither said to be this tenant's own nor counted."""
    with pytest.raises(UnknownReference) as refused:
        acme.append_foreign(OWN, [(world.imported, draft())])
    assert refused.value.field == "id"


# What a tenant can do


def test_a_tenants_new_sessions_are_its_own(world, acme):
    """Whichever way the first event comes in; the mirror has them at once."""
    event = acme.session("acme-new").message("acme begins", agent="a")
    assert event.tenant == "acme"
    assert acme.session("acme-new").tenant == "acme"
    assert event.line in (world.path / "sessions" / "acme-new" / "conversation.jsonl").read_bytes()
    acme.append_foreign("acme-imported", [(acme.foreign_id("test", "new"), draft())])
    assert acme.session("acme-imported").tail(1)[0].tenant == "acme"
    assert acme.session(OWN).fork("acme-fork", agent="a").tail(1)[0].tenant == "acme"
    assert {summary.tenant for summary in acme.sessions()} == {"acme"}


@pytest.mark.parametrize("name", FOREIGN)
def test_an_id_that_is_taken_elsewhere_is_refused_and_nothing_more_is_said(world, acme, name):
    """The same answer for another tenant's session, one of nobody, and one that differs only by case."""
    if name == STORE:
        with pytest.raises(InvalidEvent):
            acme.session(name).message("x", agent="a")
        return
    for attempt in (
        lambda: acme.session(name).message("x", agent="a"),
        lambda: acme.session(OWN).fork(name, agent="a"),
    ):
        with pytest.raises(UnknownReference) as refused:
            attempt()
        assert (refused.value.field, refused.value.value) == ("session", name)
    assert acme.session(name).head == 0


def test_the_beginning_of_an_id_is_unique_among_ones_own(world, acme, whole):
    """Others' events neither make it ambiguous nor are they found by it."""
    (wanted,) = (event for event in world.made[OWN].values() if event.body == "acme says")
    digits = wanted.id.replace("-", "")
    crowded = next(length for length in range(32, 7, -1) if taken(whole, digits[:length]) is None)
    assert taken(acme, digits[: crowded + 1]) == wanted.id
    own = [event.id.replace("-", "") for session in (OWN, "acme-2") for event in acme.session(session).read()]
    for length in range(8, 32):
        alone = sum(one.startswith(digits[:length]) for one in set(own)) == 1
        assert (taken(acme, digits[:length]) == wanted.id) is alone, length


def taken(log, digits):
    """The id of the event that begins so, None where there are several."""
    try:
        return log.event(digits).id
    except InvalidEvent:
        return None


def test_two_tenants_that_open_one_id_at_once(world):
    """It is the first one's; to the other it is taken, and nothing of it is written."""
    names = [f"race-{number}" for number in range(20)]
    begin = threading.Barrier(2)

    def opened(tenant):
        found = []
        with ConversationLog.open(world.path, tenant=tenant, durability="normal") as log:
            for name in names:
                begin.wait()
                with contextlib.suppress(UnknownReference):
                    found.append(log.session(name).message(f"{tenant} was first", agent="a").session)
        return found

    with ThreadPoolExecutor(2) as threads:
        acme, globex = threads.map(opened, ("acme", "globex"))
    assert sorted([*acme, *globex]) == sorted(names)
    with ConversationLog.open(world.path) as log:
        for name in names:
            assert {event.tenant for event in log.session(name).read()} == {
                "acme" if name in acme else "globex"
            }
        assert list(log.verify()) == []


def test_a_key_is_each_tenants_own(world, acme):
    """The same idempotency key, of a message or an effect, gives nothing that another recorded."""
    session = acme.session(OWN)
    new = session.message("acme anew", agent="a", idempotency_key="globex-key")
    assert new.body == "acme anew"
    own = session.tool_call(
        "acme-pay", {"acme": 1}, agent="acme-agent", effect={"state": "proposed"}, idempotency_key="pay-1"
    )
    assert own.id == world.made[OWN]["effect"].id


def test_why_shows_that_another_tenants_event_is_named_and_stops_there(world, acme, whole):
    """Neither what it is nor what led to it; from it nothing of one's own is reached either."""
    other = world.made[OTHER]
    trace = acme.why(world.crossing.id)
    assert [event.id for event in trace.events] == [world.crossing.id]
    assert [(edge.relation, edge.target) for edge in trace.unknown] == [("parent_id", other["message"].id)]
    assert trace.edges == []
    imported = acme.why(acme.session(OWN).tail(1)[0].id)
    assert [(edge.relation, edge.target) for edge in imported.unknown] == [("evidence", other["state"].id)]
    assert [edge.relation for edge in imported.edges] == ["supersedes"]
    forward = acme.why(world.made[OWN]["state"].id, forward=True)
    assert {event.tenant for event in forward.events} == {"acme"}
    assert forward.unknown == []
    assert {event.tenant for event in whole.why(world.made[OWN]["state"].id, forward=True).events} == {
        "acme",
        "globex",
    }
    assert whole.why(world.crossing.id).unknown == []


def test_a_crowd_of_others_hides_nothing_of_ones_own(world, acme, whole):
    """What they recorded on a tenant's event counts neither against the limit of a walk nor as a reply."""
    asked = world.made[OWN]["request"]
    for number in range(120):
        whole.session(OTHER).message(f"globex {number}", agent="globex-b", parent_id=asked.id)
    with pytest.raises(NoReply):
        acme.session(OWN).reply_to(asked, timeout=0)
    answer = acme.session(OWN).message("acme answers", agent="ops", parent_id=asked.id)
    assert acme.session(OWN).reply_to(asked, timeout=0).id == answer.id
    trace = acme.why(asked.id, forward=True, limit=3)
    assert {event.id for event in trace.events} == {asked.id, answer.id}
    assert trace.is_whole


def test_roles_that_the_store_grants_count(world, acme):
    """Though who granted them cannot be read."""
    session = acme.session(OWN)
    with pytest.raises(NotAuthorized):
        session.approve(world.made[OWN]["proposal"], agent="nobody")
    assert session.approve(world.made[OWN]["proposal"], agent="acme-lead").performative == "accept-proposal"


@pytest.mark.parametrize(
    "scope", [{"agent": "shared"}, {"task": "shared"}, {"subject": "everybody"}, {"session": OWN}]
)
def test_a_redaction_erases_ones_own_and_nothing_else(world, acme, whole, scope):
    """Whatever two tenants have in common."""
    for name in (OWN, OTHER, NOBODYS):
        keys = {"agent": "shared", "task_id": "shared", "subjects": ["everybody"]}
        whole.session(name).message(f"{name} secret", **keys)
    done = acme.redact(**scope, reason="test", by="a")
    assert done.complete
    assert done.erased == done.matched - done.protected > 0
    assert acme.session(OWN).tail(1, agent="shared")[0].answer == "erased"
    for name in (OTHER, NOBODYS):
        assert whole.session(name).tail(1)[0].body == f"{name} secret"
    assert list(whole.verify()) == []


@pytest.mark.parametrize("event", ["message", "long", "heard"])
def test_another_tenants_event_is_not_redacted(world, acme, whole, event):
    """It is unknown, as one that never was."""
    with pytest.raises(UnknownReference):
        acme.redact(events=[world.made[OTHER][event].id], reason="test", by="a")
    assert whole.event(world.made[OTHER][event].id).answer == "live"


def test_an_erasure_that_others_wait_for_is_finished_and_not_told(world, acme, whole):
    """What another tenant's erasure could not reach is not this one's to hear of."""
    gone = world.outside / "all-out"
    away = gone.rename(world.outside / "away")
    whole.release_hold(world.hold, by="warden")
    pending = whole.redact(events=[world.made[OTHER]["message"].id], reason="test", by="globex-b")
    assert not pending.complete
    done = acme.redact(events=[world.made[OWN]["long"].id], reason="test", by="a")
    assert len(done.redactions) == 1
    assert done.unreachable == [str(gone / OWN / "conversation.jsonl")]
    away.rename(gone)
    again = acme.redact(events=[world.made[OWN]["message"].id], reason="test", by="a")
    assert again.complete
    assert world.made[OTHER]["message"].id not in " ".join(again.redactions)
    line = next(line for line in (gone / OTHER / "conversation.jsonl").read_text().splitlines()[1:])
    assert "redacted" in json.loads(line)
    assert list(whole.verify()) == []


def test_verify_looks_at_ones_own(world, acme, whole):
    """A fault of another tenant's is not found, one's own is."""
    with whole._store.database.write() as connection:
        for name in (OWN, OTHER):
            connection.execute(
                "DELETE FROM open_call WHERE session = (SELECT id FROM session WHERE name = ?)", (name,)
            )
    assert {finding.session for finding in whole.verify()} == {OWN, OTHER}
    assert {finding.session for finding in acme.verify()} == {OWN}
    with pytest.raises(UnknownReference):
        acme.verify(OTHER)


def test_a_removed_session_of_another_tenant_is_unknown(store_path, clock):
    """Its removal is neither listed nor given as the reason of a refusal; one's own is."""
    with ConversationLog.open(store_path, clock=clock) as log:
        for name, tenant in (("acme-old", "acme"), ("globex-old", "globex")):
            session = log.session(name, tenant=tenant)
            session.message("x", agent="a")
            session.mutation("session-closed", agent="a")
        log.set_policy(RetentionPolicy(id="old", target="envelope", max_age="1d"), by="ops")
        clock.advance(2 * 86_400)
        assert len(log.apply_retention(by="ops").removed) == 2
    with ConversationLog.open(store_path, tenant="acme") as log:
        assert [one.id for one in log.removed_sessions()] == ["acme-old"]
        assert log.sessions() == []
        with pytest.raises(UnknownReference):
            log.session("globex-old").message("x", agent="a")


# Bad input


@pytest.mark.parametrize("tenant", ["", "a\nb", "x" * 257, 5])
def test_what_is_no_name_is_no_tenant(world, tenant):
    """Refused before anything is opened."""
    with pytest.raises(InvalidEvent) as refused:
        ConversationLog.open(world.path, tenant=tenant)
    assert refused.value.pointer == "/tenant"


def test_an_unknown_tenant_is_refused_and_never_an_empty_store(world):
    """A read-only log does not open; one that may write gives lists once there is a session."""
    with pytest.raises(UnknownReference) as refused:
        ConversationLog.open(world.path, tenant="acne", read_only=True)
    assert (refused.value.field, refused.value.value) == ("tenant", "acne")
    with ConversationLog.open(world.path, tenant="acne") as log:
        for ask in (log.sessions, log.verify, lambda: list(log.lines()), log.mirror.update):
            with pytest.raises(UnknownReference):
                ask()
        log.session("acne-1").message("x", agent="a")
        assert [summary.id for summary in log.sessions()] == ["acne-1"]
    ConversationLog.open(world.path, tenant="acne", read_only=True).close()


def test_a_log_names_no_other_tenant(world, acme):
    """Its own may be named, another is unknown."""
    assert acme.session(OWN, tenant="acme").head
    for named in ("globex", "acne"):
        with pytest.raises(UnknownReference):
            acme.session(OWN, tenant=named)


def test_the_environment_binds_every_way_in(world, monkeypatch):
    """Opening and making a store, and what needs the whole store is refused, an empty variable too."""
    monkeypatch.setenv("CONVLOG_TENANT", "acme")
    for log in (ConversationLog.open(world.path), ConversationLog.init(world.path)):
        with log:
            assert log.tenant == "acme"
    for refused in (
        lambda: StoreKeys(world.path),
        lambda: AsyncStoreKeys(world.path),
        lambda: restore("nowhere", world.path, by="a"),
    ):
        with pytest.raises(NotAuthorized):
            refused()
    monkeypatch.setenv("CONVLOG_TENANT", "")
    for refused in (lambda: ConversationLog.open(world.path), lambda: StoreKeys(world.path)):
        with pytest.raises(InvalidEvent):
            refused()


def test_a_tenant_imports_for_itself(world, acme, tmp_path):
    """Into sessions of its own; a transcript whose session another has is refused, and nothing of it told."""
    for name in ("acme-import", OTHER):
        record = {
            "type": "user", "uuid": f"u-{name}", "sessionId": name, "timestamp": "2026-01-02T03:04:05Z",
            "message": {"role": "user", "content": "acme text"},
        }  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
    report = import_transcripts(
        acme, "claude-code", [tmp_path / f"{name}.jsonl" for name in ("acme-import", OTHER)]
    )
    assert acme.session("acme-import").tail(1)[0].tenant == "acme"
    assert report.refused == 1
    assert_nothing_of_others(world, text_of(report.to_dict()), [OTHER], "import")
