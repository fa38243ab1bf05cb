SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final, result,
       last_error, redrives, processed_by, created_at, started_at, finished_at
FROM {prefix}job_history WHERE id = ?
