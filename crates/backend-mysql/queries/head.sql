-- The live job of a queue with the smallest id, and whether it has no lease and attempts left (P4, P5).
(SELECT CAST(? AS SIGNED), j.id, j.priority, j.available_at, j.lease_until IS NULL AND j.attempts < j.max_attempts
 FROM {prefix}job_queue j FORCE INDEX (job_queue_fifo) WHERE j.queue_name = ? ORDER BY j.id LIMIT 1)
