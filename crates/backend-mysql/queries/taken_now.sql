-- Locks the row of a unique key, and reads it as it is committed by now, whatever the transaction has seen before.
(SELECT CAST(? AS SIGNED), k.job_id, k.version FROM {prefix}job_unique k FORCE INDEX (PRIMARY)
 WHERE k.queue_name = ? AND k.unique_key = ? FOR UPDATE)
