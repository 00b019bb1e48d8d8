-- Readings: what each agent had in front of it, so that the log can say on what an event was decided.
--
-- None of it is content: names, places, a count, a digest of ids. A reading is written with the first append
-- that it informed, in the same transaction; one that informed nothing may be written later, or be lost.

-- One look through a view: the events that it shows from seq `first` to `last`, `count` of them (0: there were
-- none), when the session had been read up to seq `upto`. `pairs` is 1 where the calls of results were added.
-- `digest` is the SHA-256 of their ids, as text, one behind the other; `at` is in microseconds.
CREATE TABLE reading (
    id      INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    reader  INTEGER NOT NULL,
    role    INTEGER,
    purpose INTEGER,
    view    INTEGER NOT NULL,
    version INTEGER NOT NULL CHECK (version >= 0),
    first   INTEGER NOT NULL CHECK (first >= 0),
    last    INTEGER NOT NULL CHECK (last >= first),
    upto    INTEGER NOT NULL CHECK (upto >= last),
    count   INTEGER NOT NULL CHECK (count >= 0 AND (count = 0) = (last = 0)),
    pairs   INTEGER NOT NULL CHECK (pairs BETWEEN 0 AND 1),
    digest  BLOB NOT NULL CHECK (length(digest) = 32),
    at      INTEGER NOT NULL
) STRICT;
CREATE INDEX reading_place ON reading (session, reader, upto);

-- Which reading an event was written on.
CREATE TABLE informed (
    reading INTEGER NOT NULL,
    pos     INTEGER NOT NULL,
    PRIMARY KEY (reading, pos)
) STRICT, WITHOUT ROWID;

-- Readings that a reader made in a session `before` this moment, in microseconds, are gone by a retention policy.
CREATE TABLE lapse (
    session INTEGER NOT NULL,
    reader  INTEGER NOT NULL,
    before  INTEGER NOT NULL,
    PRIMARY KEY (session, reader)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER reading_insert BEFORE INSERT ON reading WHEN EXISTS (SELECT 1 FROM reading WHERE id = new.id)
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER reading_update BEFORE UPDATE ON reading
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER reading_delete BEFORE DELETE ON reading
WHEN NOT EXISTS (SELECT 1 FROM lapse AS l WHERE l.session = old.session AND l.reader = old.reader AND l.before > old.at)
 AND NOT EXISTS (SELECT 1 FROM removal AS r JOIN intent AS i ON i.id = r.intent AND i.state = 1
                 WHERE r.session = old.session)
BEGIN SELECT raise(ABORT, 'append-only: a reading goes by a policy, or with its session'); END;

CREATE TRIGGER informed_insert BEFORE INSERT ON informed
WHEN EXISTS (SELECT 1 FROM informed WHERE reading = new.reading AND pos = new.pos)
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER informed_update BEFORE UPDATE ON informed
BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER informed_delete BEFORE DELETE ON informed
WHEN EXISTS (SELECT 1 FROM reading WHERE id = old.reading)
BEGIN SELECT raise(ABORT, 'append-only: it goes after its reading'); END;

CREATE TRIGGER lapse_update BEFORE UPDATE ON lapse
WHEN new.session IS NOT old.session OR new.reader IS NOT old.reader OR new.before < old.before
BEGIN SELECT raise(ABORT, 'append-only: a lapse only goes on'); END;
CREATE TRIGGER lapse_delete BEFORE DELETE ON lapse
WHEN NOT EXISTS (SELECT 1 FROM removal AS r JOIN intent AS i ON i.id = r.intent AND i.state = 1
                 WHERE r.session = old.session)
BEGIN SELECT raise(ABORT, 'append-only: a lapse only goes on'); END;
