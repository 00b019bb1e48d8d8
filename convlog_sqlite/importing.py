"""Importing foreign transcripts: adapters translate, this resolves and appends.

Every event gets an id that is a keyed digest of its native identity, so a second import of the same
files writes nothing. What an earlier import of another session brought already (harnesses copy records
when a session is resumed or forked) stays where it is and is counted as `copied`. Parents that are not in
the log are marked in `meta.unresolved_parent`; a session that retention removed takes nothing more; results whose call is not here are recorded without
`call_id`, and marked in `meta.orphan`. Memory does not grow with the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from convlog_sqlite import strictjson
from convlog_sqlite.drafts import ABSENT, Draft, ForeignDraft
from convlog_sqlite.errors import ImportFailed, InvalidEvent, Refused, SessionRemoved
from convlog_sqlite.log import ConversationLog
from convlog_sqlite.scrubbing import Scrubber, scrubber_of

_BATCH_EVENTS: Final = 250
_BATCH_BYTES: Final = 8 << 20
_MAX_REFUSALS: Final = 100  # kept with their reason; all are counted


class Counts(Protocol):
    """What an adapter counted."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(slots=True)
class ImportReport:
    """What an import did. `counts` are the adapter's figures about the files, `new` to `refused` about events.

    Every event of the files is `new`, `already` there from an earlier import, `copied` (it is in another
    session), or `refused`. `scrubbed` counts the secrets that gave way to placeholders in new events, by kind.
    """

    harness: str
    dry_run: bool
    sessions: dict[str, int] = field(default_factory=dict)
    new: int = 0
    already: int = 0
    copied: int = 0
    refused: int = 0
    unresolved_parents: int = 0
    orphans: int = 0
    refusals: list[str] = field(default_factory=list)
    scrubbed: Counter[str] = field(default_factory=Counter)
    counts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values, the adapter's figures among them."""
        own = ("new", "already", "copied", "refused", "unresolved_parents", "orphans", "refusals", "sessions")
        return (
            {"harness": self.harness, "dry_run": self.dry_run}
            | {key: getattr(self, key) for key in own}
            | {"scrubbed": dict(sorted(self.scrubbed.items()))}
            | self.counts
        )


HARNESSES: Final = ("claude-code",)


def import_transcripts(
    log: ConversationLog | None,
    harness: str,
    paths: Iterable[str | Path] = (),
    *,
    since: datetime | None = None,
    session: str | None = None,
    raw: bool = False,
    dry_run: bool = False,
    scrub: bool | Scrubber = True,
    progress: Callable[[int, int, ImportReport], None] | None = None,
) -> ImportReport:
    """Import the transcripts in `paths` (none: the harness's own place) into sessions named as they are.

    `since` takes files modified then or later, `session` only the transcript of that id. `raw` keeps each
    untouched record as a sealed attachment. A dry run writes nothing and may do without a log. `progress`
    gets (transcripts done, transcripts in all, the report so far). Secrets give way to placeholders, unless `scrub`
    is False; a log that was opened with `scrub` uses its own Scrubber in any case.

    Raises ImportFailed, InvalidEvent for an unknown harness, StoreError.
    """
    if harness not in HARNESSES:
        raise InvalidEvent("/harness", "one of " + ", ".join(HARNESSES))
    from convlog_sqlite.adapters import claude_code  # noqa: PLC0415 only an import needs it

    found = claude_code.find(paths, since=since)
    if session is not None:
        found = [transcript for transcript in found if transcript.session_id == session]
        if not found:
            raise ImportFailed(session, 0, "no transcript has this session id")
    counts = claude_code.ImportCounts()
    report = ImportReport(harness, dry_run)
    scrubber = scrubber_of(scrub)
    for number, transcript in enumerate(found):
        importer = _Importer(log, report, harness, transcript.session_id, scrubber)
        for batch in _batches(claude_code.read(transcript, raw=raw, counts=counts)):
            importer.take(batch)
            report.counts = counts.to_dict()
            if progress is not None:
                progress(number, len(found), report)
        importer.finish()
    report.counts = counts.to_dict()
    if progress is not None:
        progress(len(found), len(found), report)
    return report


def _batches(drafts: Iterator[ForeignDraft]) -> Iterator[list[ForeignDraft]]:
    batch: list[ForeignDraft] = []
    size = 0
    for foreign in drafts:
        batch.append(foreign)
        size += _bytes_of(foreign.draft)
        if len(batch) >= _BATCH_EVENTS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _bytes_of(draft: Draft) -> int:
    """About how much memory a draft takes: what keeps a batch of large ones small."""
    content = (draft.body, draft.args, draft.result, draft.value, draft.meta)
    inline = sum(len(strictjson.dump(item)) for item in content if item is not None and item is not ABSENT)
    return inline + sum(len(item.content) for item in draft.attachments)


