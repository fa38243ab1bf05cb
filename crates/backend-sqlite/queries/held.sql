-- The job of a good receipt (S2, S10, S13).
SELECT queue_name, attempts, max_attempts FROM {prefix}job_queue
WHERE id = ?1 AND lease_epoch = ?2 AND lease_until IS NOT NULL
