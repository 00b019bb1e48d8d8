"""Scrubbing: secrets in a draft give way to placeholders that name their kind, before anything is written.

Strings in, strings and counts out: nothing here reads a store. What is stored readable is scrubbed: every string
and every key of an object in the content, attachments whose bytes are UTF-8 text, and the names in the envelope.
Not so ids, the words of closed lists, and what is stored as a keyed digest only (`subjects`, `idempotency_key`). A
key without a place for a placeholder, such as `kind`, is then refused by its own rule, without naming the secret.

The same draft under the same Scrubber gives the same result, so that an append can be tried again.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from convlog_sqlite.drafts import ABSENT, Attachment, Draft
from convlog_sqlite.errors import InvalidEvent, ScrubFailed
from convlog_sqlite.patterns import (
    KEYED_KIND,
    PATTERNS,
    Pattern,
    candidates,
    is_secret_key,
    is_secret_pair,
    is_secret_value,
    key_lines,
    names_a_secret,
)
from convlog_sqlite.vocabulary import MAX_NESTING

PLACEHOLDER: Final = "[secret:{}]"
ENVIRONMENT: Final = "environment"
REGISTERED: Final = "registered"
FUNCTION: Final = "function"
KEY_KIND: Final = "private-key"

_CONTENT: Final = ("body", "args", "result", "value", "usage", "meta")
_NAMES: Final = ("agent", "role", "thread_id", "task_id", "correlation_id", "content_type", "tool", "kind")
_MORE_NAMES: Final = ("state_key", "model", "to", "purposes", "source")
_KEYS: Final = (*_NAMES, *_MORE_NAMES, *_CONTENT)
_KIND: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_SHORTEST: Final = 4  # characters of a registered value: a shorter one stands in many words
_SHORTEST_VARIABLE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scrubber:
    """What counts as a secret.

    `patterns`: forms that can be told by looking, such as cloud keys, tokens, private keys, passwords in URLs.
    `environment`: the values of variables whose names say that they hold a secret; True takes those of this process
    as they are now. `values`: secrets that the caller knows, alone or by the kind that their placeholder names.
    `function` gets every string that is left, and gives what is to be stored in its place; it is called in the
    thread that appends, and must give the same for the same.

    Raises InvalidEvent for a value that no placeholder can stand for.
    """

    patterns: bool = True
    environment: bool | Mapping[str, str] = field(default=True, hash=False)
    values: Mapping[str, str] | Sequence[str] = field(default=(), hash=False)
    function: Callable[[str], str] | None = None
    _exact: Mapping[str, str] = field(init=False, compare=False)
    _expression: re.Pattern[str] | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.environment is True:
            object.__setattr__(self, "environment", dict(os.environ))
        variables = self.environment if isinstance(self.environment, Mapping) else {}
        exact: dict[str, str] = {}
        for kind, value in (*_registered(self.values), *_of_variables(variables)):
            for form in _forms(value):
                exact.setdefault(form, kind)
        longest_first = sorted(exact, key=lambda form: (-len(form), form))
        expression = re.compile("|".join(map(re.escape, longest_first))) if exact else None
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_expression", expression)

    def text(self, text: str) -> tuple[str, dict[str, int]]:
        """A text with placeholders in place of secrets, and how many there were of each kind.

        Raises ScrubFailed when the caller's function fails.
        """
        run = _Run(self, list(self._candidates(text)), self._has_exact(text))
        cleaned = run.text(text, "")
        return cleaned, dict(run.found)

    def draft(self, draft: Draft) -> tuple[Draft, dict[str, int]]:
        """A draft with placeholders in place of secrets, and how many there were of each kind.

        A draft without any is given back as it is. What breaks the rules for drafts is passed over: it will be
        refused. Raises ScrubFailed when the caller's function fails.
        """
        given = {
            key: item
            for key in _KEYS
            if (item := getattr(draft, key, None)) is not None and item is not ABSENT
        }
        strings: list[str] = []
        keyed = [_collect(item, strings, 0) for item in given.values()]
        together = strings[0] if len(strings) == 1 else "\n".join(strings)
        run = _Run(self, list(self._candidates(together)), self._has_exact(together))
        changed: dict[str, Any] = {}
        if run.has_work or (self.patterns and any(keyed)):
            for key, item in given.items():
                cleaned = run.value(item, f"/{key}", 0)
                if cleaned is not item:
                    changed[key] = cleaned
        attachments = self._attachments(draft.attachments, run.found)
        if attachments is not None:
            changed["attachments"] = attachments
        return (replace(draft, **changed) if changed else draft), dict(run.found)

    def _candidates(self, text: str) -> Sequence[Pattern]:
        return candidates(text) if self.patterns else ()

    def _has_exact(self, text: str) -> bool:
        return any(form in text for form in self._exact)

    def _attachments(self, given: Any, found: Counter[str]) -> tuple[Attachment, ...] | None:
        """The attachments, where one of them was changed; else None."""
        if not given or not isinstance(given, Sequence):
            return None
        cleaned = []
        for number, item in enumerate(given):
            content = item.content if isinstance(item, Attachment) else None
            text = _as_text(content) if type(content) is bytes else None
            if text is not None:
                run = _Run(self, list(self._candidates(text)), self._has_exact(text))
                new = run.text(text, f"/attachments/{number}")
                found.update(run.found)
                if new != text:
                    item = Attachment(item.media_type, new.encode("utf-8", "surrogatepass"))  # noqa: PLW2901 the cleaned one
            cleaned.append(item)
        return (
            tuple(cleaned) if any(new is not old for new, old in zip(cleaned, given, strict=True)) else None
        )

    def __repr__(self) -> str:
        return f"<scrubber of {len(self._exact)} values>"  # never a value: reprs end up in logs


class _Run:
    """One look through a draft, with what the gate left of the patterns."""

    def __init__(self, scrubber: Scrubber, patterns: Sequence[Pattern], has_exact: bool) -> None:
        self.found: Counter[str] = Counter()
        self._pairs = scrubber.patterns
        self._patterns = patterns
        self._exact = scrubber._exact  # noqa: SLF001 the two are one
        self._expression = scrubber._expression if has_exact else None  # noqa: SLF001 the two are one
        self._function = scrubber.function

    @property
    def has_work(self) -> bool:
        return bool(self._patterns) or self._expression is not None or self._function is not None

    def text(self, text: str, pointer: str) -> str:
        if self._expression is not None:
            text = self._expression.sub(self._known, text)
        for pattern in self._patterns:
            text, count = pattern.replace(text, PLACEHOLDER.format(pattern.kind))
            if count:
                self.found[pattern.kind] += count
        return text if self._function is None else self._call(self._function, text, pointer)

    def _known(self, match: re.Match[str]) -> str:
        kind = self._exact[match[0]]
        self.found[kind] += 1
        return PLACEHOLDER.format(kind)

    def _call(self, function: Callable[[str], str], text: str, pointer: str) -> str:
        failed = ""
        try:
            new = function(text)
        except Exception as error:  # noqa: BLE001 whatever it was: its text and its frames may hold the content
            new, failed = text, type(error).__name__
        if failed:
            raise ScrubFailed(pointer, failed)
        if type(new) is not str:
            raise ScrubFailed(pointer, f"it gave {type(new).__name__}, not text")
        if new != text:
            self.found[FUNCTION] += 1
        return new

    def value(self, value: Any, pointer: str, depth: int) -> Any:
        """The value with placeholders; the same object where there was nothing to do."""
        kind = type(value)
        if kind is str:
            cleaned = self.text(value, pointer)
            return value if cleaned == value else cleaned
        if depth > MAX_NESTING:
            return value  # it will be refused
        if kind is list or kind is tuple:
            items = self._without_key([self.value(item, pointer, depth + 1) for item in value])
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else kind(items)
        return self._object(value, pointer, depth) if isinstance(value, Mapping) else value

    def _without_key(self, items: list[Any]) -> list[Any]:
        """A list of lines without the private keys that go over several of them."""
        if not any(pattern.kind == KEY_KIND for pattern in self._patterns):
            return items
        numbers = key_lines(items)
        if len(numbers) > 1:
            self.found[KEY_KIND] += sum(number - 1 not in numbers for number in numbers)
            for number in numbers:
                items[number] = PLACEHOLDER.format(KEY_KIND)
        return items

    def _object(self, value: Mapping[Any, Any], pointer: str, depth: int) -> Any:
        cleaned: dict[Any, Any] = {}
        same = True
        for key, item in value.items():
            new_key = self.value(key, pointer, MAX_NESTING + 1) if type(key) is str else key
            new = self.value(item, pointer, depth + 1)
            if self._pairs and type(key) is str and type(new) is str and is_secret_pair(key, new):
                new = PLACEHOLDER.format(KEYED_KIND)
                self.found[KEYED_KIND] += 1
            same = same and new_key is key and new is item
            cleaned[_unused(new_key, cleaned)] = new
        return value if same else cleaned


def _unused(key: str, taken: Mapping[Any, Any]) -> str:
    """Two secrets as keys of one object stay two keys."""
    number = 1
    numbered = key
    while numbered in taken:
        number += 1
        numbered = f"{key} {number}"
    return numbered


def _collect(value: Any, strings: list[str], depth: int) -> bool:
    """Put every string in `value` to `strings`; whether a key is one whose value is a secret."""
    if type(value) is str:
        strings.append(value)
        return False
    if depth > MAX_NESTING:
        return False
    if isinstance(value, Mapping):
        keyed = False
        for key, item in value.items():
            if type(key) is str:
                strings.append(key)
                keyed = keyed or is_secret_key(key)
            keyed = _collect(item, strings, depth + 1) or keyed
        return keyed
    found = [_collect(item, strings, depth + 1) for item in value] if isinstance(value, list | tuple) else ()
    return any(found)


def _as_text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _registered(values: Any) -> Iterator[tuple[str, str]]:
    """Kind and value of what the caller knows. Raises InvalidEvent."""
    if isinstance(values, str) or not isinstance(values, Mapping | Sequence):
        raise InvalidEvent("/values", "a list of secrets, or an object of them by kind")
    pairs = values.items() if isinstance(values, Mapping) else ((REGISTERED, value) for value in values)
    for kind, value in pairs:
        if type(kind) is not str or len(kind) > 64 or not _KIND.fullmatch(kind):
            raise InvalidEvent(
                "/values", "a kind is up to 64 small letters and digits joined by single hyphens"
            )
        if type(value) is not str or len(value.strip()) < _SHORTEST or _in_placeholder(value.strip(), kind):
            raise InvalidEvent(
                f"/values/{kind}", f"text of at least {_SHORTEST} characters that stands in no placeholder"
            )
        yield kind, value.strip()


def _of_variables(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in sorted(variables.items()):
        stripped = value.strip()
        if (
            len(stripped) >= _SHORTEST_VARIABLE
            and names_a_secret(name)
            and is_secret_value(stripped)
            and not _in_placeholder(stripped, ENVIRONMENT)
            and not _is_file(stripped)
        ):
            yield ENVIRONMENT, stripped


def _is_file(value: str) -> bool:
    """Whether it only says where the secret is."""
    try:
        return value[0] in "/~." and Path(value).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def _in_placeholder(value: str, kind: str) -> bool:
    kinds = {kind, ENVIRONMENT, REGISTERED, *(pattern.kind for pattern in PATTERNS)}
    return any(value in PLACEHOLDER.format(one) for one in kinds)


def _forms(value: str) -> Iterator[str]:
    """A value as it is, and as it stands in JSON and in a URL."""
    yield value
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield json.dumps(value)[1:-1]
    yield quote(value.encode("utf-8", "surrogatepass"), safe="")


def scrubber_of(wanted: Any) -> Scrubber | None:
    """The Scrubber that `scrub=` asks for: True is the default one, False none. Raises InvalidEvent."""
    if isinstance(wanted, Scrubber):
        return wanted
    if type(wanted) is not bool:
        raise InvalidEvent("/scrub", "True, False or a Scrubber")
    return Scrubber() if wanted else None


def check_session(session: str) -> None:
    """Refuse a session id that is a secret by its form: it is a file name and is never erased. Raises InvalidEvent."""
    for pattern in candidates(session):
        if pattern.replace(session, "")[1]:
            raise InvalidEvent("/session", f"it looks like a secret ({pattern.kind})")
