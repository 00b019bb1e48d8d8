"""Walking through the files of a transcript and putting the envelope around what its records say."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from convlog_sqlite.adapters.claude_code.blocks import assistant_pieces, user_pieces
from convlog_sqlite.adapters.claude_code.counting import ImportCounts
from convlog_sqlite.adapters.claude_code.discovery import UUID, SubAgentFile, Transcript
from convlog_sqlite.adapters.claude_code.lines import Record, records
from convlog_sqlite.adapters.claude_code.memory import Call, Memory, Tally, Thread
from convlog_sqlite.adapters.claude_code.notices import attachment_pieces, side_pieces, system_pieces
from convlog_sqlite.adapters.claude_code.pieces import ASSISTANT, USER, Piece, Scene, content_blocks
from convlog_sqlite.adapters.claude_code.sizes import fit
from convlog_sqlite.adapters.claude_code.values import name
from convlog_sqlite.drafts import Attachment, Draft, ForeignDraft

HARNESS_NAME: Final = "claude-code"
_USABLE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)


def read(
    transcript: Transcript, *, raw: bool = False, counts: ImportCounts | None = None
) -> Iterator[ForeignDraft]:
    """The events of `transcript`, a file at a time: the main one, then the sub-agents', outer ones first.

    `counts` is brought up to date while the events are taken; its figures about pairs are complete when
    the last one was. The same files give the same drafts with the same keys, and a file that has grown
    gives the old ones first. Raises ImportFailed when a file cannot be read; a damaged line is reported in
    `counts` and skipped.
    """
    counts = ImportCounts() if counts is None else counts
    reader = _Reader(transcript.session_id, raw, counts)
    main = Thread(None, ASSISTANT, USER)
    if transcript.main is not None:
        for record in records(transcript.main, counts):
            yield from reader.events(record, main)
    described = [(agent.meta(), agent) for agent in transcript.subagents]
    for meta, agent in sorted(described, key=lambda one: (_depth(one[0]), str(one[1].path))):
        thread = reader.sub_agent(agent, meta)
        for record in records(agent.path, counts):
            yield from reader.events(record, thread)
    reader.memory.tally.close()


class _Reader:
    def __init__(self, session: str, raw: bool, counts: ImportCounts) -> None:
        self._session = session
        self._raw = raw
        self._counts = counts
        self.memory = Memory(Tally(counts))

    def sub_agent(self, agent: SubAgentFile, meta: dict[str, Any]) -> Thread:
        """The thread of a sub-agent's own file."""
        spawn = self.memory.spawns.find(use=meta.get("toolUseId"), agent=agent.agent_id)
        thread = name(agent.agent_id) or "sub-agent"
        author = name(meta.get("agentType")) or (spawn and spawn.spawns) or name(f"agent-{thread}") or thread
        above = self.memory.threads.get(str(meta.get("parentAgentId")))
        spawner = spawn.agent if spawn else above.agent if above else ASSISTANT
        found = Thread(thread, author, spawner, spawn)
        self.memory.threads.put(thread, found)
        return found

    def events(self, record: Record, of_file: Thread) -> Iterator[ForeignDraft]:
        """The events of one record of a file whose thread is `of_file`."""
        value = record.value
        sort = _sort(value)
        self._counts.kind(_kind_name(value))
        for block in content_blocks(_content(value)):
            self.memory.tally.block(block)
        given = value.get("uuid")
        first: bool | None = True
        if isinstance(given, str) and given:
            first = self.memory.tally.first_time(given, record.raw)
        uuid = given if isinstance(given, str) and _USABLE.fullmatch(given) else None
        repeated = uuid is not None and first is not True
        thread = of_file if of_file.id is not None else self._thread(value, of_file, uuid)
        if repeated:
            self._counts.duplicates += 1
            self._counts.differing_duplicates += first is None
            if self._raw:
                yield from self._put(record, thread, "duplicate", None)
        elif sort == "progress":
            self._learn(value)
            if self._raw:
                yield from self._put(record, thread, sort, uuid)
            else:
                self._drop(value, uuid)
        else:
            yield from self._put(record, thread, sort, uuid)

    def _drop(self, value: dict[str, Any], uuid: str | None) -> None:
        self._counts.dropped += 1
        if uuid is not None:
            self.memory.dropped.put(uuid, self._chain_parent(value, uuid))

    def _learn(self, value: dict[str, Any]) -> None:
        data = value.get("data")
        if isinstance(data, dict) and isinstance(data.get("agentId"), str):
            self.memory.spawns.bind(
                data["agentId"], self.memory.spawns.find(use=value.get("parentToolUseID"))
            )

    def _thread(self, value: dict[str, Any], main: Thread, uuid: str | None) -> Thread:
        """The thread of a record in the main file, where old transcripts have sub-agents too."""
        if value.get("isSidechain") is not True:
            return main
        given = name(value.get("agentId"))
        above = value.get("parentUuid")
        root = self.memory.roots.get(above) if isinstance(above, str) else None
        thread = given or root or uuid or "sidechain"
        if uuid is not None:
            self.memory.roots.put(uuid, thread)
        found = self.memory.threads.get(thread)
        if found is None:
            prompt = next((text for text in map(_plain, content_blocks(_content(value))) if text), None)
            spawn = self.memory.spawns.find(agent=given, prompt=prompt)
            author = (spawn.spawns if spawn else None) or name(f"agent-{thread}") or thread
            found = Thread(thread, author, spawn.agent if spawn else ASSISTANT, spawn)
        self.memory.threads.put(thread, found)
        return found

    def _put(self, record: Record, thread: Thread, sort: str, uuid: str | None) -> Iterator[ForeignDraft]:
        value = record.value
        scene = Scene(value, thread, self.memory, self._session)
        base = self._base(record, thread, uuid)
        before = self._parent(value, thread, uuid)
        source = {"harness": HARNESS_NAME, "at": instant(value.get("timestamp"))}
        number = 0
        for piece in _pieces(scene, sort):
            key = f"{base}#{number}"
            source["native_id"] = f"{uuid}#{number}" if uuid else None
            if self._raw and number == 0:
                raw = Attachment("application/json", record.raw)
                piece.keys["attachments"] = (*(piece.keys.get("attachments") or ()), raw)
            parent = piece.parent or before
            self._note_call(piece, key)
            yield self._draft(piece, thread, source, key, parent, len(record.raw))
            before = key
            number += 1
        if uuid is not None and number > 1:
            self.memory.last_block.put(uuid, number - 1)
        self._counts.altered += scene.altered

    def _draft(
        self,
        piece: Piece,
        thread: Thread,
        source: dict[str, str | None],
        key: str,
        parent: str | None,
        size: int,
    ) -> ForeignDraft:
        keys = piece.keys
        self._counts.altered += fit(keys, size)
        self._counts.events += 1
        self._counts.attachments += len(keys.get("attachments") or ())
        draft = Draft(
            **keys,
            thread_id=thread.id,
            source={word: said for word, said in source.items() if said is not None},
        )
        return ForeignDraft(draft=draft, key=key, parent_key=parent, call_key=piece.call)

    def _note_call(self, piece: Piece, key: str) -> None:
        if piece.opens is None:
            return
        keys = piece.keys
        call = Call(key, keys["tool"], keys["agent"], keys.get("correlation_id"), piece.spawns)
        self.memory.calls.add(piece.opens, call)
        if piece.spawns is not None:
            self.memory.spawns.add(piece.opens, call, piece.prompt)

    def _base(self, record: Record, thread: Thread, uuid: str | None) -> str:
        if uuid is not None:
            return self._scoped(uuid)
        count = self.memory.tally.occurrence(thread.id or "", record.raw)
        return f"{self._session}:{thread.id or ''}:{hashlib.sha256(record.raw).hexdigest()}:{count}"

    def _scoped(self, uuid: str) -> str:
        return uuid if UUID.fullmatch(uuid) else f"{self._session}:{uuid}"

    def _parent(self, value: dict[str, Any], thread: Thread, uuid: str | None) -> str | None:
        if thread.spawn is not None:
            spawn, thread.spawn = thread.spawn, None
            return spawn.key
        return self._chain_parent(value, uuid)

    def _chain_parent(self, value: dict[str, Any], uuid: str | None) -> str | None:
        """The key of the last event of the record that is named as parent, or of its nearest kept ancestor."""
        above = value.get("parentUuid") or value.get("logicalParentUuid")
        if not isinstance(above, str) or above == uuid or not _USABLE.fullmatch(above):
            return None
        if above in self.memory.dropped:
            return self.memory.dropped.get(above)
        return f"{self._scoped(above)}#{self.memory.last_block.get(above) or 0}"


