-- Views for people: what a shell that may only read can ask without knowing the tables.
--
--     sqlite3 'file:.convlog/log.db?mode=ro' 'SELECT * FROM tasks'
--
-- `mode=ro`, because a shell that may write can hold the write lock for as long as it likes. Never
-- `immutable=1`: it leaves out the WAL, where the newest events are. None of the views shows content: that
-- is sealed. A fork's rows are about its own events; what it inherited stands in its parent's.

-- Which kinds of mutation say how far a task is. A harness adds its own; `tilldone-*` is one harness's.
CREATE TABLE task_kind (
    kind   TEXT PRIMARY KEY,
    status TEXT NOT NULL CHECK (length(status) > 0)
) STRICT, WITHOUT ROWID;
INSERT INTO task_kind VALUES
    ('task-created', 'created'), ('task-assigned', 'assigned'), ('task-claimed', 'claimed'),
    ('task-released', 'created'), ('task-started', 'started'), ('task-blocked', 'blocked'),
    ('task-done', 'done'), ('task-failed', 'failed'),
    ('tilldone-created', 'created'), ('tilldone-assigned', 'assigned'), ('tilldone-claimed', 'claimed'),
    ('tilldone-started', 'started'), ('tilldone-blocked', 'blocked'), ('tilldone-done', 'done'),
    ('tilldone-failed', 'failed');

-- The newest mutation of each task that says how far it is.
CREATE VIEW tasks AS
SELECT s.name AS session, n.text AS task, k.status AS status, a.text AS agent, e.seq AS seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS ts, json_extract(CAST(v.bytes AS TEXT), '$.id') AS event
FROM (SELECT DISTINCT session, name FROM posting WHERE facet = 2) AS t
JOIN event AS e ON e.session = t.session AND e.seq = (
    SELECT p.seq FROM posting AS p JOIN event AS w ON w.session = p.session AND w.seq = p.seq
    WHERE p.session = t.session AND p.facet = 2 AND p.name = t.name
      AND w.kind IN (SELECT x.id FROM task_kind AS y JOIN name AS x ON x.text = y.kind)
    ORDER BY p.seq DESC LIMIT 1)
JOIN session AS s ON s.id = t.session JOIN name AS n ON n.id = t.name
JOIN name AS w ON w.id = e.kind JOIN task_kind AS k ON k.kind = w.text
JOIN name AS a ON a.id = e.agent JOIN envelope AS v ON v.pos = e.pos;

CREATE VIEW open_calls AS
SELECT s.name AS session, o.seq AS seq, t.text AS tool, a.text AS agent, n.text AS task,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS ts, json_extract(CAST(v.bytes AS TEXT), '$.id') AS event
FROM open_call AS o JOIN event AS e ON e.session = o.session AND e.seq = o.seq
JOIN session AS s ON s.id = o.session JOIN envelope AS v ON v.pos = e.pos
JOIN name AS a ON a.id = e.agent LEFT JOIN name AS t ON t.id = e.tool LEFT JOIN name AS n ON n.id = e.task;

-- Who wrote, how much, and when last.
CREATE VIEW agents AS
SELECT s.name AS session, n.text AS agent, p.events AS events, p.first_seq AS first_seq, p.last_seq AS last_seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS last_ts
FROM (SELECT session, name, count(*) AS events, min(seq) AS first_seq, max(seq) AS last_seq
      FROM posting WHERE facet = 1 GROUP BY session, name) AS p
JOIN session AS s ON s.id = p.session JOIN name AS n ON n.id = p.name
JOIN event AS e ON e.session = p.session AND e.seq = p.last_seq JOIN envelope AS v ON v.pos = e.pos;

-- Named threads; what names none is of the session's main thread.
CREATE VIEW threads AS
SELECT s.name AS session, n.text AS thread, p.events AS events, p.first_seq AS first_seq, p.last_seq AS last_seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS last_ts
FROM (SELECT session, name, count(*) AS events, min(seq) AS first_seq, max(seq) AS last_seq
      FROM posting WHERE facet = 3 GROUP BY session, name) AS p
JOIN session AS s ON s.id = p.session JOIN name AS n ON n.id = p.name
JOIN event AS e ON e.session = p.session AND e.seq = p.last_seq JOIN envelope AS v ON v.pos = e.pos;

CREATE VIEW effects AS
SELECT s.name AS session, json_extract(CAST(v.bytes AS TEXT), '$.id') AS effect,
       CASE f.state WHEN 1 THEN 'proposed' WHEN 2 THEN 'attempted' WHEN 3 THEN 'committed' ELSE 'compensated' END
           AS state,
       w.text AS worker, json_extract(CAST(v.bytes AS TEXT), '$.agent') AS proposed_by,
       json_extract(CAST(l.bytes AS TEXT), '$.id') AS last_event, json_extract(CAST(l.bytes AS TEXT), '$.ts') AS last_ts
FROM effect AS f JOIN session AS s ON s.id = f.session JOIN envelope AS v ON v.pos = f.pos
JOIN envelope AS l ON l.pos = f.last LEFT JOIN name AS w ON w.id = f.worker;

-- Where agents decided apart: each value that stands, until one supersedes all of them.
CREATE VIEW conflicts AS
SELECT s.name AS session, n.text AS state_key, json_extract(CAST(v.bytes AS TEXT), '$.agent') AS agent,
       json_extract(CAST(v.bytes AS TEXT), '$.kind') AS kind, v.seq AS seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS ts, json_extract(CAST(v.bytes AS TEXT), '$.id') AS event
FROM (SELECT session, key FROM state_head GROUP BY session, key HAVING count(*) > 1) AS c
JOIN state_head AS h ON h.session = c.session AND h.key = c.key
JOIN session AS s ON s.id = h.session JOIN name AS n ON n.id = h.key JOIN envelope AS v ON v.pos = h.pos;
