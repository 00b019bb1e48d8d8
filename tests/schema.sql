CREATE UNIQUE INDEX effect_key ON effect (key) WHERE key IS NOT NULL AND state <> 4;

CREATE INDEX effect_state ON effect (session, state);

CREATE INDEX event_answers ON event (session, answers) WHERE answers IS NOT NULL;

CREATE INDEX event_parent ON event (parent) WHERE parent IS NOT NULL;

CREATE INDEX event_state ON event (session, state_key, seq) WHERE state_key IS NOT NULL;

CREATE INDEX fork_parent ON fork (parent, base);

CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");

CREATE INDEX intent_event_pos ON intent_event (pos);

CREATE INDEX link_target ON link (target, type);

CREATE INDEX reading_place ON reading (session, reader, upto);

CREATE UNIQUE INDEX snapshot_place ON snapshot (session, projection, version, seq);

CREATE INDEX tombstone_redaction ON tombstone (redaction);

CREATE TABLE blob (
    pos    INTEGER NOT NULL,
    part   INTEGER NOT NULL CHECK (part > 0),
    id     BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    slot   INTEGER NOT NULL,
    chunks INTEGER NOT NULL CHECK (chunks > 0),
    PRIMARY KEY (pos, part)
) STRICT, WITHOUT ROWID;

CREATE TABLE chunk (
    id     INTEGER PRIMARY KEY,
    sealed BLOB NOT NULL
) STRICT;

CREATE TABLE copy (
    id   INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL CHECK (kind IN (1, 2)),
    path TEXT NOT NULL UNIQUE
, view TEXT) STRICT;

