INSERT INTO job_queue (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
VALUES ('bench', 'bench', 0, ?1, '{}', 5, ?2, ?2, ?2)
RETURNING id AS number
