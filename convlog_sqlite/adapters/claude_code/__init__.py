"""Claude Code transcripts to drafts.

`find` says which transcripts there are, `read` translates one. Neither keeps more in memory than the
longest line, apart from maps with a fixed bound (memory.py lists each bound and what happens beyond it).

What becomes what:

* One record gives one event for each content block, in order. Block n of the record with uuid U has the
  key `U#n` (counted from 0) and the native id `U#n`; a uuid that is not a real one (hand-written files)
  is unique in its session only, so its key is `SESSION:U#n`. A record without a usable uuid has a key made
  of the session, a digest of its line and how often the same line came before; it has no native id, for
  that would depend on content.
* Authors: `user`; `assistant` in the main thread; a sub-agent by its type, else `agent-ID`; `harness` for
  what the program put in (injected context, hooks, notices, side records); a teammate by its name. A result
  is written by the agent whose call it answers (the harness ran the tool in its name); `tool` names the tool.
* Threads: the main thread has no `thread_id`; a sub-agent's is its agent id, or the uuid of its first
  record in old files that have no agent ids. The first event of such a thread has the call that spawned it
  as parent, where the transcript tells; if it does not tell, it is left unlinked.
* Parents: the last event of the record that `parentUuid` names. A result's parent is its call, a hook
  message's the call it is about, a later block's the block before it, a compaction's the record before it.
* Progress records are dropped: who names one as parent gets the nearest ancestor that was kept.
* `correlation_id` is the API response's id for what an assistant writes (parallel calls share it) and for
  the results; the prompt id for what a user writes; the request id between teammates.
* `usage` adds up. Claude Code repeats the figures of a response on each of its lines, and the first lines
  may hold early figures: the first event of a response carries them whole, a later one only the increase.
* Thinking is a `restricted` message with `meta.block` = `thinking` and its signature byte for byte.
* Images and documents become attachments; in the text stands which. Invalid base64 stays as it is.
* `meta.toolUseResult` holds what the harness noted beside a result, without what the result says already,
  without images that are attached already and without copies of whole files from before an edit.
* Records that say nothing to anyone (titles, modes, snapshots, unknown kinds) are mutations `claude-KIND`
  with the record as value; a compact boundary is `context-compacted`.
* The same uuid twice in a transcript: the first one counts.

With `raw=True` the first event of each record also carries the untouched line as an attachment, and what
would be dropped (progress, repeated uuids) is kept as a mutation.
"""

from convlog_sqlite.adapters.claude_code.counting import ImportCounts, LineProblem
from convlog_sqlite.adapters.claude_code.discovery import SubAgentFile, Transcript, find, session_id
from convlog_sqlite.adapters.claude_code.translation import read

__all__ = ["ImportCounts", "LineProblem", "SubAgentFile", "Transcript", "find", "read", "session_id"]
