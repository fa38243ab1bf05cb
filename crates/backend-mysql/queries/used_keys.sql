-- Locks rows of unique keys beyond one, as far as no other transaction has locked them.
SELECT k.queue_name, k.unique_key FROM {prefix}job_unique k FORCE INDEX (PRIMARY)
WHERE (k.queue_name = ? AND k.unique_key > ?) OR k.queue_name > ?
ORDER BY k.queue_name, k.unique_key LIMIT ? FOR UPDATE SKIP LOCKED
