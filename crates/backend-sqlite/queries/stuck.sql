-- Jobs whose leases passed by ?1 (G4). Found by the index of leases, and sorted after that.
SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, available_at, lease_until, locked_by,
    lease_epoch, first_leased_at, last_error, redrives, created_at, updated_at
FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_leased
WHERE j.lease_until IS NOT NULL AND j.lease_until <= ?1
ORDER BY j.id LIMIT ?2
