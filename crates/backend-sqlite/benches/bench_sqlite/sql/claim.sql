UPDATE job_queue SET lease_until = ?1 + 60000000, locked_by = 'bench', attempts = attempts + 1,
    lease_epoch = lease_epoch + 1, first_leased_at = coalesce(first_leased_at, ?1), updated_at = ?1
WHERE id IN (
    SELECT j.id FROM job_queue j INDEXED BY job_queue_ready
    WHERE j.queue_name = 'bench' AND j.priority = 0 AND j.lease_until IS NULL AND j.attempts < j.max_attempts
      AND j.available_at <= ?1
    ORDER BY j.available_at LIMIT ?2)
RETURNING id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, available_at, lease_until,
    locked_by, lease_epoch, first_leased_at, last_error, redrives, created_at, updated_at
