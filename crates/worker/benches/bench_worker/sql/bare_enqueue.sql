WITH job AS (
    INSERT INTO {schema}.job_queue
        (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
    VALUES ('bench', 'latency', 0, $1::text::json, '{}', 5, now(), now(), now()) RETURNING id
)
SELECT pg_notify('bench', '') FROM job
