"""Lines out of the log and foreign transcripts into it: export, import."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from convlog_sqlite import (
    HARNESSES,
    ConversationLog,
    ConvlogError,
    ImportReport,
    Mirror,
    NotAStore,
    NotAuthorized,
    UnknownReference,
    import_transcripts,
)
from convlog_sqlite.cli import render
from convlog_sqlite.cli import view_options as through
from convlog_sqlite.cli.failing import FAULTS, REFUSED, fail
from convlog_sqlite.cli.options import (
    AtOption,
    JsonOption,
    StoreOption,
    complete_session,
    counted,
    existing,
    point,
    put,
    put_json,
    reading,
    resolve,
    say,
    usage_error,
    writing,
)

Sessions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SESSION]...", help="Session ids. Default: all.", autocompletion=complete_session
    ),
]

Forget = Annotated[
    str | None,
    typer.Option(
        "--forget",
        metavar="DIR",
        help="Write nothing; let DIR, which was deleted or emptied, be no export any more.",
    ),
]


def export(
    context: typer.Context,
    sessions: Sessions = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="DIR", help="Write DIR/SESSION/conversation.jsonl, or bring it up to date."
        ),
    ] = None,
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Bring the store's own mirror up to date.", show_default=False)
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on with what is appended, until interrupted.", show_default=False),
    ] = False,
    forget: Forget = None,
    at: AtOption = None,
    view: through.View = None,
    reader: through.As = None,
    purpose: through.Purpose = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the canonical lines: to standard output, to files elsewhere, or to the mirror.

    The sessions follow each other by id, and their events by seq. Two exports of the same log are the same bytes.
    A fork's lines are its own; those that it shares stand with the session that they belong to.

    With --view, what the view shows. A plaintext file knows no views: whoever can read a directory reads all that is in it, so each holds what one view shows, and --mirror --view V --out DIR keeps such a one.

    An erasure reaches every directory that was exported to, and stays pending while one is not there. --forget ends that for a directory that was deleted; it is refused while an exported file is in it. A disk that is not mounted looks deleted: whoever forgets a directory answers for what is there.
    """
    shown = through.Through(view, reader, purpose)
    if forget is not None:
        if mirror or follow or sessions or shown.is_given or out is not None or at is not None:
            raise usage_error("goes with no session and no other option", "--forget")
        with writing(context, store, create=False) as log:
            log.forget_export(forget)
        return
    if at is not None and (follow or mirror or out is not None):
        raise usage_error("files and --follow hold what there is now", "--at")
    _check_files(shown, out=out, mirror=mirror, follow=follow)
    if not mirror and out is None:
        with reading(context, store) as log:
            _print(log, _named(log, sessions), at, shown, follow=follow)
        return
    with writing(context, store, create=False) as log:
        named = _named(log, sessions)
        asked = {"view": shown.name, "reader": reader, "purpose": purpose}
        with closing(log.mirror if out is None else log.exporter(out, **asked)) as files:
            if not files.enabled:
                fail(REFUSED, "this store keeps no mirror (it was made so); --out DIR writes files elsewhere")
            written = _bring_up(files, named or files.sessions())
            _report(files, written, context, as_json=as_json)
            if follow:
                _keep(files, named)


def _print(
    log: ConversationLog, sessions: Sequence[str], at: str | None, shown: through.Through, *, follow: bool
) -> None:
    if shown.is_given:
        _write_slices(log, sessions, at, shown)
    elif at is None:
        _write_lines(log, sessions, follow=follow)
    else:
        _write_lines_at(log, sessions, at)


def _check_files(shown: through.Through, *, out: str | None, mirror: bool, follow: bool) -> None:
    if mirror and out is not None and not shown.is_given:
        raise usage_error("give --out or --mirror, not both", "--mirror")
    if shown.is_given and mirror and out is None:
        raise usage_error("the store's own mirror is whole; --out DIR keeps another through a view", "--view")
    if shown.is_given and out is not None and shown.view is None:
        raise usage_error("files are kept through a view that is named", "--view")
    if shown.is_given and follow and out is None:
        raise usage_error("follow one session with `convlog tail -f`, or files with --out", "--follow")


