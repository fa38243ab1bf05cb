-- Locks the rows of queues with limits: whoever claims from one claims alone (P2, P3, P4).
SELECT queue_name, full_at, rate_per_sec, rate_burst FROM {prefix}job_queue_limit FORCE INDEX (PRIMARY)
WHERE queue_name IN ({list}) ORDER BY queue_name FOR UPDATE
