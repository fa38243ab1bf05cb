-- Locks jobs, in the order of their ids, and tells which receipts of theirs are good (S2, S10, S13).
-- In a user's transaction, where it waits for other transactions.
SELECT j.id, j.lease_epoch, j.lease_until IS NOT NULL, j.queue_name, j.attempts, j.max_attempts
FROM {prefix}job_queue j FORCE INDEX (PRIMARY) WHERE j.id IN ({list}) ORDER BY j.id FOR UPDATE
