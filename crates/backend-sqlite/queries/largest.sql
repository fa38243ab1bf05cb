-- The largest id that any job has.
SELECT max(coalesce((SELECT max(id) FROM {prefix}job_queue), 0), coalesce((SELECT max(id) FROM {prefix}job_history), 0))
