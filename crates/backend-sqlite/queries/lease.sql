-- Leases the jobs with these ids, which were found leasable in the same transaction (D2). In no order.
UPDATE {prefix}job_queue SET
    lease_until = ?2, -- D7, P6
    locked_by = ?3,
    attempts = attempts + 1, -- D3
    lease_epoch = lease_epoch + 1, -- D4
    first_leased_at = coalesce(first_leased_at, ?4), -- D8
    updated_at = ?4
WHERE id IN (SELECT value FROM json_each(?1))
RETURNING id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, available_at, lease_until, locked_by,
    lease_epoch, first_leased_at, last_error, redrives, created_at, updated_at
