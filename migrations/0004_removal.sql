-- Removal: a closed session that retention lets go, whole.
--
-- What stays of its events is what the chains and a second import need: position, id, commitment, leaf and
-- chain in `envelope`, the digests of idempotency keys, the effects, the slots and the tombstones. The bytes
-- of its envelopes are emptied, and every other row of it goes. The session's own row stays: no id is ever
-- given twice.
--
-- The append-only triggers open for one session alone, and only while the intent to remove it stands undone.

-- A session that is removed, or being removed while `intent` stands. `intent` is the id that the event has
-- which records the removal in `_store`; `policy` and `version` name the retention policy, `events` how many
-- it had, `chain` is the end of its chain.
CREATE TABLE removal (
    session INTEGER PRIMARY KEY,
    intent  BLOB NOT NULL UNIQUE CHECK (length(intent) = 16),
    policy  TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version > 0),
    at      INTEGER NOT NULL CHECK (at BETWEEN -62135596800000000 AND 253402300799999999), -- microseconds
    events  INTEGER NOT NULL CHECK (events > 0),
    chain   BLOB NOT NULL CHECK (length(chain) = 32)
) STRICT;

-- What the database can tell by itself it refuses by itself. Redactions do not open a closed session again.
CREATE TRIGGER removal_insert BEFORE INSERT ON removal
WHEN EXISTS (SELECT 1 FROM removal WHERE session = new.session OR intent = new.intent)
     OR NOT EXISTS (SELECT 1 FROM intent WHERE id = new.intent AND session = new.session AND state = 1)
     OR (SELECT name FROM session WHERE id = new.session) IS '_store'
     OR (SELECT k.text FROM event AS e JOIN name AS k ON k.id = e.kind
         WHERE e.session = new.session
           AND e.seq = (SELECT max(seq) FROM event WHERE session = new.session AND kind IS NOT
                        coalesce((SELECT id FROM name WHERE text = 'redaction'), 0))) IS NOT 'session-closed'
     OR EXISTS (SELECT 1 FROM open_call WHERE session = new.session)
     OR EXISTS (SELECT 1 FROM effect WHERE session = new.session AND state < 3)
     OR EXISTS (SELECT 1 FROM fork AS f WHERE f.parent = new.session
                AND NOT EXISTS (SELECT 1 FROM removal AS r WHERE r.session = f.session))
     OR EXISTS (SELECT 1 FROM intent WHERE session = new.session AND state = 1 AND id <> new.intent)
BEGIN SELECT raise(ABORT, 'append-only: only a closed session that nothing needs is removed'); END;
CREATE TRIGGER removal_update BEFORE UPDATE ON removal
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER removal_delete BEFORE DELETE ON removal
BEGIN SELECT raise(ABORT, 'append-only'); END;

-- Nothing is appended to a session that is removed, though its rows are gone: without one there is no next
-- number. Asked only where there is no row, so that an append costs no more.
DROP TRIGGER event_order;
CREATE TRIGGER event_order BEFORE INSERT ON event
WHEN new.seq IS NOT 1 + coalesce(
    (SELECT max(seq) FROM event WHERE session = new.session),
    CASE WHEN EXISTS (SELECT 1 FROM removal WHERE session = new.session) THEN NULL
         ELSE coalesce((SELECT base FROM session WHERE id = new.session), 0) END)
BEGIN SELECT raise(ABORT, 'append-only: seq counts without gaps, and what is removed stays so'); END;

-- And no fork of it begins.
CREATE TRIGGER fork_of_removed BEFORE INSERT ON fork
WHEN EXISTS (SELECT 1 FROM removal WHERE session IN (new.parent, new.session))
BEGIN SELECT raise(ABORT, 'append-only: a removed session is not forked'); END;

DROP TRIGGER event_delete;
CREATE TRIGGER event_delete BEFORE DELETE ON event
WHEN NOT EXISTS (SELECT 1 FROM removal AS r JOIN intent AS i ON i.id = r.intent AND i.state = 1
                 WHERE r.session = old.session)
BEGIN SELECT raise(ABORT, 'append-only'); END;

DROP TRIGGER envelope_update;
CREATE TRIGGER envelope_update BEFORE UPDATE ON envelope
WHEN length(new.bytes) > 0
     OR new.pos IS NOT old.pos OR new.session IS NOT old.session OR new.seq IS NOT old.seq
     OR new.id IS NOT old.id OR new.commitment IS NOT old.commitment OR new.leaf IS NOT old.leaf
     OR new.chain IS NOT old.chain OR new.store_chain IS NOT old.store_chain
     OR NOT EXISTS (SELECT 1 FROM removal AS r JOIN intent AS i ON i.id = r.intent AND i.state = 1
                    WHERE r.session = old.session)
BEGIN SELECT raise(ABORT, 'append-only'); END;
