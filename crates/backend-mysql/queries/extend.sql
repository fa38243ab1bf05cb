-- Extends leases that were found live in the same transaction; never shortens one (H2, H6).
UPDATE {prefix}job_queue FORCE INDEX (PRIMARY) SET lease_until = GREATEST(lease_until, ?), updated_at = ? WHERE id IN ({list})
