"""verify: check everything that can be checked, and say what is wrong, all of it.

It yields findings and never stops at the first. Severity `fault` is something that must not be;
`note` is worth knowing (a mirror that lags, a keystore that is locked). Rules, by name:

    database           SQLite's own quick check
    pos, seq           numbers without gaps
    leaf, chain        an envelope was changed, removed or put in another place
    store-chain        the same, over the whole store
    anchor             the head that was kept elsewhere is not in this log: it was cut or rewritten
    index              what the index tables say of an event is not what its envelope says
    payload-missing    the sealed payload is not there, and nothing says that it was erased
    payload-corrupt    the sealed payload, or a blob, does not open
    key-lost           the key is gone without a redaction
    keystore-short     the keystore ends before the last slot that the log uses: it was cut, or is an older copy
    tombstone          the key of an erased event may be there, or is gone and the log does not say by what
    restored           an event was erased in what the restore of an older database undid: it stays erased
    commitment         the content is not what the envelope's commitment was made of
    fork               what a fork shares is not what its opening says
    pairing            a result without its call, a call with two results, a wrong list of open calls
    keystore-locked    content could not be checked: the key-encryption key is not here
    effect             the table of effects is not what the envelopes say: see `effect_check`
    reading            what was read is not what was there, or an event does not name the reading it rests on
    removal            a removed session still has rows, a key or a file, or the log does not say that it was removed
    projection         what is kept of a projection is not what the events give; only checked when asked for
    mirror-differs     a mirror file is not what the log says
    mirror-behind      a mirror file lags; the next append or `convlog export --mirror` brings it up

An unkeyed chain finds accidents and partial edits. Whoever may write the file can make it anew from an
event on, and the newest events can be cut off; an anchor kept elsewhere shows both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from convlog_sqlite import canonical, effect_check, fork_check, reading_check, sealing, tombstones
from convlog_sqlite import walk as walks
from convlog_sqlite.anchor_check import anchor_findings
from convlog_sqlite.database import fetch, value
from convlog_sqlite.errors import StoreCorrupt
from convlog_sqlite.events import Locked, Payload
from convlog_sqlite.findings import Finding
from convlog_sqlite.instants import id_text
from convlog_sqlite.mirror import Mirror
from convlog_sqlite.mirror_check import mirror_findings
from convlog_sqlite.payload_check import payload_faults
from convlog_sqlite.projection_check import projection_findings
from convlog_sqlite.projections.standing import Projections
from convlog_sqlite.store.labels import NOT_LABELLED, WRONGLY_ADDRESSED, WRONGLY_LABELLED
from convlog_sqlite.store.reader import Reader
from convlog_sqlite.tombstones import Graves
from convlog_sqlite.walk import Row, Walk

QUICK_CHECK: Final = "PRAGMA quick_check"
WRONG_ANSWER: Final = """
SELECT r.session, r.seq FROM event AS r CROSS JOIN event AS c ON c.session = r.session AND c.seq = r.answers
CROSS JOIN envelope AS v ON v.pos = r.pos CROSS JOIN envelope AS w ON w.pos = c.pos
WHERE r.answers IS NOT NULL AND json_valid(CAST(v.bytes AS TEXT))
AND upper(replace(json_extract(CAST(v.bytes AS TEXT), '$.call_id'), '-', '')) IS NOT hex(w.id)"""
WRONG_PARENT: Final = """
SELECT e.session, e.seq FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
LEFT JOIN envelope AS w ON w.pos = e.parent
WHERE e.parent IS NOT NULL AND json_valid(CAST(v.bytes AS TEXT))
AND upper(replace(json_extract(CAST(v.bytes AS TEXT), '$.parent_id'), '-', '')) IS NOT hex(w.id)"""
WRONGLY_LINKED: Final = """
SELECT v.session, v.seq FROM link AS l CROSS JOIN envelope AS v ON v.pos = l.pos
LEFT JOIN envelope AS w ON w.pos = l.target
WHERE json_valid(CAST(v.bytes AS TEXT)) AND (w.id IS NULL OR hex(w.id) NOT IN (
    SELECT upper(replace(value, '-', '')) FROM json_each(CAST(v.bytes AS TEXT), CASE l.type
        WHEN 1 THEN '$.links.authorized_by' WHEN 2 THEN '$.links.evidence'
        WHEN 3 THEN '$.links.supersedes' ELSE '$.links.derived_from' END)))"""
NO_SLOT: Final = """
SELECT v.session, v.seq FROM payload AS p CROSS JOIN envelope AS v ON v.pos = p.pos
LEFT JOIN slot AS s ON s.number = p.slot WHERE s.pos IS NOT p.pos OR s.part IS NOT 0"""
SELECT_BLOB_EVENTS: Final = "SELECT DISTINCT pos FROM blob WHERE pos BETWEEN ? AND ?"
# What answers a call that a fork shares, `fork_check` looks at.
UNPAIRED_RESULTS: Final = """
SELECT r.session, r.seq FROM event AS r LEFT JOIN event AS c ON c.session = r.session AND c.seq = r.answers
JOIN session AS s ON s.id = r.session
WHERE r.answers IS NOT NULL AND (s.base = 0 OR r.answers > s.base) AND (c.type IS NULL OR c.type <> 2 OR c.seq >= r.seq)"""
TWICE_ANSWERED: Final = """
SELECT session, answers FROM event WHERE answers IS NOT NULL GROUP BY session, answers HAVING count(*) > 1"""
WRONGLY_OPEN: Final = """
SELECT session, seq FROM open_call
EXCEPT SELECT session, seq FROM event WHERE type = 2
UNION
SELECT session, seq FROM (SELECT session, seq FROM open_call
                          INTERSECT SELECT session, answers FROM event WHERE answers IS NOT NULL)"""
MISSING_OPEN: Final = """
SELECT session, seq FROM event WHERE type = 2
EXCEPT SELECT session, answers FROM event WHERE answers IS NOT NULL
EXCEPT SELECT session, seq FROM open_call"""
UNINDEXED: Final = """
SELECT e.session, e.seq FROM event AS e LEFT JOIN envelope AS v ON v.pos = e.pos
WHERE v.pos IS NULL OR v.session <> e.session OR v.seq <> e.seq"""
NOT_POSTED: Final = """
SELECT e.session, e.seq FROM event AS e
WHERE NOT EXISTS (SELECT 1 FROM posting AS p
                  WHERE p.session = e.session AND p.facet = 1 AND p.name = e.agent AND p.seq = e.seq)
   OR e.task IS NOT NULL AND NOT EXISTS (SELECT 1 FROM posting AS p
                  WHERE p.session = e.session AND p.facet = 2 AND p.name = e.task AND p.seq = e.seq)
   OR e.thread IS NOT NULL AND NOT EXISTS (SELECT 1 FROM posting AS p
                  WHERE p.session = e.session AND p.facet = 3 AND p.name = e.thread AND p.seq = e.seq)
   OR e.kind IS NOT NULL AND NOT EXISTS (SELECT 1 FROM posting AS p
                  WHERE p.session = e.session AND p.facet = 6 AND p.name = e.kind AND p.seq = e.seq)"""
COUNT_POSTED: Final = "SELECT count(*) + count(task) + count(thread) + count(kind) FROM event"
COUNT_POSTINGS: Final = "SELECT count(*) FROM posting"
WRONGLY_POSTED: Final = """
SELECT p.session, p.seq FROM posting AS p LEFT JOIN event AS e ON e.session = p.session AND e.seq = p.seq
WHERE e.seq IS NULL
   OR p.facet NOT IN (4, 5, 8) AND p.name IS NOT CASE p.facet
        WHEN 1 THEN e.agent WHEN 2 THEN e.task WHEN 3 THEN e.thread WHEN 6 THEN e.kind ELSE e.performative END
   OR p.facet = 8 AND NOT e.flags & 8"""

WRONG_PURPOSE: Final = """
SELECT q.session, q.seq FROM purpose AS q LEFT JOIN event AS e ON e.session = q.session AND e.seq = q.seq
WHERE e.seq IS NULL OR NOT e.flags & 4"""


def verify(
    reader: Reader,
    mirror: Mirror | None,
    sessions: Sequence[str] = (),
    anchor: tuple[str, int, str] | None = None,
    projections: Projections | None = None,
) -> Iterator[Finding]:
    """Findings about the whole store, or about some sessions of it. `anchor` is (store id, pos, chain in hex).

    With `projections`, those are folded anew and compared.
    """
    walk = Walk(reader, frozenset(sessions), store_chain=canonical.origin(reader.store_id))
    try:
        yield from _database(reader)
        with reader.database.read() as connection:
            walk.tables = frozenset(name for (name,) in fetch(connection, walks.TABLES))
        for rows in walks.pages(walk):
            yield from _check_rows(walk, rows)
        yield from _pairing(walk)
        yield from _tombstones(walk)
        yield from _effects(walk)
        yield from (
            Finding("reading", found.detail, found.session, found.seq, severity=found.severity)
            for found in reading_check.wrong_readings(reader)
            if walk.is_wanted(found.session)
        )
        yield from (found for found in fork_check.fork_findings(reader) if walk.is_wanted(found.session))
    except StoreCorrupt as damaged:
        yield Finding(
            "database", f"{damaged.rule}: what stands behind position {walk.pos} could not be checked"
        )
        return
    if anchor is not None:
        yield from anchor_findings(reader, *anchor)
    if projections is not None:
        for session in filter(walk.is_wanted, reader.session_ids()):
            yield from projection_findings(reader, projections, session)
    if mirror is not None and mirror.enabled and not walk.locked:  # a mirror line shows content
        for session in filter(walk.is_wanted, reader.session_ids()):
            yield from mirror_findings(reader, mirror, session)


def _database(reader: Reader) -> Iterator[Finding]:
    with reader.database.read() as connection:
        said = [row[0] for row in fetch(connection, QUICK_CHECK)]
    yield from (Finding("database", str(text)) for text in said if text != "ok")


def _check_rows(walk: Walk, rows: list[Row]) -> Iterator[Finding]:
    reader = walk.reader
    keystore = reader.opener.keystore
    keys = iter(keystore.read([row.slot for row in rows if row.slot is not None]))
    with reader.database.read() as connection:
        with_blobs = set()
        if {"blob", "chunk"} <= walk.tables:
            found_blobs = fetch(connection, SELECT_BLOB_EVENTS, (rows[0].pos, rows[-1].pos))
            with_blobs = {pos for (pos,) in found_blobs}
        graves = Graves({}, frozenset())
        if "payload" in walk.tables:
            graves = Graves.of_page(connection, rows[0].pos, rows[-1].pos)
        indexed = walks.indexed(walk, connection, rows)
    for row, is_indexed in zip(rows, indexed, strict=True):
        session, base = walk.sessions.get(row.session, (None, 0))
        key: bytes | Payload | None = None if row.slot is None else next(keys)
        is_plain = is_indexed and not (
            row.pos in with_blobs or graves.says(row.pos) or row.session in walk.removed
        )
        if is_plain and isinstance(key, bytes) and _is_sound(walk, row, session or "", base, key):
            continue
        found = _chains(walk, row, session or "", base)
        if row.session in walk.removed:
            has_rows = row.index_pos is not None or row.slot is not None or bool(row.envelope)
            removal, answers = walk.removed[row.session], keystore.read(graves.slots(row.pos))
            texts = removal.faults(answers, has_rows=has_rows)
            found += [("removal", text, "fault") for text in texts]
        else:
            found += _event(walk, row, key, graves, is_indexed=is_indexed, has_blobs=row.pos in with_blobs)
        if found and walk.is_wanted(session):
            for rule, detail, severity in found:
                yield Finding(rule, detail, session, row.seq, id_text(row.id), severity)


def _event(
    walk: Walk, row: Row, key: bytes | Payload | None, graves: Graves, *, is_indexed: bool, has_blobs: bool
) -> list[_Found]:
    """What is wrong about an event's index, tombstone and payload."""
    found: list[_Found] = []
    if not is_indexed and row.session not in tombstones.removals(walk.reader):
        found.append(("index", "the index does not say what the envelope says", "fault"))
    if row.slot is not None and graves.says(row.pos):
        key = walk.reader.opener.keystore.read([row.slot])[0]  # it may have been erased since
    if row.slot is not None and key is not None:
        found += [("tombstone", text, "fault") for text in graves.faults(row.pos, row.slot, key)]
        found += [("restored", text, "note") for text in graves.notes(row.pos, key)]
    if key is None or not graves.says(row.pos):
        faults = _payload(walk, row, walk.sessions.get(row.session, ("", 0))[0], key, has_blobs)
        found += faults if not faults or not _is_erased_by_now(walk, row.pos) else []
    return found


