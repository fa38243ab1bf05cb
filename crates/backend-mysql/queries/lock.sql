-- Locks those of the jobs with these ids that can be leased at the time given (D1), as far as nobody else has locked them.
SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts, j.available_at,
       j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives, j.created_at, j.updated_at
FROM {prefix}job_queue j FORCE INDEX (PRIMARY)
WHERE j.id IN ({list}) AND j.lease_until IS NULL AND j.attempts < j.max_attempts AND j.available_at <= ?
FOR UPDATE SKIP LOCKED