def _write_slices(
    log: ConversationLog, sessions: Sequence[str], at: str | None, shown: through.Through
) -> None:
    refused: ConvlogError | None = None
    is_any = False
    for session in sessions or [found.id for found in log.sessions()]:
        try:
            found = shown.slice_of(resolve(log.session(session), at))
        except (NotAuthorized, UnknownReference) as error:
            if sessions:
                raise
            refused = error  # the view is not for this session, or it had no event then
            continue
        is_any = True
        for line in found.jsonl():
            put(line)
    if refused is not None and not is_any:
        raise refused


def _write_lines(log: ConversationLog, sessions: Sequence[str], *, follow: bool) -> None:
    if not follow:
        for line in log.lines(*sessions):
            put(line)
        return
    for line in log.follow_lines(*sessions):
        put(line)
        sys.stdout.flush()


def _write_lines_at(log: ConversationLog, sessions: Sequence[str], at: str) -> None:
    when = point(at)
    if len(sessions) != 1 and not isinstance(when, datetime):
        raise usage_error("a seq or an event is a point in one session; name it", "--at")
    for session in sessions or [found.id for found in log.sessions()]:
        try:
            moment = log.session(session).at(when)
        except UnknownReference:
            if len(sessions) == 1:
                raise
            continue  # it had no event then
        for line in moment.jsonl():
            put(line)


def _named(log: ConversationLog, sessions: Sequence[str] | None) -> list[str]:
    return [existing(log, session).id for session in dict.fromkeys(sessions or ())]


def _bring_up(files: Mirror, sessions: Sequence[str]) -> dict[str, int]:
    """Bring the files up to date; how many lines were written to each."""
    if not sys.stderr.isatty():
        return files.update(*sessions)
    with typer.progressbar(sessions, label="export", file=sys.stderr) as steps:
        return {session: files.update(session)[session] for session in steps}


def _report(files: Mirror, written: dict[str, int], context: typer.Context, *, as_json: bool) -> None:
    on = render.screen(context, as_json=as_json)
    if on is None:
        for session, lines in written.items():
            put_json({"session": session, "lines": lines, "path": str(files.path(session))})
        return
    rows = [(session, str(lines), str(files.path(session))) for session, lines in written.items() if lines]
    if not rows:
        say("Up to date.")
        return
    for line in render.table(("SESSION", "NEW LINES", "FILE"), rows, on, right=frozenset({1})):
        say(line)


def _keep(files: Mirror, sessions: Sequence[str]) -> None:
    sys.stdout.flush()
    with _until_signalled() as stop:
        files.follow(sessions, stop=stop)


@contextmanager
def _until_signalled() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set: here they are how one ends, not a failure."""
    import signal

    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Harness = Annotated[
    str,
    typer.Argument(
        metavar="HARNESS", help="Whose transcripts: " + ", ".join(HARNESSES) + ".", show_default=False
    ),
]
Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PATH]...", help="Files or folders. Default: where the harness keeps them."),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help="Files changed since: 30m, 12h, 7d, 2w or a date."),
]
Session = Annotated[str | None, typer.Option("--session", metavar="ID", help="Only this session.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Read and report, write nothing.", show_default=False)
]
NoScrub = Annotated[
    bool,
    typer.Option(
        "--no-scrub",
        help="Record secrets as they are, instead of placeholders that name their kind.",
        show_default=False,
    ),
]
Raw = Annotated[bool, typer.Option("--raw", help="Keep each untouched record, sealed.", show_default=False)]


def import_(
    context: typer.Context,
    harness: Harness,
    paths: Paths = None,
    since: Since = None,
    session: Session = None,
    dry_run: DryRun = False,
    raw: Raw = False,
    no_scrub: NoScrub = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import the transcripts of an agent harness. Importing them again adds only what is new.

    Secrets (keys, tokens, passwords, the values of environment variables that hold some) give way to placeholders such as [secret:github-token], and are counted by kind.
    """
    if harness not in HARNESSES:
        raise usage_error(f"{harness!r} is not one of: {', '.join(HARNESSES)}", "HARNESS")
    when = None if since is None else _since(since)
    on = render.screen(context, as_json=as_json)
    with _log_to_import_to(context, store, dry_run=dry_run) as log, _progress() as progress:
        report = import_transcripts(
            log,
            harness,
            paths or (),
            since=when,
            session=session,
            raw=raw,
            dry_run=dry_run,
            scrub=not no_scrub,
            progress=progress,
        )
    if on is None:
        put_json(report.to_dict())
    else:
        for line in _summary(report, on):
            say(line)
    if report.counts["bad_lines"] and not report.counts["events"]:
        fail(FAULTS, "nothing could be imported: no line is a record of a transcript")


