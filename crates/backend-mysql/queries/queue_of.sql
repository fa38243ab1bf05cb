-- Locks a job, and tells its queue and its lease.
SELECT queue_name, lease_epoch, lease_until IS NOT NULL FROM {prefix}job_queue WHERE id = ? FOR UPDATE