def _is_sound(walk: Walk, row: Row, session: str, base: int, key: bytes) -> bool:
    """The quick way through an event without blobs of which nothing is to be said.

    False says nothing: then it is looked at closely, and what is wrong gets its name.
    """
    seq, chain = walk.heads.get(row.session) or fork_check.chain_before(
        walk.reader, row.session, session, base
    )
    leaf = canonical.leaf(row.envelope, row.commitment)
    if (
        row.pos != walk.pos + 1
        or row.seq != seq + 1
        or row.leaf != leaf
        or row.chain != canonical.link(chain, leaf)
        or row.store_chain != canonical.link(walk.store_chain, leaf)
    ):
        return False
    bound_to = sealing.place(walk.reader.store_id, row.id, session, row.seq, row.slot or 0, 0)
    try:
        salt, payload = sealing.unseal(key, row.sealed or b"", bound_to)
    except sealing.SealBroken:
        return False
    if canonical.commitment(salt, payload) != row.commitment:
        return False
    walk.pos, walk.store_chain = row.pos, row.store_chain
    walk.heads[row.session] = (row.seq, row.chain)
    return True


def _is_erased_by_now(walk: Walk, pos: int) -> bool:
    if "payload" not in walk.tables:
        return False
    with walk.reader.database.read() as connection:
        graves = Graves.of_page(connection, pos, pos)
    return graves.says(pos) or pos in graves.intended


