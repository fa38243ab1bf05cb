WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {jobs})
INSERT INTO job_queue (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
SELECT 'bench', 'bench', 0, '{payload}', '{}', 5, n, 1, 1 FROM n
