-- Jobs that are newer than one, and where they are.
SELECT id, queue_name FROM {prefix}job_queue FORCE INDEX (PRIMARY) WHERE id > ? ORDER BY id LIMIT ?
