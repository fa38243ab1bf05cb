-- The same as it is committed by now, whatever the transaction has seen before.
SELECT j.id FROM {prefix}job_queue j FORCE INDEX (job_queue_unique)
WHERE j.queue_name = ? AND j.unique_key = ? LOCK IN SHARE MODE
