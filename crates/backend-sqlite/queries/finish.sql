-- Writes the history of the job ?1: how it ended, its result, its error if that is another than its last, whether the one who
-- ends it takes it from a holder and so raises its epoch, and when.
INSERT INTO {prefix}job_history
    (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final, result,
     last_error, redrives, processed_by, created_at, started_at, finished_at)
SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.lease_epoch + (?5 AND j.lease_until IS NOT NULL), -- A4, R8
       ?2, ?3, coalesce(?4, j.last_error), j.redrives, j.locked_by, j.created_at, j.first_leased_at, ?6 -- S12
FROM {prefix}job_queue j WHERE j.id = ?1
