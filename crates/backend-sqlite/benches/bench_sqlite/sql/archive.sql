INSERT INTO job_history
    (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final, result,
     last_error, redrives, processed_by, created_at, started_at, finished_at)
SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.lease_epoch, 'completed', 'null', j.last_error, j.redrives, j.locked_by, j.created_at, j.first_leased_at, ?2
FROM json_each(?1) i CROSS JOIN job_queue j ON j.id = i.value
