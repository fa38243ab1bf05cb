-- The live job of a queue with the smallest id, if it can be leased at ?2 and nothing of the queue is leased (P4, P5).
SELECT first.id, first.priority, first.available_at
FROM (
    SELECT j.id, j.priority, j.available_at, j.lease_until, j.attempts, j.max_attempts
    FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_fifo WHERE j.queue_name = ?1 ORDER BY j.id LIMIT 1
) first
WHERE first.lease_until IS NULL AND first.attempts < first.max_attempts AND first.available_at <= ?2
  AND NOT EXISTS (SELECT 1 FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_leased
                  WHERE j.queue_name = ?1 AND j.lease_until IS NOT NULL)
