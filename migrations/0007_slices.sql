-- Slices: what a view selects, or keeps back, must be found by index, as everything else is.
--
-- All of it can be read out of the envelopes again; what stands there already is filled in here.

-- Views for people name the table that is made anew, and are made again after it.
DROP VIEW tasks;
DROP VIEW agents;
DROP VIEW threads;

-- One row for each way to look an event up: facet 1 agent, 2 task, 3 thread, 4 recipient, 5 subject, 6 kind,
-- 7 performative where it proposes or decides, 8 the word effect, for a step of one.
CREATE TABLE posted (
    session INTEGER NOT NULL,
    facet   INTEGER NOT NULL CHECK (facet BETWEEN 1 AND 8),
    name    INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (session, facet, name, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO posted SELECT session, facet, name, seq FROM posting ORDER BY session, facet, name, seq;
DROP TABLE posting;
ALTER TABLE posted RENAME TO posting;

INSERT INTO posting SELECT session, 6, kind, seq FROM event WHERE kind IS NOT NULL;
INSERT INTO posting SELECT session, 7, performative, seq FROM event WHERE performative IN (
    SELECT id FROM name WHERE text IN ('propose', 'accept-proposal', 'agree', 'reject-proposal', 'refuse'));

-- What an envelope says that a view may keep back, as bits: 1 it is about a person, 2 it was imported and
-- nobody said how sensitive it is, 4 it is for some purposes only, 8 it is a step of an effect.
ALTER TABLE event ADD COLUMN flags INTEGER NOT NULL DEFAULT 0 CHECK (flags BETWEEN 0 AND 15);

DROP TRIGGER event_update;
UPDATE event SET flags = coalesce((
    SELECT (json_type(j.said, '$.subjects') IS NOT NULL)
         + 2 * (json_type(j.said, '$.source') IS NOT NULL AND json_type(j.said, '$.sensitivity') IS NULL)
         + 4 * (json_type(j.said, '$.purposes') IS NOT NULL) + 8 * (json_type(j.said, '$.effect') IS NOT NULL)
    FROM (SELECT CAST(v.bytes AS TEXT) AS said FROM envelope AS v WHERE v.pos = event.pos) AS j
    WHERE json_valid(j.said)), 0); -- what is no JSON any more, `verify` names
CREATE TRIGGER event_update BEFORE UPDATE ON event
BEGIN SELECT raise(ABORT, 'append-only'); END;

INSERT OR IGNORE INTO name (text) VALUES ('effect');
INSERT INTO posting SELECT e.session, 8, n.id, e.seq FROM event AS e CROSS JOIN name AS n
WHERE e.flags & 8 AND n.text = 'effect';

-- What an event may be used for; nothing stands here for most, which may be used for anything.
CREATE TABLE purpose (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    name    INTEGER NOT NULL,
    PRIMARY KEY (session, seq, name)
) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO name (text)
SELECT j.value FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN json_each(CAST(v.bytes AS TEXT), '$.purposes') AS j WHERE e.flags & 4;
INSERT OR IGNORE INTO purpose
SELECT e.session, e.seq, n.id FROM event AS e CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN json_each(CAST(v.bytes AS TEXT), '$.purposes') AS j CROSS JOIN name AS n ON n.text = j.value
WHERE e.flags & 4;

-- What labels said of an event afterwards: the highest sensitivity, and whether it is about a person.
CREATE TABLE label (
    session     INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    sensitivity INTEGER NOT NULL CHECK (sensitivity BETWEEN 1 AND 4),
    person      INTEGER NOT NULL CHECK (person BETWEEN 0 AND 1),
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO label
SELECT t.session, t.seq, max(e.sensitivity), max(e.flags & 1)
FROM event AS e CROSS JOIN link AS l ON l.pos = e.pos AND l.type = 2
CROSS JOIN envelope AS t ON t.pos = l.target AND t.session = e.session
WHERE e.kind = (SELECT id FROM name WHERE text = 'event-labelled') GROUP BY t.session, t.seq;

-- Through which view an export was written, so that an erasure writes it anew through the same: a JSON object.
ALTER TABLE copy ADD COLUMN view TEXT;

-- The newest mutation of each task that says how far it is. Grouped by the session's name, and in this order of
-- joins, so that to ask for one session looks at that session only. The other columns are those of the max().
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

-- Who wrote, how much, and when last.
CREATE VIEW agents AS
SELECT g.session AS session, n.text AS agent, g.events AS events, g.first_seq AS first_seq, g.last_seq AS last_seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS last_ts
FROM (SELECT s.name AS session, p.name AS name, count(*) AS events, min(p.seq) AS first_seq,
             max(p.seq) AS last_seq, p.session AS number
      FROM session AS s CROSS JOIN posting AS p ON p.session = s.id AND p.facet = 1
      GROUP BY s.name, p.name) AS g
CROSS JOIN event AS e ON e.session = g.number AND e.seq = g.last_seq CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN name AS n ON n.id = g.name;

-- Named threads; what names none is of the session's main thread.
CREATE VIEW threads AS
SELECT g.session AS session, n.text AS thread, g.events AS events, g.first_seq AS first_seq, g.last_seq AS last_seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS last_ts
FROM (SELECT s.name AS session, p.name AS name, count(*) AS events, min(p.seq) AS first_seq,
             max(p.seq) AS last_seq, p.session AS number
      FROM session AS s CROSS JOIN posting AS p ON p.session = s.id AND p.facet = 3
      GROUP BY s.name, p.name) AS g
CROSS JOIN event AS e ON e.session = g.number AND e.seq = g.last_seq CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN name AS n ON n.id = g.name;
