-- The first ?4 queues from ?1 on and before ?2 in which a job is Ready at ?3, by name. From one queue to the next, and from
-- one priority of a queue to the next lower as long as nothing is Ready, is one step in the index.
WITH RECURSIVE step (id) AS (
    SELECT (SELECT j.id FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_ready
            WHERE j.queue_name >= ?1 AND j.queue_name < ?2 AND j.lease_until IS NULL AND j.attempts < j.max_attempts
            ORDER BY j.queue_name, j.priority DESC, j.available_at LIMIT 1)
    UNION ALL
    SELECT coalesce(
        CASE WHEN b.available_at > ?3 THEN (
            SELECT j.id FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_ready
            WHERE j.queue_name = b.queue_name AND j.lease_until IS NULL AND j.attempts < j.max_attempts
              AND j.priority < b.priority
            ORDER BY j.priority DESC, j.available_at LIMIT 1) END,
        (SELECT j.id FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_ready
         WHERE j.queue_name > b.queue_name AND j.queue_name < ?2
           AND j.lease_until IS NULL AND j.attempts < j.max_attempts
         ORDER BY j.queue_name, j.priority DESC, j.available_at LIMIT 1))
    FROM step s CROSS JOIN {prefix}job_queue b ON b.id = s.id
)
SELECT b.queue_name FROM step s CROSS JOIN {prefix}job_queue b ON b.id = s.id
WHERE b.available_at <= ?3
LIMIT ?4
