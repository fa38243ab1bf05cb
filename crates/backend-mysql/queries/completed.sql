-- Removes from the queue what `complete.sql` has written.
DELETE j FROM {prefix}job_queue j FORCE INDEX (PRIMARY)
WHERE j.id IN ({list}) AND j.lease_epoch = ? AND j.lease_until IS NOT NULL