_Found = tuple[str, str, str]  # rule, detail, severity


def _chains(walk: Walk, row: Row, session: str, base: int) -> list[_Found]:
    found: list[_Found] = []
    if row.pos != walk.pos + 1:
        found.append(("pos", f"{row.pos} follows {walk.pos}", "fault"))
    seq, chain = walk.heads.get(row.session) or fork_check.chain_before(
        walk.reader, row.session, session, base
    )
    if row.seq != seq + 1:
        found.append(("seq", f"{row.seq} follows {seq}", "fault"))
    is_emptied = not row.envelope and row.session in walk.removed
    leaf = row.leaf if is_emptied else canonical.leaf(row.envelope, row.commitment)
    if leaf != row.leaf:
        found.append(("leaf", "the envelope or its commitment was changed", "fault"))
    if canonical.link(chain, leaf) != row.chain:
        found.append(("chain", "the event does not follow on the one before it in its session", "fault"))
    if canonical.link(walk.store_chain, leaf) != row.store_chain:
        found.append(("store-chain", "the event does not follow on the one before it in the store", "fault"))
    # Go on from what stands there, so that one change is found once and not at every event behind it.
    walk.pos, walk.store_chain = row.pos, row.store_chain
    walk.heads[row.session] = (row.seq, row.chain)
    return found


