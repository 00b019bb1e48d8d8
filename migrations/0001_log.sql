-- The log itself.
--
-- The split: `event` is narrow (small integers, no rowid) so that every filter is a scan of few pages;
-- `envelope` holds the bytes that are the truth, with their digests; `payload` holds what can be erased,
-- apart, so that it can be wiped or dropped while the envelopes still verify. All three are filled in one
-- transaction. What `event`, `posting`, `link` and `open_call` say can be read out of the envelopes again.
--
-- The triggers hold for every client that opens the file, not only for convlog. The INSERT guards close
-- the hole that INSERT OR REPLACE leaves: it deletes without firing delete triggers, unless
-- recursive_triggers is on.

CREATE TABLE store (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    store_id BLOB NOT NULL CHECK (length(store_id) = 16)
) STRICT;

CREATE TABLE name (
    id   INTEGER PRIMARY KEY,
    text TEXT NOT NULL UNIQUE CHECK (length(text) > 0)
) STRICT;

-- `base` is the seq that the session starts behind: 0, or the fork point.
-- `folded` makes two ids that differ only by case one: they are file names, and some file systems fold case.
CREATE TABLE session (
    id     INTEGER PRIMARY KEY,
    name   TEXT NOT NULL UNIQUE,
    folded TEXT NOT NULL UNIQUE,
    tenant INTEGER REFERENCES name (id),
    base   INTEGER NOT NULL DEFAULT 0 CHECK (base >= 0)
) STRICT;

CREATE TABLE envelope (
    pos         INTEGER PRIMARY KEY CHECK (pos > 0),
    session     INTEGER NOT NULL,
    seq         INTEGER NOT NULL CHECK (seq > 0),
    id          BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    bytes       BLOB NOT NULL,
    commitment  BLOB NOT NULL CHECK (length(commitment) = 32),
    leaf        BLOB NOT NULL CHECK (length(leaf) = 32),
    chain       BLOB NOT NULL CHECK (length(chain) = 32),
    store_chain BLOB NOT NULL CHECK (length(store_chain) = 32)
) STRICT;

