-- Schema 3. A rented machine whose worker has not registered yet is counted among the workers, by the phase of its rental.
DROP VIEW orchestrator_status;
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
LEFT JOIN (
    SELECT *, state IN ('spawning', 'active', 'terminating') AS is_alive
    FROM (
        SELECT state, presence, metrics_at FROM workers
        UNION ALL
        SELECT
            CASE body ->> '$.phase' WHEN 'up' THEN 'active' WHEN 'draining' THEN 'terminating' WHEN 'returning' THEN 'terminated'
                ELSE 'spawning' END,
            'offline',
            NULL
        FROM documents WHERE collection = 'machine' AND id NOT IN (SELECT machine FROM workers)
    )
);
