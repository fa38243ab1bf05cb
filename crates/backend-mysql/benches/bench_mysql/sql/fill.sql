INSERT INTO job_queue (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
SELECT 'bench', 'bench', 0, '{payload}', '{}', 5, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
FROM (WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 100) SELECT n FROM n) a,
     (WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 100) SELECT n FROM n) b,
     (WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 200) SELECT n FROM n) c
LIMIT {jobs}
