-- Locks rows of limits as far as no claim has locked them.
SELECT queue_name FROM {prefix}job_queue_limit FORCE INDEX (PRIMARY) WHERE queue_name IN ({list}) ORDER BY queue_name FOR UPDATE SKIP LOCKED
