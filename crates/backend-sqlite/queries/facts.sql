-- What decides when the queue ?1 is worth a look, and why a job of it is not running at ?2: a few steps in the indexes.
WITH RECURSIVE level (id) AS ( -- The first job of each priority, from the highest.
    SELECT (SELECT j.id FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_ready
            WHERE j.queue_name = ?1 AND j.lease_until IS NULL AND j.attempts < j.max_attempts
            ORDER BY j.priority DESC, j.available_at LIMIT 1)
    UNION ALL
    SELECT (SELECT j.id FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_ready
            WHERE j.queue_name = ?1 AND j.lease_until IS NULL AND j.attempts < j.max_attempts
              AND j.priority < b.priority
            ORDER BY j.priority DESC, j.available_at LIMIT 1)
    FROM level l CROSS JOIN {prefix}job_queue b ON b.id = l.id
)
SELECT (SELECT count(*) FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_leased
        WHERE j.queue_name = ?1 AND j.lease_until IS NOT NULL) AS leased,
       (SELECT min(j.lease_until) FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_leased
        WHERE j.queue_name = ?1 AND j.lease_until IS NOT NULL) AS first_lease_until,
       (SELECT min(j.id) FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_leased
        WHERE j.queue_name = ?1 AND j.lease_until IS NOT NULL) AS first_leased_id,
       EXISTS (SELECT 1 FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_exhausted
               WHERE j.queue_name = ?1 AND j.lease_until IS NULL AND j.attempts >= j.max_attempts) AS exhausted,
       head.id, head.available_at, head.lease_until IS NULL AND head.attempts < head.max_attempts,
       (SELECT min(b.available_at) FROM level l CROSS JOIN {prefix}job_queue b ON b.id = l.id) AS first_available_at,
       (SELECT b.id FROM level l CROSS JOIN {prefix}job_queue b ON b.id = l.id
        WHERE b.available_at <= ?2 LIMIT 1) AS first_ready_id,
       k.full_at, k.rate_per_sec, k.rate_burst
FROM (SELECT 1)
LEFT JOIN (
    SELECT j.id, j.available_at, j.lease_until, j.attempts, j.max_attempts
    FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_fifo WHERE j.queue_name = ?1 ORDER BY j.id LIMIT 1
) head
LEFT JOIN {prefix}job_queue_limit k ON k.queue_name = ?1
