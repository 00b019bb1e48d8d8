"""What a view says. A `View` is a frozen value, kept in `_store` as a `view-defined` mutation, versioned.

Form as JSON, format 1: `{"format": 1, "name", "selects": [{...}], "sessions", "max_sensitivity", "purpose",
"people", "unlabelled", "links", "payload", "roles"}`, keys that say the default left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from convlog_sqlite.canonical import PAYLOAD_KEYS
from convlog_sqlite.drafts import check_name, check_session_id
from convlog_sqlite.errors import InvalidEvent
from convlog_sqlite.vocabulary import ANY_PURPOSE, LINKS, MAX_NAME, PERFORMATIVES, SENSITIVITIES, TYPES

FORMAT: Final = 1
VIEW_KEY: Final = "view/{name}"
LABEL: Final = re.compile(r"(.+)@([0-9]{1,9})")
_LONGEST: Final = MAX_NAME - len(VIEW_KEY.format(name=""))
_CLOSED: Final[dict[str, frozenset[str]]] = {
    "types": frozenset(TYPES),
    "performatives": PERFORMATIVES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """Events that are all of this; what is left empty is not asked for.

    `own` are the tasks that the reader has, `dependencies` those that they wait for; beside `tasks`, any of these.
    With `addressed` the recipients include the reader, by name or by a role it holds; with `authored` it is the
    author itself; with `effects` the event is a step of an effect.
    """

    tasks: Sequence[str] = ()
    threads: Sequence[str] = ()
    agents: Sequence[str] = ()
    roles: Sequence[str] = ()
    types: Sequence[str] = ()
    kinds: Sequence[str] = ()
    performatives: Sequence[str] = ()
    own: bool = False
    dependencies: bool = False
    addressed: bool = False
    authored: bool = False
    effects: bool = False

    def __post_init__(self) -> None:
        _freeze(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a reader is shown: events that any of `selects` takes (none given: all), below every ceiling.

    `sessions` are those that it may be used in (none: any), of `tenant` alone if one is given. `max_sensitivity`
    counts what labels say too. `purpose` is what the slice is for: events that are limited to other purposes are
    out, and with None all that are limited; `*` asks for none. Without `people`, nothing about a person is shown;
    without `unlabelled`, no import whose sensitivity nobody has said. `links` are followed one step: a page shows,
    with its events, what they name as such. `payload` names the keys that are shown (`("*",)`: all). `roles` are
    those whose default view this is. `version` is given by the store; 0 stands for a view that ships with convlog.
    """

    name: str
    selects: Sequence[Select] = ()
    tenant: str | None = None
    sessions: Sequence[str] = ()
    max_sensitivity: str = "restricted"
    purpose: str | None = None
    people: bool = True
    unlabelled: bool = True
    links: Sequence[str] = ()
    payload: Sequence[str] = ("*",)
    roles: Sequence[str] = ()
    version: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        _freeze(self)

    @property
    def label(self) -> str:
        """`name@version`: what `seen` says."""
        return f"{self.name}@{self.version}"

    def check(self) -> None:
        """Hold the view to its rules. Raises InvalidEvent with a pointer to the first place that breaks one."""
        check_name(self.name, "/name")
        for number, select in enumerate(_listed(self.selects, "/selects", of=object)):
            _check_select(select, f"/selects/{number}")
        if self.tenant is not None:
            check_name(self.tenant, "/tenant")
        for number, session in enumerate(_listed(self.sessions, "/sessions")):
            try:
                check_session_id(session)
            except InvalidEvent as refused:
                raise InvalidEvent(f"/sessions/{number}", refused.rule) from None
        for flag in ("people", "unlabelled"):
            if not isinstance(getattr(self, flag), bool):
                raise InvalidEvent(f"/{flag}", "true or false")
        if self.max_sensitivity not in list(SENSITIVITIES):
            raise InvalidEvent("/max_sensitivity", "one of " + ", ".join(SENSITIVITIES))
        if self.purpose is not None:
            check_name(self.purpose, "/purpose")
        _check_words(self.links, "/links", frozenset(LINKS))
        _check_words(self.payload, "/payload", frozenset(PAYLOAD_KEYS) | {"*"})
        for number, role in enumerate(_listed(self.roles, "/roles")):
            check_name(role, f"/roles/{number}")

    def check_definable(self) -> None:
        """Hold it to what a view must be that the store is to keep. Raises InvalidEvent as `check` does."""
        self.check()
        if len(self.name) > _LONGEST:
            raise InvalidEvent("/name", f"the name of a view is 1 to {_LONGEST} characters")
        if LABEL.fullmatch(self.name):
            raise InvalidEvent("/name", f"{self.name} names a version of a view, so no view is called so")

    @property
    def asks_who_reads(self) -> bool:
        """Whether it selects by what the reader is, has or wrote: then it takes a reader."""
        return any(
            select.own or select.dependencies or select.addressed or select.authored
            for select in self.selects
        )

    @property
    def asks_for_tasks(self) -> bool:
        """Whether it selects by which tasks the reader has."""
        return any(select.own or select.dependencies for select in self.selects)

    @property
    def is_whole(self) -> bool:
        """Whether it shows all of every session, as `everything` does."""
        return self == View(
            name=self.name, tenant=self.tenant, sessions=self.sessions, purpose=ANY_PURPOSE, roles=self.roles
        )

    def to_stored(self) -> dict[str, Any]:
        """The JSON form."""
        said = _said(self, leave={"version", "selects"})
        return (
            {"format": FORMAT} | said | {"selects": [_said(select, leave=set()) for select in self.selects]}
        )

    @classmethod
    def from_stored(cls, said: Any, version: int = 0) -> Self:
        """The view that the JSON form describes; without a `version`, one that may be defined.

        Raises InvalidEvent with a pointer.
        """
        if not isinstance(said, Mapping):
            raise InvalidEvent("", "a view is a JSON object")
        if said.get("format", FORMAT) != FORMAT:
            raise InvalidEvent("/format", f"{FORMAT} is the only one there is")
        known = {entry.name for entry in fields(cls)} - {"version"}
        _check_known(said, known | {"format"}, "")
        if "name" not in said:
            raise InvalidEvent("/name", "needed")
        selects = []
        for number, select in enumerate(_listed(said.get("selects", ()), "/selects", of=dict)):
            _check_known(select, {entry.name for entry in fields(Select)}, f"/selects/{number}")
            selects.append(Select(**select))
        given = {key: item for key, item in said.items() if key in known - {"selects"}}
        view = cls(**given, selects=tuple(selects), version=version)
        # One that is kept already is read by the rules that held when it was defined.
        (view.check if version else view.check_definable)()
        return view


