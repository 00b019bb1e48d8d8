"""Verbs about effects in the outside world: effects, recover."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from convlog_sqlite import ConversationLog, Effect, Session
from convlog_sqlite.cli import render
from convlog_sqlite.cli.options import (
    JsonOption,
    SessionArgument,
    StoreOption,
    existing,
    put_json,
    reading,
    say,
    usage_error,
    writing,
)

_PAGE = 500
_HEADINGS = ("state", "tool", "by", "worker", "claim until", "id")
# What may be said of an effect, in the words of the command line.
_OUTCOMES = ("committed", "not-happened", "undone", "withdrawn")


def effects(
    context: typer.Context,
    session: SessionArgument,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            show_default=False,
            help="Only what is proposed, attempted, committed or compensated.",
        ),
    ] = None,
    in_doubt: Annotated[
        bool,
        typer.Option(
            "--in-doubt",
            show_default=False,
            help="Only what was attempted, is held by no worker any more, and may have happened.",
        ),
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the effects of a session as they stand, in the order in which they were proposed."""
    if in_doubt and state not in (None, "attempted"):
        raise usage_error("only an attempted effect is in doubt", "--state")
    on = render.screen(context, as_json=as_json)
    with reading(context, store) as log:
        found = _all(existing(log, session), "attempted" if in_doubt else state)
        shown = (effect for effect in found if not (in_doubt and effect.is_held))
        if on is None:
            for effect in shown:
                put_json(effect.to_dict())
        else:
            _table(list(shown), on)


def recover(
    context: typer.Context,
    session: SessionArgument,
    agent: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="AGENT",
            envvar="CONVLOG_AGENT",
            show_default=False,
            help="The worker that starts again, or who answers for what is settled.",
        ),
    ],
    settle: Annotated[
        list[str] | None,
        typer.Option(
            "--settle",
            metavar="EFFECT=OUTCOME",
            show_default=False,
            help="Say what became of it: committed, not-happened, undone or withdrawn. Repeatable.",
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a worker that starts again must know: what is in doubt, was never tried, is done.

    As JSON, one object: {"in_doubt", "never_tried", "held", "done", "is_whole"}, lists of effects; what was
    done last, and at most 1000 of each. What is in doubt is never tried again until --settle says what somebody
    found out; with not-happened its key may be used anew.
    """
    said = [_said(item) for item in settle or ()]
    on = render.screen(context, as_json=as_json)
    with writing(context, store, create=False) if said else reading(context, store) as log:
        here = existing(log, session)
        for effect, outcome in said:
            here.settle(_effect_id(log, effect), outcome, agent=agent)
        found = here.recover(agent)
    kinds = {
        "in_doubt": found.in_doubt,
        "never_tried": found.never_tried,
        "held": found.held,
        "done": found.done,
    }
    if on is None:
        listed = {kind: [effect.to_dict() for effect in some] for kind, some in kinds.items()}
        put_json(listed | {"is_whole": found.is_whole})
        return
    for line in _sections(kinds, on):
        say(line)


def _said(item: str) -> tuple[str, str]:
    effect, equals, outcome = item.partition("=")
    if not equals or outcome.replace("_", "-") not in _OUTCOMES:
        raise usage_error(f"{item!r} is not EFFECT=OUTCOME, one of {', '.join(_OUTCOMES)}", "--settle")
    return effect, outcome.replace("-", "_")


def _effect_id(log: ConversationLog, given: str) -> str:
    return log.event(given.lower()).id


def _all(session: Session, state: str | None) -> Iterator[Effect]:
    page = session.effects(state=state, limit=_PAGE)
    while page:
        yield from page
        page = session.effects(state=state, after=page[-1].id, limit=_PAGE)


def _sections(kinds: Mapping[str, Sequence[Effect]], on: render.Screen) -> Iterator[str]:
    for kind, some in kinds.items():
        yield on.strong(f"{kind.replace('_', ' ')}: {len(some) or 'none'}")
        if some:
            yield from ("  " + line for line in _lines(some, on))


def _table(found: Sequence[Effect], on: render.Screen) -> None:
    for line in _lines(found, on):
        say(line)


def _lines(found: Sequence[Effect], on: render.Screen) -> Iterator[str]:
    rows = [
        (
            effect.state if effect.outcome is None else effect.outcome.replace("_", " "),
            effect.proposed.tool or effect.proposed.kind or effect.proposed.type,
            effect.proposed.agent,
            effect.worker or "",
            (effect.until or "")[:19].replace("T", " "),
            effect.id,
        )
        for effect in found
    ]
    yield from render.table(_HEADINGS, rows, on, right=frozenset())