CREATE TABLE effect (
    pos     INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    key     BLOB CHECK (key IS NULL OR length(key) = 16),
    state   INTEGER NOT NULL CHECK (state BETWEEN 1 AND 4),
    last    INTEGER NOT NULL,
    worker  INTEGER
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
    at           INTEGER NOT NULL, flags INTEGER NOT NULL DEFAULT 0 CHECK (flags BETWEEN 0 AND 15),
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE fork (
    session INTEGER PRIMARY KEY,
    parent  INTEGER NOT NULL,
    base    INTEGER NOT NULL CHECK (base > 0)
) STRICT;

CREATE TABLE idempotency (
    digest BLOB PRIMARY KEY CHECK (length(digest) = 16),
    pos    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE informed (
    reading INTEGER NOT NULL,
    pos     INTEGER NOT NULL,
    PRIMARY KEY (reading, pos)
) STRICT, WITHOUT ROWID;

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

CREATE TABLE intent_copy (
    intent BLOB NOT NULL,
    path   TEXT NOT NULL,
    PRIMARY KEY (intent, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE intent_event (
    intent BLOB NOT NULL,
    pos    INTEGER NOT NULL,
    PRIMARY KEY (intent, pos)
) STRICT, WITHOUT ROWID;

CREATE TABLE label (
    session     INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    sensitivity INTEGER NOT NULL CHECK (sensitivity BETWEEN 1 AND 4),
    person      INTEGER NOT NULL CHECK (person BETWEEN 0 AND 1),
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE lapse (
    session INTEGER NOT NULL,
    reader  INTEGER NOT NULL,
    before  INTEGER NOT NULL,
    PRIMARY KEY (session, reader)
) STRICT, WITHOUT ROWID;

CREATE TABLE lease (
    pos   INTEGER PRIMARY KEY,
    until INTEGER NOT NULL
) STRICT;

CREATE TABLE link (
    pos    INTEGER NOT NULL,
    type   INTEGER NOT NULL CHECK (type BETWEEN 1 AND 4),
    target INTEGER NOT NULL,
    PRIMARY KEY (pos, type, target)
) STRICT, WITHOUT ROWID;

CREATE TABLE name (
    id   INTEGER PRIMARY KEY,
    text TEXT NOT NULL UNIQUE CHECK (length(text) > 0)
) STRICT;

CREATE TABLE open_call (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE payload (
    pos    INTEGER PRIMARY KEY,
    slot   INTEGER NOT NULL,
    sealed BLOB NOT NULL
) STRICT;

CREATE TABLE "posting" (
    session INTEGER NOT NULL,
    facet   INTEGER NOT NULL CHECK (facet BETWEEN 1 AND 8),
    name    INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (session, facet, name, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE purpose (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    name    INTEGER NOT NULL,
    PRIMARY KEY (session, seq, name)
) STRICT, WITHOUT ROWID;

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

CREATE TABLE removal (
    session INTEGER PRIMARY KEY,
    intent  BLOB NOT NULL UNIQUE CHECK (length(intent) = 16),
    policy  TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version > 0),
    at      INTEGER NOT NULL CHECK (at BETWEEN -62135596800000000 AND 253402300799999999), -- microseconds
    events  INTEGER NOT NULL CHECK (events > 0),
    chain   BLOB NOT NULL CHECK (length(chain) = 32)
) STRICT;

CREATE TABLE session (
    id     INTEGER PRIMARY KEY,
    name   TEXT NOT NULL UNIQUE,
    folded TEXT NOT NULL UNIQUE,
    tenant INTEGER REFERENCES name (id),
    base   INTEGER NOT NULL DEFAULT 0 CHECK (base >= 0)
) STRICT;

CREATE TABLE slot (
    number INTEGER PRIMARY KEY CHECK (number >= 0),
    pos    INTEGER NOT NULL,
    part   INTEGER NOT NULL CHECK (part >= 0)
) STRICT;

CREATE TABLE snapshot (
    id         INTEGER PRIMARY KEY,
    session    INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    projection TEXT NOT NULL,
    version    INTEGER NOT NULL,
    slot       INTEGER NOT NULL,
    sealed     BLOB NOT NULL
) STRICT;

CREATE TABLE state_head (
    session INTEGER NOT NULL,
    key     INTEGER NOT NULL,
    pos     INTEGER NOT NULL,
    over    INTEGER,
    PRIMARY KEY (session, key, pos)
) STRICT, WITHOUT ROWID;

CREATE TABLE store (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    store_id BLOB NOT NULL CHECK (length(store_id) = 16)
) STRICT;

CREATE TABLE task_kind (
    kind   TEXT PRIMARY KEY,
    status TEXT NOT NULL CHECK (length(status) > 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE tombstone (
    pos       INTEGER PRIMARY KEY,
    slot      INTEGER NOT NULL,
    redaction INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    reason    INTEGER NOT NULL
) STRICT;

CREATE TRIGGER blob_delete BEFORE DELETE ON blob
WHEN EXISTS (SELECT 1 FROM chunk WHERE id BETWEEN old.slot * 65536 AND old.slot * 65536 + 65535)
BEGIN SELECT raise(ABORT, 'append-only: the chunks of a blob are deleted before it'); END;

CREATE TRIGGER blob_insert BEFORE INSERT ON blob
WHEN EXISTS (SELECT 1 FROM blob WHERE pos = new.pos AND part = new.part OR id = new.id)
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER blob_update BEFORE UPDATE ON blob
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER chunk_delete BEFORE DELETE ON chunk
WHEN old.sealed <> zeroblob(length(old.sealed))
BEGIN SELECT raise(ABORT, 'append-only: a chunk is wiped before it is deleted'); END;

CREATE TRIGGER chunk_insert BEFORE INSERT ON chunk
WHEN EXISTS (SELECT 1 FROM chunk WHERE id = new.id)
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER chunk_update BEFORE UPDATE ON chunk
WHEN new.id <> old.id OR new.sealed <> zeroblob(length(old.sealed))
BEGIN SELECT raise(ABORT, 'append-only: a chunk can only be wiped'); END;

CREATE TRIGGER envelope_delete BEFORE DELETE ON envelope
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER envelope_order BEFORE INSERT ON envelope
WHEN new.pos <> 1 + coalesce((SELECT max(pos) FROM envelope), 0)
     OR EXISTS (SELECT 1 FROM envelope WHERE id = new.id)
BEGIN SELECT raise(ABORT, 'append-only: pos counts without gaps, and ids are used once'); END;

CREATE TRIGGER envelope_update BEFORE UPDATE ON envelope
WHEN length(new.bytes) > 0
     OR new.pos IS NOT old.pos OR new.session IS NOT old.session OR new.seq IS NOT old.seq
     OR new.id IS NOT old.id OR new.commitment IS NOT old.commitment OR new.leaf IS NOT old.leaf
     OR new.chain IS NOT old.chain OR new.store_chain IS NOT old.store_chain
     OR NOT EXISTS (SELECT 1 FROM removal AS r JOIN intent AS i ON i.id = r.intent AND i.state = 1
                    WHERE r.session = old.session)
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER event_delete BEFORE DELETE ON event
WHEN NOT EXISTS (SELECT 1 FROM removal AS r JOIN intent AS i ON i.id = r.intent AND i.state = 1
                 WHERE r.session = old.session)
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER event_order BEFORE INSERT ON event
WHEN new.seq IS NOT 1 + coalesce(
    (SELECT max(seq) FROM event WHERE session = new.session),
    CASE WHEN EXISTS (SELECT 1 FROM removal WHERE session = new.session) THEN NULL
         ELSE coalesce((SELECT base FROM session WHERE id = new.session), 0) END)
BEGIN SELECT raise(ABORT, 'append-only: seq counts without gaps, and what is removed stays so'); END;

CREATE TRIGGER event_update BEFORE UPDATE ON event
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER fork_delete BEFORE DELETE ON fork
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER fork_insert BEFORE INSERT ON fork WHEN EXISTS (SELECT 1 FROM fork WHERE session = new.session)
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER fork_of_removed BEFORE INSERT ON fork
WHEN EXISTS (SELECT 1 FROM removal WHERE session IN (new.parent, new.session))
BEGIN SELECT raise(ABORT, 'append-only: a removed session is not forked'); END;

CREATE TRIGGER fork_update BEFORE UPDATE ON fork
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER informed_delete BEFORE DELETE ON informed
WHEN EXISTS (SELECT 1 FROM reading WHERE id = old.reading)
BEGIN SELECT raise(ABORT, 'append-only: it goes after its reading'); END;

CREATE TRIGGER informed_insert BEFORE INSERT ON informed
WHEN EXISTS (SELECT 1 FROM informed WHERE reading = new.reading AND pos = new.pos)
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER informed_update BEFORE UPDATE ON informed
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER lapse_delete BEFORE DELETE ON lapse
WHEN NOT EXISTS (SELECT 1 FROM removal AS r JOIN intent AS i ON i.id = r.intent AND i.state = 1
                 WHERE r.session = old.session)
BEGIN SELECT raise(ABORT, 'append-only: a lapse only goes on'); END;

CREATE TRIGGER lapse_update BEFORE UPDATE ON lapse
WHEN new.session IS NOT old.session OR new.reader IS NOT old.reader OR new.before < old.before
BEGIN SELECT raise(ABORT, 'append-only: a lapse only goes on'); END;

CREATE TRIGGER payload_delete BEFORE DELETE ON payload
WHEN old.sealed <> zeroblob(length(old.sealed))
BEGIN SELECT raise(ABORT, 'append-only: a payload is wiped before it is deleted'); END;

CREATE TRIGGER payload_insert BEFORE INSERT ON payload
WHEN EXISTS (SELECT 1 FROM payload WHERE pos = new.pos)
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER payload_update BEFORE UPDATE ON payload
WHEN new.pos <> old.pos OR new.slot <> old.slot
     OR NOT (new.sealed = zeroblob(length(old.sealed))
             OR (length(new.sealed) = 0 AND old.sealed = zeroblob(length(old.sealed))))
BEGIN SELECT raise(ABORT, 'append-only: a payload can only be wiped'); END;

CREATE TRIGGER reading_delete BEFORE DELETE ON reading
WHEN NOT EXISTS (SELECT 1 FROM lapse AS l WHERE l.session = old.session AND l.reader = old.reader AND l.before > old.at)
 AND NOT EXISTS (SELECT 1 FROM removal AS r JOIN intent AS i ON i.id = r.intent AND i.state = 1
                 WHERE r.session = old.session)
BEGIN SELECT raise(ABORT, 'append-only: a reading goes by a policy, or with its session'); END;

CREATE TRIGGER reading_insert BEFORE INSERT ON reading WHEN EXISTS (SELECT 1 FROM reading WHERE id = new.id)
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER reading_update BEFORE UPDATE ON reading
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER removal_delete BEFORE DELETE ON removal
BEGIN SELECT raise(ABORT, 'append-only'); END;

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

CREATE TRIGGER session_delete BEFORE DELETE ON session
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER session_insert BEFORE INSERT ON session
WHEN EXISTS (SELECT 1 FROM session WHERE id = new.id OR name = new.name OR folded = new.folded)
BEGIN SELECT raise(ABORT, 'append-only: a session id is used once'); END;

CREATE TRIGGER session_update BEFORE UPDATE ON session
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER slot_delete BEFORE DELETE ON slot
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER slot_insert BEFORE INSERT ON slot
WHEN EXISTS (SELECT 1 FROM slot WHERE number = new.number)
BEGIN SELECT raise(ABORT, 'append-only: a slot is used once'); END;

CREATE TRIGGER slot_update BEFORE UPDATE ON slot
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER store_delete BEFORE DELETE ON store
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER store_insert BEFORE INSERT ON store WHEN EXISTS (SELECT 1 FROM store)
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER store_update BEFORE UPDATE ON store
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER tombstone_delete BEFORE DELETE ON tombstone
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER tombstone_insert BEFORE INSERT ON tombstone
WHEN EXISTS (SELECT 1 FROM tombstone WHERE pos = new.pos)
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE TRIGGER tombstone_update BEFORE UPDATE ON tombstone
BEGIN SELECT raise(ABORT, 'append-only'); END;

CREATE VIEW agents AS
SELECT g.session AS session, n.text AS agent, g.events AS events, g.first_seq AS first_seq, g.last_seq AS last_seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS last_ts
FROM (SELECT s.name AS session, p.name AS name, count(*) AS events, min(p.seq) AS first_seq,
             max(p.seq) AS last_seq, p.session AS number
      FROM session AS s CROSS JOIN posting AS p ON p.session = s.id AND p.facet = 1
      GROUP BY s.name, p.name) AS g
CROSS JOIN event AS e ON e.session = g.number AND e.seq = g.last_seq CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN name AS n ON n.id = g.name;

CREATE VIEW conflicts AS
SELECT s.name AS session, n.text AS state_key, json_extract(CAST(v.bytes AS TEXT), '$.agent') AS agent,
       json_extract(CAST(v.bytes AS TEXT), '$.kind') AS kind, v.seq AS seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS ts, json_extract(CAST(v.bytes AS TEXT), '$.id') AS event
FROM (SELECT session, key FROM state_head GROUP BY session, key HAVING count(*) > 1) AS c
CROSS JOIN state_head AS h ON h.session = c.session AND h.key = c.key
CROSS JOIN session AS s ON s.id = h.session CROSS JOIN name AS n ON n.id = h.key CROSS JOIN envelope AS v ON v.pos = h.pos;

CREATE VIEW effects AS
SELECT s.name AS session, json_extract(CAST(v.bytes AS TEXT), '$.id') AS effect,
       CASE f.state WHEN 1 THEN 'proposed' WHEN 2 THEN 'attempted' WHEN 3 THEN 'committed' ELSE 'compensated' END
           AS state,
       w.text AS worker, json_extract(CAST(v.bytes AS TEXT), '$.agent') AS proposed_by,
       json_extract(CAST(l.bytes AS TEXT), '$.id') AS last_event, json_extract(CAST(l.bytes AS TEXT), '$.ts') AS last_ts
FROM effect AS f CROSS JOIN session AS s ON s.id = f.session CROSS JOIN envelope AS v ON v.pos = f.pos
CROSS JOIN envelope AS l ON l.pos = f.last LEFT JOIN name AS w ON w.id = f.worker;

CREATE VIEW open_calls AS
SELECT s.name AS session, o.seq AS seq, t.text AS tool, a.text AS agent, n.text AS task,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS ts, json_extract(CAST(v.bytes AS TEXT), '$.id') AS event
FROM open_call AS o CROSS JOIN event AS e ON e.session = o.session AND e.seq = o.seq
CROSS JOIN session AS s ON s.id = o.session CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN name AS a ON a.id = e.agent LEFT JOIN name AS t ON t.id = e.tool LEFT JOIN name AS n ON n.id = e.task;

CREATE VIEW tasks AS
SELECT g.session AS session, n.text AS task, k.status AS status, a.text AS agent, g.seq AS seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS ts, json_extract(CAST(v.bytes AS TEXT), '$.id') AS event
FROM (SELECT s.name AS session, p.name AS task, max(p.seq) AS seq, e.pos AS pos, e.kind AS kind, e.agent AS agent
      FROM session AS s CROSS JOIN posting AS p ON p.session = s.id AND p.facet = 2
      CROSS JOIN event AS e ON e.session = p.session AND e.seq = p.seq
      WHERE e.kind IN (SELECT x.id FROM task_kind AS y JOIN name AS x ON x.text = y.kind)
      GROUP BY s.name, p.name) AS g
CROSS JOIN envelope AS v ON v.pos = g.pos CROSS JOIN name AS n ON n.id = g.task
CROSS JOIN name AS a ON a.id = g.agent CROSS JOIN name AS w ON w.id = g.kind
CROSS JOIN task_kind AS k ON k.kind = w.text;

CREATE VIEW threads AS
SELECT g.session AS session, n.text AS thread, g.events AS events, g.first_seq AS first_seq, g.last_seq AS last_seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS last_ts
FROM (SELECT s.name AS session, p.name AS name, count(*) AS events, min(p.seq) AS first_seq,
             max(p.seq) AS last_seq, p.session AS number
      FROM session AS s CROSS JOIN posting AS p ON p.session = s.id AND p.facet = 3
      GROUP BY s.name, p.name) AS g
CROSS JOIN event AS e ON e.session = g.number AND e.seq = g.last_seq CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN name AS n ON n.id = g.name;

