-- Schema 5. Bytes of workflows and results of each tenant, changed in the transaction that stores or deletes them.
CREATE TABLE tenant_bytes (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO tenant_bytes
SELECT tenant, sum(ifnull(length(CAST(workflows.body AS BLOB)), 0) + ifnull(length(CAST(results.body AS BLOB)), 0)) AS bytes
FROM jobs
LEFT JOIN workflows ON workflows.job = jobs.id
LEFT JOIN results ON results.job = jobs.id
GROUP BY tenant HAVING bytes > 0;
