-- The same without a lock.
SELECT j.id, j.lease_epoch, j.lease_until, j.queue_name FROM {prefix}job_queue j FORCE INDEX (PRIMARY) WHERE j.id IN ({list})
