"""The events that everybody records: messages of 1 KB, the same ones for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

AGENTS: Final = 8
RARE_THREAD: Final = "thread-rare"
RARE_TASK: Final = "task-rare"
_THREADS: Final = 40
_TASKS: Final = 504
_RARE_THREAD_EVERY: Final = 40
_RARE_TASK_EVERY: Final = 500
_BODIES: Final = 997
_WORDS: Final = 400


@dataclass(frozen=True, slots=True)
class Message:
    """What one agent says to another."""

    agent: str
    to: str
    thread: str
    task: str
    body: str


class Workload:
    """Message `number` is the same whoever asks and whenever, so it need not be kept.

    As in a real session a few threads and tasks are live at a time: 4 and 8, for 500 and 160 messages.
    One thread and one task go through all of it and are seldom met, every 40 and every 500 messages: their
    events lie far apart, which is the hard case of a filter.
    """

    def __init__(self, seed: int, payload_bytes: int) -> None:
        """`payload_bytes` is the size of the JSON object with the body in it."""
        self.seed, self.payload_bytes = seed, payload_bytes
        source = random.Random(seed)
        letters = "eeeetttaaooinnsshrdlucmfwypgbvk"
        words = ["".join(source.choices(letters, k=source.randint(2, 9))) for _ in range(_WORDS)]
        length = payload_bytes - len('{"body":""}')
        self._bodies = [_text(source, words, length) for _ in range(_BODIES)]

    def message(self, number: int) -> Message:
        """Message `number`, counted from 0."""
        thread = (number // 500 * 4 + number % 4) % _THREADS
        task = (number // 160 * 8 + number % 8) % _TASKS
        return Message(
            agent=f"agent-{number % AGENTS}",
            to=f"agent-{(number * 3 + 1) % AGENTS}",
            thread=RARE_THREAD if number % _RARE_THREAD_EVERY == 0 else f"thread-{thread}",
            task=RARE_TASK if number % _RARE_TASK_EVERY == 0 else f"task-{task}",
            body=self._bodies[number % _BODIES],
        )

    def batch(self, start: int, count: int) -> list[Message]:
        """`count` messages from `start` on."""
        return [self.message(number) for number in range(start, start + count)]

    def names(self) -> list[str]:
        """Every name that stands in a message."""
        return [
            RARE_THREAD,
            RARE_TASK,
            *(f"agent-{number}" for number in range(AGENTS)),
            *(f"thread-{number}" for number in range(_THREADS)),
            *(f"task-{number}" for number in range(_TASKS)),
        ]


def _text(source: random.Random, words: list[str], length: int) -> str:
    text = ""
    while len(text) < length:
        text += source.choice(words) + " "
    return text[:length]
