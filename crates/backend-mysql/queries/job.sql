SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, available_at, lease_until, locked_by,
       lease_epoch, first_leased_at, last_error, redrives, created_at, updated_at
FROM {prefix}job_queue WHERE id = ?
