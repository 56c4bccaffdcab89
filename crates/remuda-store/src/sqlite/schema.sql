-- Schema 1. Times are milliseconds since 1970 as the plane counts them.

-- The current term, the newest event and the latest time, which must not decrease when old rows are deleted.
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO meta VALUES ('term', 0), ('sequence', 0), ('latest', 0);

-- `accepted` is the fixed part as JSON, written once; `status` is the part that changes. The other columns are only those that
-- queries need, because a row is rewritten at each change. `job_details` shows the rest.
CREATE TABLE jobs (
    id       BLOB PRIMARY KEY,
    tenant   TEXT NOT NULL,
    key      TEXT,
    state    TEXT NOT NULL,
    ended_at INTEGER,
    accepted TEXT NOT NULL,
    status   TEXT NOT NULL
) WITHOUT ROWID;

-- Open jobs (ended_at is NULL) by id and ended ones by age, for restore and retention. A change from queued to running does
-- not touch this index.
CREATE INDEX jobs_by_end ON jobs (ended_at, id);
CREATE INDEX jobs_failed ON jobs (state, id) WHERE state IN ('failed', 'cancelled');
CREATE UNIQUE INDEX jobs_by_key ON jobs (tenant, key) WHERE key IS NOT NULL;

-- Bodies are in separate tables, so that scans of jobs do not read them. Workflows have some KB each; a table with row ids
-- packs them, while one without would start a new page for each.
CREATE TABLE workflows (job BLOB PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE results (job BLOB PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;

-- Events, one row per transaction: a line of JSON each, from `first` to `last`.
CREATE TABLE events (
    last  INTEGER PRIMARY KEY,
    first INTEGER NOT NULL,
    at    INTEGER NOT NULL,
    body  TEXT NOT NULL
);

CREATE TABLE cycles (at INTEGER PRIMARY KEY, report TEXT NOT NULL);

CREATE TABLE workers (
    id          TEXT PRIMARY KEY,
    machine     TEXT NOT NULL,
    fleet       TEXT,
    incarnation INTEGER NOT NULL,
    state       TEXT NOT NULL,
    presence    TEXT NOT NULL,
    slots       INTEGER NOT NULL,
    joined_at   INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    changed_at  INTEGER NOT NULL,
    completed   INTEGER NOT NULL,
    failed      INTEGER NOT NULL,
    lost        INTEGER NOT NULL,
    busy_millis INTEGER NOT NULL,
    went_stale  INTEGER NOT NULL,
    reason      TEXT NOT NULL,
    metrics_at  INTEGER,
    metrics     TEXT NOT NULL,
    row         TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE blocks (worker TEXT, shape BLOB, row TEXT NOT NULL, PRIMARY KEY (worker, shape)) WITHOUT ROWID;
CREATE TABLE quarantine (shape BLOB PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID;

-- Views for operators. Ages use the wall clock, but never a time before the latest stored one.
CREATE VIEW present (now) AS
SELECT max(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), value) FROM meta WHERE key = 'latest';

CREATE VIEW job_details AS
SELECT
    accepted ->> '$.id'            AS id,
    tenant,
    key,
    state,
    accepted ->> '$.priority'      AS priority,
    accepted ->> '$.service'       AS service,
    accepted ->> '$.shape'         AS shape,
    accepted ->> '$.workflow_hash' AS workflow_hash,
    status ->> '$.state.worker'      AS worker,
    status ->> '$.attempt'           AS attempt,
    accepted ->> '$.accepted_at'   AS accepted_at,
    status ->> '$.changed_at'        AS changed_at,
    ended_at
FROM jobs;

CREATE VIEW orchestrator_status AS
SELECT
    queued_tasks,
    running_tasks,
    count(*) FILTER (WHERE state = 'spawning')                        AS spawning_workers,
    count(*) FILTER (WHERE state = 'active')                          AS active_workers,
    count(*) FILTER (WHERE state = 'terminating')                     AS terminating_workers,
    count(*) FILTER (WHERE is_alive)                                  AS total_workers,
    count(*) FILTER (WHERE state = 'error')                           AS error_workers,
    count(*) FILTER (WHERE is_alive AND presence = 'online')          AS online_workers,
    count(*) FILTER (WHERE is_alive AND presence = 'suspect')         AS suspect_workers,
    count(*) FILTER (WHERE is_alive AND presence = 'offline')         AS offline_workers,
    count(*) FILTER (WHERE state = 'active' AND presence <> 'online') AS stale_workers,
    -- Ten beats without metrics.
    count(*) FILTER (WHERE state = 'active' AND now - ifnull(metrics_at, 0) > 300000) AS stale_metrics_workers
FROM present
JOIN (
    SELECT count(*) FILTER (WHERE state = 'queued') AS queued_tasks, count(*) FILTER (WHERE state = 'running') AS running_tasks
    FROM jobs WHERE ended_at IS NULL
)
LEFT JOIN (SELECT *, state IN ('spawning', 'active', 'terminating') AS is_alive FROM workers);

CREATE VIEW active_workers_health AS
SELECT
    id                                         AS worker,
    machine,
    fleet,
    state,
    presence,
    seen_at,
    max(now - seen_at, 0) / 1000.0             AS silent_seconds,
    slots,
    ifnull(running.attempts, 0)                AS running_attempts,
    metrics ->> '$.vram_used_bytes'            AS vram_used_bytes,
    metrics ->> '$.vram_total_bytes'           AS vram_total_bytes,
    100.0 * (metrics ->> '$.vram_used_bytes') / nullif(metrics ->> '$.vram_total_bytes', 0) AS vram_percent,
    metrics_at,
    max(now - metrics_at, 0) / 1000.0          AS metrics_age_seconds,
    went_stale,
    reason
FROM present
JOIN workers
LEFT JOIN (
    SELECT status ->> '$.state.worker' AS worker, count(*) AS attempts
    FROM jobs WHERE ended_at IS NULL AND state = 'running' GROUP BY 1
) AS running ON running.worker = workers.id
WHERE state IN ('spawning', 'active', 'terminating')
ORDER BY id;

CREATE VIEW worker_performance AS
SELECT
    id                                                     AS worker,
    machine,
    fleet,
    state,
    completed,
    failed,
    lost,
    1.0 * completed / nullif(completed + failed + lost, 0) AS success_rate,
    busy_millis / 1000.0 / nullif(completed, 0)            AS mean_processing_seconds,
    max(iif(state IN ('spawning', 'active', 'terminating'), now, changed_at) - joined_at, 0) / 1000.0
                                                           AS uptime_seconds
FROM present
JOIN workers
ORDER BY id;
