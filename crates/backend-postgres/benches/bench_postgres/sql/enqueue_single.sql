INSERT INTO {schema}.job_queue
    (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
VALUES ('bench', 'bench', 0, '{payload}', '{}', 5, now(), now(), now()) RETURNING id;