def _freeze(value: View | Select) -> None:
    """Make tuples of lists: what is frozen can be compared, and nobody changes it from outside."""
    for entry in fields(value):
        item = getattr(value, entry.name)
        if isinstance(item, list):
            object.__setattr__(value, entry.name, tuple(item))


def _said(value: Any, leave: set[str]) -> dict[str, Any]:
    """The fields that do not say the default, as JSON values."""
    said = {}
    for entry in fields(value):
        item = getattr(value, entry.name)
        item = list(item) if isinstance(item, Sequence) and not isinstance(item, str) else item
        default = list(entry.default) if isinstance(entry.default, tuple) else entry.default
        if entry.name not in leave and item != default:
            said[entry.name] = item
    return said


def _check_known(said: Mapping[str, Any], known: set[str], pointer: str) -> None:
    for key in said:
        if key not in known:
            raise InvalidEvent(f"{pointer}/{key}", "unknown key")


def _listed(value: Any, pointer: str, of: type = str) -> Sequence[Any]:
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(one, of) for one in value)
    ):
        raise InvalidEvent(pointer, "must be a list")
    return value


def _check_words(value: Any, pointer: str, words: frozenset[str]) -> None:
    for number, word in enumerate(_listed(value, pointer)):
        if word not in words:
            raise InvalidEvent(f"{pointer}/{number}", "one of " + ", ".join(sorted(words)))


def _check_select(select: Any, pointer: str) -> None:
    if not isinstance(select, Select):
        raise InvalidEvent(pointer, "a Select")
    for entry in fields(Select):
        value = getattr(select, entry.name)
        if isinstance(entry.default, bool):
            if not isinstance(value, bool):
                raise InvalidEvent(f"{pointer}/{entry.name}", "true or false")
        elif entry.name in _CLOSED:
            _check_words(value, f"{pointer}/{entry.name}", _CLOSED[entry.name])
        else:
            for number, name in enumerate(_listed(value, f"{pointer}/{entry.name}")):
                check_name(name, f"{pointer}/{entry.name}/{number}")
