INSERT INTO {schema}.job_queue
    (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
SELECT 'bench', 'bench', 0, '{payload}', '{}', 5, now(), now(), now() FROM generate_series(1, 1000) RETURNING id;
