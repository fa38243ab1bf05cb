-- Locks those of them that are still due, as far as nobody else has locked them (R6).
SELECT j.id, j.queue_name, j.kind, j.attempts, j.max_attempts, j.locked_by, j.last_error IS NOT NULL,
       j.lease_epoch
FROM {prefix}job_queue j FORCE INDEX (PRIMARY)
WHERE j.id IN ({list}) AND (j.lease_until <= ? OR (j.lease_until IS NULL AND j.attempts >= j.max_attempts))
ORDER BY j.id FOR UPDATE SKIP LOCKED