-- Names are ids in `name`. `parent` is a pos, `answers` the seq of the call that a result answers.
-- `correlation` is the first eight bytes of a digest: correlation ids are many and seldom repeat.
-- `ts` and `at` are microseconds: when it was recorded, and when its source says it happened.
CREATE TABLE event (
    session      INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    pos          INTEGER NOT NULL,
    type         INTEGER NOT NULL CHECK (type BETWEEN 1 AND 4),
    agent        INTEGER NOT NULL,
    role         INTEGER,
    task         INTEGER,
    thread       INTEGER,
    tool         INTEGER,
    kind         INTEGER,
    performative INTEGER,
    correlation  INTEGER,
    state_key    INTEGER,
    sensitivity  INTEGER NOT NULL CHECK (sensitivity BETWEEN 1 AND 4),
    parent       INTEGER,
    answers      INTEGER CHECK (answers IS NULL OR type = 3),
    ts           INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

-- One row for each way to look an event up: facet 1 agent, 2 task, 3 thread, 4 recipient, 5 subject.
CREATE TABLE posting (
    session INTEGER NOT NULL,
    facet   INTEGER NOT NULL CHECK (facet BETWEEN 1 AND 5),
    name    INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (session, facet, name, seq)
) STRICT, WITHOUT ROWID;

-- Typed links between events, by pos: 1 authorized_by, 2 evidence, 3 supersedes, 4 derived_from.
CREATE TABLE link (
    pos    INTEGER NOT NULL,
    type   INTEGER NOT NULL CHECK (type BETWEEN 1 AND 4),
    target INTEGER NOT NULL,
    PRIMARY KEY (pos, type, target)
) STRICT, WITHOUT ROWID;
CREATE INDEX link_target ON link (target, type);

-- Every slot of the keystore that was ever used, and for what: part 0 is the payload, others are blobs.
CREATE TABLE slot (
    number INTEGER PRIMARY KEY CHECK (number >= 0),
    pos    INTEGER NOT NULL,
    part   INTEGER NOT NULL CHECK (part >= 0)
) STRICT;

CREATE TABLE payload (
    pos    INTEGER PRIMARY KEY,
    slot   INTEGER NOT NULL,
    sealed BLOB NOT NULL
) STRICT;

-- Values too long for the line, and attachments. Part 1 is the whole value, 2 and up are attachments.
CREATE TABLE blob (
    pos    INTEGER NOT NULL,
    part   INTEGER NOT NULL CHECK (part > 0),
    id     BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    slot   INTEGER NOT NULL,
    chunks INTEGER NOT NULL CHECK (chunks > 0),
    PRIMARY KEY (pos, part)
) STRICT, WITHOUT ROWID;

-- The id of a chunk is its blob's slot * 65536 + its number.
CREATE TABLE chunk (
    id     INTEGER PRIMARY KEY,
    sealed BLOB NOT NULL
) STRICT;

-- Keyed digests of idempotency keys. They outlive the content.
CREATE TABLE idempotency (
    digest BLOB PRIMARY KEY CHECK (length(digest) = 16),
    pos    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Calls that have no result yet: what a worker that starts again must look at.
CREATE TABLE open_call (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

-- Every file that may hold plaintext: 1 the store's own mirror, 2 an export. Written before its first byte.
CREATE TABLE copy (
    id   INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL CHECK (kind IN (1, 2)),
    path TEXT NOT NULL UNIQUE
) STRICT;

-- What was erased: content is gone, this stays.
CREATE TABLE tombstone (
    pos       INTEGER PRIMARY KEY,
    slot      INTEGER NOT NULL,
    redaction INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    reason    INTEGER NOT NULL
) STRICT;

-- States computed from the log, sealed, to start from instead of from the beginning. Disposable.
CREATE TABLE snapshot (
    id         INTEGER PRIMARY KEY,
    session    INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    projection TEXT NOT NULL,
    version    INTEGER NOT NULL,
    slot       INTEGER NOT NULL,
    sealed     BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX snapshot_place ON snapshot (session, projection, version, seq);

CREATE TRIGGER event_order BEFORE INSERT ON event
WHEN new.seq <> 1 + coalesce(
    (SELECT max(seq) FROM event WHERE session = new.session),
    (SELECT base FROM session WHERE id = new.session), 0)
BEGIN SELECT raise(ABORT, 'append-only: seq counts without gaps'); END;
CREATE TRIGGER event_update BEFORE UPDATE ON event
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER event_delete BEFORE DELETE ON event
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER envelope_order BEFORE INSERT ON envelope
WHEN new.pos <> 1 + coalesce((SELECT max(pos) FROM envelope), 0)
     OR EXISTS (SELECT 1 FROM envelope WHERE id = new.id)
BEGIN SELECT raise(ABORT, 'append-only: pos counts without gaps, and ids are used once'); END;
CREATE TRIGGER envelope_update BEFORE UPDATE ON envelope
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER envelope_delete BEFORE DELETE ON envelope
BEGIN SELECT raise(ABORT, 'append-only'); END;

-- A payload can be wiped, byte for byte, and nothing else.
CREATE TRIGGER payload_insert BEFORE INSERT ON payload
WHEN EXISTS (SELECT 1 FROM payload WHERE pos = new.pos)
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER payload_update BEFORE UPDATE ON payload
WHEN new.pos <> old.pos OR new.slot <> old.slot OR new.sealed <> zeroblob(length(old.sealed))
BEGIN SELECT raise(ABORT, 'append-only: a payload can only be wiped'); END;
CREATE TRIGGER payload_delete BEFORE DELETE ON payload
WHEN old.sealed <> zeroblob(length(old.sealed))
BEGIN SELECT raise(ABORT, 'append-only: a payload is wiped before it is deleted'); END;

-- A blob is wiped chunk by chunk, then forgotten.
CREATE TRIGGER chunk_insert BEFORE INSERT ON chunk
WHEN EXISTS (SELECT 1 FROM chunk WHERE id = new.id)
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER chunk_update BEFORE UPDATE ON chunk
WHEN new.id <> old.id OR new.sealed <> zeroblob(length(old.sealed))
BEGIN SELECT raise(ABORT, 'append-only: a chunk can only be wiped'); END;
CREATE TRIGGER chunk_delete BEFORE DELETE ON chunk
WHEN old.sealed <> zeroblob(length(old.sealed))
BEGIN SELECT raise(ABORT, 'append-only: a chunk is wiped before it is deleted'); END;
CREATE TRIGGER blob_insert BEFORE INSERT ON blob
WHEN EXISTS (SELECT 1 FROM blob WHERE pos = new.pos AND part = new.part OR id = new.id)
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER blob_update BEFORE UPDATE ON blob
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER blob_delete BEFORE DELETE ON blob
WHEN EXISTS (SELECT 1 FROM chunk WHERE id BETWEEN old.slot * 65536 AND old.slot * 65536 + 65535)
BEGIN SELECT raise(ABORT, 'append-only: the chunks of a blob are deleted before it'); END;

CREATE TRIGGER slot_insert BEFORE INSERT ON slot
WHEN EXISTS (SELECT 1 FROM slot WHERE number = new.number)
BEGIN SELECT raise(ABORT, 'append-only: a slot is used once'); END;
CREATE TRIGGER slot_update BEFORE UPDATE ON slot
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER slot_delete BEFORE DELETE ON slot
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER session_insert BEFORE INSERT ON session
WHEN EXISTS (SELECT 1 FROM session WHERE id = new.id OR name = new.name OR folded = new.folded)
BEGIN SELECT raise(ABORT, 'append-only: a session id is used once'); END;
CREATE TRIGGER session_update BEFORE UPDATE ON session
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER session_delete BEFORE DELETE ON session
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER store_insert BEFORE INSERT ON store WHEN EXISTS (SELECT 1 FROM store)
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER store_update BEFORE UPDATE ON store
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER store_delete BEFORE DELETE ON store
BEGIN SELECT raise(ABORT, 'append-only'); END;
