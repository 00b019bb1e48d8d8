-- State: what an append may be refused for is decided inside its transaction, so it must be found by index.
--
-- Everything here can be read out of the envelopes again, but for `lease`, which is a matter of the clock.
-- None of it holds content.

-- The mutations of one piece of state, newest first; most events set none.
CREATE INDEX event_state ON event (session, state_key, seq) WHERE state_key IS NOT NULL;

-- What an event caused.
CREATE INDEX event_parent ON event (parent) WHERE parent IS NOT NULL;

-- A session that shares the events of another up to `base`, by reference. `parent` may be a fork itself.
CREATE TABLE fork (
    session INTEGER PRIMARY KEY,
    parent  INTEGER NOT NULL,
    base    INTEGER NOT NULL CHECK (base > 0)
) STRICT;
CREATE INDEX fork_parent ON fork (parent, base);

-- What stands for a piece of state: one row, or several where agents decided apart. `over` is the value of
-- another agent that this one replaced without saying so.
CREATE TABLE state_head (
    session INTEGER NOT NULL,
    key     INTEGER NOT NULL,
    pos     INTEGER NOT NULL,
    over    INTEGER,
    PRIMARY KEY (session, key, pos)
) STRICT, WITHOUT ROWID;

-- How long the claim that stands at `pos`, on a task or an effect, is held: microseconds.
CREATE TABLE lease (
    pos   INTEGER PRIMARY KEY,
    until INTEGER NOT NULL
) STRICT;

-- Effects in the outside world. `pos` is the proposing event, `last` the newest transition, `worker` who
-- attempts it. State 1 proposed, 2 attempted, 3 committed, 4 compensated.
CREATE TABLE effect (
    pos     INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    key     BLOB CHECK (key IS NULL OR length(key) = 16),
    state   INTEGER NOT NULL CHECK (state BETWEEN 1 AND 4),
    last    INTEGER NOT NULL,
    worker  INTEGER
) STRICT;
CREATE UNIQUE INDEX effect_key ON effect (key) WHERE key IS NOT NULL AND state <> 4;
CREATE INDEX effect_open ON effect (session, state) WHERE state < 3;

CREATE TRIGGER fork_insert BEFORE INSERT ON fork WHEN EXISTS (SELECT 1 FROM fork WHERE session = new.session)
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER fork_update BEFORE UPDATE ON fork
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER fork_delete BEFORE DELETE ON fork
BEGIN SELECT raise(ABORT, 'append-only'); END;
