-- Accepts a job: the server knows the time and the policies (E8, E12). What a policy says about attempts counts if the job says nothing.
INSERT INTO {prefix}job_queue
    (queue_name, kind, priority, unique_key, payload, headers, max_attempts, available_at, created_at, updated_at, unique_held)
VALUES (?, ?, ?, ?, ?, ?,
    COALESCE(?, (
        SELECT c.max_attempts FROM {prefix}job_queue_config c
        WHERE c.max_attempts BETWEEN 1 AND 1000
          AND (c.pattern = ? OR (RIGHT(c.pattern, 1) = '*' AND LEFT(?, LENGTH(c.pattern) - 1) = LEFT(c.pattern, LENGTH(c.pattern) - 1)))
        ORDER BY RIGHT(c.pattern, 1) = '*', LENGTH(c.pattern) DESC LIMIT 1), ?),
    COALESCE(GREATEST(?, UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 1)
