-- Locks jobs as far as nobody else has locked them, and tells of their leases (H7).
SELECT j.id, j.lease_epoch, j.lease_until, j.queue_name
FROM {prefix}job_queue j FORCE INDEX (PRIMARY) WHERE j.id IN ({list}) ORDER BY j.id FOR UPDATE SKIP LOCKED