def _pieces(scene: Scene, sort: str) -> Iterator[Piece]:
    if sort == "user":
        return user_pieces(scene)
    if sort == "assistant":
        return assistant_pieces(scene)
    if sort == "system":
        return system_pieces(scene)
    if sort == "attachment":
        return attachment_pieces(scene)
    return side_pieces(scene, sort)


def _sort(value: dict[str, Any]) -> str:
    """The kind of a record; one without a type but with a message is what the message's role says."""
    sort = value.get("type")
    if isinstance(sort, str) and sort:
        return sort
    message = value.get("message")
    role = message.get("role") if isinstance(message, dict) else None
    return role if role in (USER, ASSISTANT) else "record"


def _kind_name(value: dict[str, Any]) -> str:
    sort = value.get("type")
    if not isinstance(sort, str) or not sort:
        return "(none)"
    subtype = value.get("subtype")
    return f"{sort}/{subtype}" if sort == "system" and isinstance(subtype, str) and subtype else sort


def _content(value: dict[str, Any]) -> Any:
    message = value.get("message")
    return message.get("content") if isinstance(message, dict) else None


def _plain(block: Any) -> str | None:
    text = block.get("text") if isinstance(block, dict) else block
    return text if isinstance(text, str) else None


def _depth(meta: dict[str, Any]) -> int:
    depth = meta.get("spawnDepth")
    return depth if isinstance(depth, int) else 1


def instant(value: Any) -> str | None:
    """RFC 3339 in UTC with microseconds, None if `value` is no instant. Without a zone it is taken as UTC."""
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        moment = datetime.fromisoformat(value)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
