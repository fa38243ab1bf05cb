-- Writes the history of jobs that are completed: the verdict of nearly every job, and so a statement for a whole batch.
-- ?1 is an array of [id, epoch, result], none twice. Those whose receipt is stale are left out (S2, S10, S13).
INSERT INTO {prefix}job_history
    (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final, result,
     last_error, redrives, processed_by, created_at, started_at, finished_at)
SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.lease_epoch, 'completed', i.value ->> 2, j.last_error, j.redrives, j.locked_by, j.created_at, j.first_leased_at, ?2 -- S3, S12
FROM json_each(?1) i CROSS JOIN {prefix}job_queue j ON j.id = i.value ->> 0
WHERE j.lease_epoch = i.value ->> 1 AND j.lease_until IS NOT NULL
RETURNING id, lease_epoch, queue_name