@dataclass(slots=True)
class _Importer:
    log: ConversationLog | None
    report: ImportReport
    harness: str
    session: str
    scrubber: Scrubber | None
    _written: int = 0

    def take(self, batch: Sequence[ForeignDraft]) -> None:
        """Resolve and append one batch."""
        if self.log is None:
            self.report.new += len(batch)
            self._look(item.draft for item in batch)
            return
        log = self.log
        keys = {
            key for item in batch for key in (item.key, item.parent_key, item.call_key) if key is not None
        }
        ids = {key: log.foreign_id(self.harness, key) for key in keys}
        resolved = self._resolve(batch, ids)
        if self.report.dry_run:
            self.report.new += len(resolved)
            self._look(draft for _, draft in resolved)
        else:
            self._append(log, resolved)

    def _look(self, drafts: Iterable[Draft]) -> None:
        """What a dry run would scrub."""
        if self.scrubber is not None:
            for draft in drafts:
                self.report.scrubbed.update(self.scrubber.draft(draft)[1])

    def finish(self) -> None:
        """The transcript is through: note its session, bring its mirror up to date."""
        self.report.sessions[self.session] = self.report.sessions.get(self.session, 0) + self._written
        if self.log is not None and self._written and self.log.mirror.enabled:
            self.log.mirror.after_append(self.session)

    def _resolve(self, batch: Sequence[ForeignDraft], ids: dict[str, str]) -> list[tuple[str, Draft]]:
        """The drafts that are not in the log yet, with ids in place of keys."""
        assert self.log is not None  # noqa: S101 `take` asked
        known = self.log.reader.known(set(ids.values()))
        to_refer_to = {event_id for event_id, stands in known.items() if not stands.is_removed}
        here: dict[str, bool] = {}  # the ids of this batch, and whether each is a call without a result
        resolved = []
        for item in batch:
            event_id = ids[item.key]
            stands = known.get(event_id)
            if stands is not None or event_id in here:
                same = stands is None or stands.session == self.session
                self.report.already += same
                self.report.copied += not same
                continue
            draft = item.draft
            if item.parent_key is not None:
                draft = self._with_parent(draft, ids[item.parent_key], item.parent_key, {*to_refer_to, *here})
            if draft.type == "tool_result":
                call_id = None if item.call_key is None else ids[item.call_key]
                stands = known.get(call_id or "")
                is_open = here.get(
                    call_id or "", stands is not None and stands.is_open and stands.session == self.session
                )
                draft = self._with_call(draft, call_id if is_open else None)
                if call_id in here:
                    here[call_id] = False
            here[event_id] = draft.type == "tool_call"
            resolved.append((event_id, draft))
        return resolved

    def _with_parent(self, draft: Draft, parent_id: str, key: str, there: set[str]) -> Draft:
        if parent_id in there:
            return replace(draft, parent_id=parent_id)
        self.report.unresolved_parents += 1
        return replace(draft, meta={**(draft.meta or {}), "unresolved_parent": key})

    def _with_call(self, draft: Draft, call_id: str | None) -> Draft:
        if call_id is not None:
            return replace(draft, call_id=call_id)
        self.report.orphans += 1
        return replace(draft, meta={**(draft.meta or {}), "orphan": True})

    def _without(self, draft: Draft, gone: str) -> Draft:
        """`draft` for a log in which the event `gone` is not: what was refused takes nothing else with it."""
        if draft.call_id == gone:
            draft = self._with_call(replace(draft, call_id=None), None)
        if draft.parent_id == gone:
            draft = self._with_parent(replace(draft, parent_id=None), gone, gone, set())
        return draft

    def _append(self, log: ConversationLog, drafts: list[tuple[str, Draft]]) -> None:
        """Append all that the log accepts. What it refuses is counted and named, and harms nothing else."""
        while drafts:
            try:
                found = self.report.scrubbed
                new = log.append_foreign(self.session, drafts, scrubber=self.scrubber, found=found)
            except SessionRemoved as refused:
                self.report.refused += len(drafts)
                self.report.refusals.append(str(refused))
                return
            except Refused as refused:
                at = refused.index or 0
                self.report.refused += 1
                if len(self.report.refusals) < _MAX_REFUSALS:
                    refused.index = None
                    self.report.refusals.append(f"{drafts[at][0]}: {refused}")
                gone = drafts[at][0]
                drafts = drafts[:at] + [(id_, self._without(draft, gone)) for id_, draft in drafts[at + 1 :]]
                continue
            self._written += new
            self.report.new += new
            self.report.already += len(drafts) - new
            return