_SPAN = re.compile(r"([0-9]{1,6})([mhdw])", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _since(text: str) -> datetime:
    """The instant that `--since` names. A date without a time zone is one of this machine."""
    span = _SPAN.fullmatch(text)
    try:
        if span:
            return datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: int(span[1])})
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise usage_error(
            f"{text!r} is not 30m, 12h, 7d, 2w or a date such as 2026-01-31", "--since"
        ) from None


@contextmanager
def _log_to_import_to(
    context: typer.Context, store: str | None, *, dry_run: bool
) -> Iterator[ConversationLog | None]:
    """The store; for a dry run what there is, to tell what is new, and it may be nothing."""
    if not dry_run:
        with writing(context, store, create=True) as log:
            yield log
        return
    with ExitStack() as at_end:
        try:
            log = at_end.enter_context(reading(context, store))
        except NotAStore:
            yield None
        else:
            yield log


@contextmanager
def _progress() -> Iterator[Callable[[int, int, ImportReport], None] | None]:
    """A bar on stderr that moves with the transcripts; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as at_end:
        bars: list[Any] = []

        def advance(done: int, total: int, report: ImportReport) -> None:
            if not bars:
                bar = typer.progressbar(length=total, label="import", show_pos=True, file=sys.stderr)
                bars.append(at_end.enter_context(bar))
            bars[0].update(done - bars[0].pos)
            bars[0].label = f"import ({report.new} new)"

        yield advance


# Of the figures in a report, those that are worth a line when they are 0.
_ALWAYS = frozenset(
    {"new", "already", "tool_calls", "tool_results", "unanswered_calls", "orphan_results", "bad_lines"}
)


def _summary(report: ImportReport, on: render.Screen) -> Iterator[str]:
    said = report.to_dict()
    kinds, problems, refusals = said.pop("kinds", {}), said.pop("problems", []), said.pop("refusals")
    sessions, scrubbed = len(said.pop("sessions")), said.pop("scrubbed")
    title = f"{said.pop('harness')}, {sessions} session{'' if sessions == 1 else 's'}"
    yield on.strong(title + (": nothing was written" if said.pop("dry_run") else ""))
    yield from render.tree(
        {key: item for key, item in said.items() if item or key in _ALWAYS}, on, indent="  "
    )
    if scrubbed:
        yield f"  scrubbed: {counted(scrubbed)}"
    if kinds:
        yield ""
        rows = [(kind, str(count)) for kind, count in sorted(kinds.items(), key=lambda item: -item[1])]
        yield from render.table(
            ("  RECORD", "COUNT"), [("  " + kind, count) for kind, count in rows], on, right=frozenset({1})
        )
    for problem in problems:
        yield f"{render.printable(problem['file'])}:{problem['line']}: {render.printable(problem['reason'])} ({problem['outcome']})"
    for refusal in refusals:
        yield "refused " + render.printable(refusal)
