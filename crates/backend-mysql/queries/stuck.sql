-- Jobs whose leases passed long enough ago (G4). Found by the index of leases, and sorted after that.
SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, available_at, lease_until, locked_by,
       lease_epoch, first_leased_at, last_error, redrives, created_at, updated_at
FROM {prefix}job_queue j FORCE INDEX (job_queue_reclaim)
WHERE j.ready_queue IS NULL AND j.reclaim_at <= ? AND j.lease_until IS NOT NULL
ORDER BY j.id LIMIT ?
