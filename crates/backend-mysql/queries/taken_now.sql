-- The same as it is committed by now, whatever the transaction has seen before. `lease_epoch` is not in the index, so the row is locked
-- as well: verdicts that delete it skip it, and do not wait for the entry of the unique key (S14).
SELECT j.id, j.lease_epoch FROM {prefix}job_queue j FORCE INDEX (job_queue_unique)
WHERE j.queue_name = ? AND j.unique_key = ? LOCK IN SHARE MODE
