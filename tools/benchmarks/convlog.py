"""convlog, through its public interface."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar

from benchmarks.contender import APPEND, APPEND_MANY, EXPORT, SESSION, TAIL, Contender
from benchmarks.workload import Message, Workload
from convlog_sqlite import ConversationLog, Draft, Filters


def draft(message: Message) -> Draft:
    """A message as convlog takes it."""
    return Draft(
        type="message",
        agent=message.agent,
        to=(message.to,),
        thread_id=message.thread,
        task_id=message.task,
        body=message.body,
    )


class Convlog(Contender):
    """Sealed and chained, no mirror."""

    name = "convlog"
    takes_part = frozenset({APPEND, APPEND_MANY, TAIL, EXPORT})
    mirror: ClassVar[bool] = False

    def __init__(self, directory: Path, durability: str, workload: Workload) -> None:
        del workload
        ConversationLog.init(directory, mirror=self.mirror).close()
        self.log = ConversationLog.open(directory, durability=durability)
        self.session = self.log.session(SESSION)

    def prepare(self, messages: Sequence[Message]) -> list[Draft]:
        return [draft(message) for message in messages]

    def append(self, prepared: list[Draft]) -> None:
        self.session.append(prepared[0])

    def append_many(self, prepared: list[Draft]) -> None:
        self.session.append_many(prepared)

    def tail(self, count: int) -> int:
        return self.filtered_tail(count, Filters())

    def filtered_tail(self, count: int, filters: Filters) -> int:
        """Like `tail`, of the events that `filters` let through."""
        events = self.session.tail(count, **filters)
        for event in events:
            _ = event.seq, event.agent, event.body  # an event is parsed when it is first asked
        return len(events)

    def export(self, file: BinaryIO) -> int:
        before = self.session.head
        file.writelines(self.session.jsonl())
        return before

    def close(self) -> None:
        self.log.close()


class Mirrored(Convlog):
    """Every append also brings the plain file up to date before it returns."""

    name = "convlog with mirror"
    takes_part = frozenset({APPEND, APPEND_MANY})  # it reads as the other does
    mirror = True
