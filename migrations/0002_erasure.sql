-- Erasure: what was decided, until it is done everywhere.
--
-- An intent is committed before the first key is destroyed: it fixes, by position, which events a redaction
-- erases, so that a crash at any later point leaves something to be finished and nothing to be guessed.
-- The rows of an intent go when it is done; the tombstones and the redaction event stay.

CREATE TABLE intent (
    id      BLOB PRIMARY KEY CHECK (length(id) = 16), -- the id that the redaction event will have
    session INTEGER NOT NULL,
    agent   TEXT NOT NULL,
    reason  INTEGER NOT NULL,
    scope   TEXT NOT NULL,
    at      INTEGER NOT NULL,                         -- microseconds
    detail  TEXT NOT NULL,                            -- JSON: the policy, the holds that were overridden
    state   INTEGER NOT NULL CHECK (state IN (1, 2))  -- 1 decided, 2 gone from the store, not yet from every file
) STRICT, WITHOUT ROWID;

CREATE TABLE intent_event (
    intent BLOB NOT NULL,
    pos    INTEGER NOT NULL,
    PRIMARY KEY (intent, pos)
) STRICT, WITHOUT ROWID;
CREATE INDEX intent_event_pos ON intent_event (pos);

-- The places of plaintext files that are still to be rewritten, as they stand in `copy`: filled when the
-- content is gone from the store, so that what could be reached is not rewritten again for what could not.
CREATE TABLE intent_copy (
    intent BLOB NOT NULL,
    path   TEXT NOT NULL,
    PRIMARY KEY (intent, path)
) STRICT, WITHOUT ROWID;

-- The newest erasures first: a keystore that does not know them is older than the database.
CREATE INDEX tombstone_redaction ON tombstone (redaction);

-- A wiped payload keeps its row, empty: its slot says by which redaction the key was destroyed, and no
-- length stays behind.
DROP TRIGGER payload_update;
CREATE TRIGGER payload_update BEFORE UPDATE ON payload
WHEN new.pos <> old.pos OR new.slot <> old.slot
     OR NOT (new.sealed = zeroblob(length(old.sealed))
             OR (length(new.sealed) = 0 AND old.sealed = zeroblob(length(old.sealed))))
BEGIN SELECT raise(ABORT, 'append-only: a payload can only be wiped'); END;

CREATE TRIGGER tombstone_insert BEFORE INSERT ON tombstone
WHEN EXISTS (SELECT 1 FROM tombstone WHERE pos = new.pos)
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER tombstone_update BEFORE UPDATE ON tombstone
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER tombstone_delete BEFORE DELETE ON tombstone
BEGIN SELECT raise(ABORT, 'append-only'); END;
