-- Locks the row of a unique key, if there is one, and fails if another transaction has it locked, or has made it and is not committed.
(SELECT CAST(? AS SIGNED) FROM {prefix}job_unique k FORCE INDEX (PRIMARY)
 WHERE k.queue_name = ? AND k.unique_key = ? FOR UPDATE NOWAIT)
