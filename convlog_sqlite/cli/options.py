"""What several verbs share: the options in front of and behind a verb, and the store they open."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from convlog_sqlite import ConversationLog, ConvlogError, KeySource, Moment, Point, Session
from convlog_sqlite.cli.failing import REFUSED, complain, fail


@dataclass(frozen=True, slots=True)
class Settings:
    """What stood in front of the verb."""

    store: str | None = None
    keys: str | None = None
    colour: bool | None = None
    tenant: str | None = None


def settings(context: typer.Context) -> Settings:
    """What stood in front of the verb; while a shell completes, as far as it was typed."""
    found = context.obj
    if isinstance(found, Settings):
        return found
    typed = context.find_root().params
    return Settings(typed.get("store"), typed.get("keys"), tenant=typed.get("tenant"))


@contextmanager
def reading(context: typer.Context, store: str | None) -> Iterator[ConversationLog]:
    """The store, to be read only. It is never made here."""
    given = settings(context)
    with ConversationLog.open(
        store or given.store,
        create=False,
        read_only=True,
        keys=given.keys,
        kek=key_source(),
        tenant=given.tenant,
    ) as log:
        yield log


@contextmanager
def writing(
    context: typer.Context, store: str | None, *, create: bool, scrub: bool = False
) -> Iterator[ConversationLog]:
    """The store, to be written to. Making one, and what was scrubbed, is said on stderr."""
    given = settings(context)
    with ConversationLog.open(
        store or given.store,
        create=create,
        keys=given.keys,
        scrub=scrub,
        kek=key_source(),
        tenant=given.tenant,
    ) as log:
        if log.created:
            complain(f"made a new store: {log.path}")
        try:
            yield log
        finally:
            if scrub and log.scrubbed:
                complain(f"scrubbed: {counted(log.scrubbed)}")


def counted(kinds: Mapping[str, int]) -> str:
    """Counts by kind, in words."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def key_source() -> KeySource | None:
    """What opens the keystore: as the environment says, else a passphrase that a person at a terminal is asked for."""
    said = KeySource.environment()
    if said is not None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return said
    return KeySource.asking(
        lambda: str(typer.prompt("Passphrase of the keystore", hide_input=True, err=True))
    )


def existing(log: ConversationLog, session_id: str) -> Session:
    """The session, which has events. Ends with status 3 and the names that are close when it has none."""
    session = log.session(session_id)
    if not session.head:
        names = [summary.id for summary in log.sessions()]
        close = get_close_matches(session_id, names)
        hint = (
            f"; did you mean {' or '.join(close)}?" if close else "; `convlog sessions` lists those that do"
        )
        fail(REFUSED, f"session {session_id!r} does not exist{hint}")
    return session


def complete_session(context: typer.Context, incomplete: str) -> list[str]:
    """Session ids for the shell's completion; none when there is no store to ask."""
    try:
        with reading(context, None) as log:
            return [summary.id for summary in log.sessions() if summary.id.startswith(incomplete)]
    except ConvlogError:
        return []


def say(text: str) -> None:
    """One line of text on stdout; what the terminal's encoding lacks is replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.buffer.write(text.encode(encoding, "replace") + b"\n")


def put(data: bytes) -> None:
    """Bytes on stdout, as they are."""
    sys.stdout.buffer.write(data)


def put_json(value: Any) -> None:
    """One JSON value on one line on stdout."""
    put(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n")


def usage_error(message: str, option: str) -> typer.BadParameter:
    """To be raised when an option cannot be used as it was given: status 2."""
    return typer.BadParameter(message, param_hint=f"'{option}'")


def point(text: str, option: str = "--at") -> Point:
    """The point that an option names: an event's id, a seq, or a time; one without a zone is of this machine.

    Digits alone are a seq, unless they begin with 0, as ids do.
    """
    if text.isascii() and text.isdecimal() and not text.startswith("0"):
        return int(text[:18])
    if _DATE.match(text):
        try:
            return datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError):
            raise usage_error(f"{text!r} is not a time such as 2026-01-31T12:00", option) from None
    return text.lower()


def resolve(session: Session, at: str | None) -> Session | Moment:
    """The session, or where `--at` is given the session as it was then."""
    return session if at is None else session.at(point(at))


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}($|[Tt ])", re.ASCII)

AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="EVENT|SEQ|TIME",
        show_default=False,
        help="As of then: an event's id, a seq, or a time such as 2026-01-31T12:00.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="The store's directory. Default: CONVLOG_STORE, else the nearest .convlog upward.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON also on a terminal.", show_default=False)]
SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="SESSION",
        envvar="CONVLOG_SESSION",
        show_default=False,
        autocompletion=complete_session,
        help="Session id.",
    ),
]