def _payload(
    walk: Walk, row: Row, session: str, key: bytes | Payload | None, has_blobs: bool
) -> list[_Found]:
    if isinstance(key, Locked):
        first, walk.locked = not walk.locked, True
        detail = "content cannot be checked: the key-encryption key is not here"
        return [("keystore-locked", detail, "note")] if first else []
    stored = (row.seq, row.id, row.envelope, row.slot, row.sealed)
    found = payload_faults(walk.reader, session, row.pos, stored, key, row.commitment, has_blobs=has_blobs)
    return [(rule, detail, "fault") for rule, detail in found]


def _pairing(walk: Walk) -> Iterator[Finding]:
    checks = (
        (UNPAIRED_RESULTS, "pairing", "the result answers no call before it"),
        (TWICE_ANSWERED, "pairing", "the call has two results"),
        (WRONGLY_OPEN, "pairing", "listed as open, but no unanswered call"),
        (MISSING_OPEN, "pairing", "the call has no result and is not listed as open"),
        (WRONG_ANSWER, "pairing", "the index says that it answers another call"),
        (WRONG_PARENT, "index", "the index names another parent"),
        (WRONGLY_LINKED, "index", "linked to an event that it does not name"),
        (NO_SLOT, "index", "its key slot is not written down as its own"),
        (UNINDEXED, "index", "the index names an event that is not there"),
        (NOT_POSTED, "index", "the event is not found by its agent, task, thread or kind"),
        (
            WRONGLY_POSTED,
            "index",
            "found by an agent, task, thread, kind, act or effect that it does not have",
        ),
        (WRONGLY_ADDRESSED, "index", "found by a recipient or subject that it does not have"),
        (NOT_LABELLED, "index", "not found by the subject of a label on it"),
        (WRONGLY_LABELLED, "index", "what is kept of its labels is not what they say"),
        (WRONG_PURPOSE, "index", "may be used for a purpose that it does not name"),
    )
    is_posted_whole = False
    for sql, rule, detail in checks:
        if sql is NO_SLOT and "payload" not in walk.tables:
            continue
        if sql in (WRONGLY_POSTED, WRONGLY_ADDRESSED) and is_posted_whole:
            continue
        with walk.reader.database.read() as connection:
            rows = fetch(connection, sql)
            if sql is NOT_POSTED and not rows and walk.addressed is not None:
                # What must be there is there; where there are no more than these, none is wrong.
                posted = value(connection, COUNT_POSTED) + walk.addressed
                is_posted_whole = posted == value(connection, COUNT_POSTINGS)
        for number, seq in rows:
            session = walk.sessions.get(number, (None, 0))[0]
            if walk.is_wanted(session) and not _is_being_removed(walk, number):
                yield Finding(rule, detail, session, seq)


def _is_being_removed(walk: Walk, number: int) -> bool:
    removal = tombstones.removals(walk.reader).get(number)
    return removal is not None and removal.is_pending


def _tombstones(walk: Walk) -> Iterator[Finding]:
    for number, seq, detail in tombstones.live_blobs(walk.reader):
        session = walk.sessions.get(number, (None, 0))[0]
        if walk.is_wanted(session):
            yield Finding("tombstone", detail, session, seq)
    for number, removal in tombstones.removals(walk.reader).items():
        session = walk.sessions.get(number, (None, 0))[0]
        if walk.is_wanted(session) and number in walk.heads:
            for detail in removal.whole_faults(*walk.heads[number]):
                yield Finding("removal", detail, session)
    if not walk.wanted:
        short = tombstones.is_short(walk.reader)
        if short is not None:
            yield Finding("keystore-short", short)
        for pos in tombstones.of_no_event(walk.reader):
            yield Finding("tombstone", f"a tombstone names position {pos}, where no event is")


def _effects(walk: Walk) -> Iterator[Finding]:
    for number, seq, detail in effect_check.wrong_rows(walk.reader):
        session = walk.sessions.get(number, (None, 0))[0]
        if walk.is_wanted(session):
            yield Finding("effect", detail, session, seq)
