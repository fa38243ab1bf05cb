-- Accepts a job, unless a live one has its unique key (E3, E5).
INSERT INTO {prefix}job_queue
    (queue_name, kind, priority, unique_key, payload, headers, max_attempts, available_at, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)
ON CONFLICT (queue_name, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
RETURNING id
