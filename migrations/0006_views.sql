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

CREATE VIEW open_calls AS
SELECT s.name AS session, o.seq AS seq, t.text AS tool, a.text AS agent, n.text AS task,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS ts, json_extract(CAST(v.bytes AS TEXT), '$.id') AS event
FROM open_call AS o CROSS JOIN event AS e ON e.session = o.session AND e.seq = o.seq
CROSS JOIN session AS s ON s.id = o.session CROSS JOIN envelope AS v ON v.pos = e.pos
CROSS JOIN name AS a ON a.id = e.agent LEFT JOIN name AS t ON t.id = e.tool LEFT JOIN name AS n ON n.id = e.task;

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

CREATE VIEW effects AS
SELECT s.name AS session, json_extract(CAST(v.bytes AS TEXT), '$.id') AS effect,
       CASE f.state WHEN 1 THEN 'proposed' WHEN 2 THEN 'attempted' WHEN 3 THEN 'committed' ELSE 'compensated' END
           AS state,
       w.text AS worker, json_extract(CAST(v.bytes AS TEXT), '$.agent') AS proposed_by,
       json_extract(CAST(l.bytes AS TEXT), '$.id') AS last_event, json_extract(CAST(l.bytes AS TEXT), '$.ts') AS last_ts
FROM effect AS f CROSS JOIN session AS s ON s.id = f.session CROSS JOIN envelope AS v ON v.pos = f.pos
CROSS JOIN envelope AS l ON l.pos = f.last LEFT JOIN name AS w ON w.id = f.worker;

-- Where agents decided apart: each value that stands, until one supersedes all of them.
CREATE VIEW conflicts AS
SELECT s.name AS session, n.text AS state_key, json_extract(CAST(v.bytes AS TEXT), '$.agent') AS agent,
       json_extract(CAST(v.bytes AS TEXT), '$.kind') AS kind, v.seq AS seq,
       json_extract(CAST(v.bytes AS TEXT), '$.ts') AS ts, json_extract(CAST(v.bytes AS TEXT), '$.id') AS event
FROM (SELECT session, key FROM state_head GROUP BY session, key HAVING count(*) > 1) AS c
CROSS JOIN state_head AS h ON h.session = c.session AND h.key = c.key
CROSS JOIN session AS s ON s.id = h.session CROSS JOIN name AS n ON n.id = h.key CROSS JOIN envelope AS v ON v.pos = h.pos;
