"""What an appender does, step by step: drawn from the seed, so that a step that was in doubt can be taken again.

Every event carries a mark, `author/step/number`, as its correlation id and idempotency key.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from convlog_sqlite import ConversationLog, Draft, Event

SESSIONS: Final = 4
END: Final = "end"  # the kind of the last event of a session, for those who follow it


def session_name(number: int) -> str:
    """The sessions that appenders write to."""
    return f"s{number}"


def take(log: ConversationLog, seed: int, author: str, number: int, most: int) -> Iterator[list[Event]]:
    """Take step `number`, of at most `most` events; yield what each append returned."""
    chance = random.Random(f"{seed}/{author}/{number}")
    session = log.session(session_name(chance.randrange(SESSIONS)))
    text = "x" * chance.choice((10, 100, 1000, 1000, 9000))
    what = chance.choices(("message", "mutation", "call", "group"), (5, 2, 2, 1))[0]
    if what == "call" and most > 1:
        call = session.append(_draft("tool_call", author, number, 0, tool="shell", args={"command": text}))
        yield [call]
        keys: dict[str, Any] = {"call_id": call.id, "status": "ok", "result": text}
        yield [session.append(_draft("tool_result", author, number, 1, **keys))]
    elif what == "group":
        count = min(most, chance.randint(2, 20))
        yield session.append_many([_draft("message", author, number, at, body=text) for at in range(count)])
    elif what == "mutation":
        yield [session.append(_draft("mutation", author, number, 0, kind="state-set", value={"n": number}))]
    else:
        yield [session.append(_draft("message", author, number, 0, body=text, to=["all"]))]


def _draft(event_type: str, author: str, number: int, at: int, **keys: Any) -> Draft:
    mark = f"{author}/{number}/{at}"
    return Draft(type=event_type, agent=author, correlation_id=mark, idempotency_key=mark, **keys)


def place_of(mark: str) -> tuple[int, int]:
    """Where among its author's events a mark stands."""
    _, number, at = mark.split("/")
    return int(number), int(at)


def end(log: ConversationLog) -> None:
    """Tell those who follow that nothing more comes."""
    for number in range(SESSIONS):
        log.session(session_name(number)).mutation(END, agent="hammer")
