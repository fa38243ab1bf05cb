-- The largest id that any job has.
SELECT GREATEST(COALESCE((SELECT MAX(j.id) FROM {prefix}job_queue j), 0), COALESCE((SELECT MAX(h.id) FROM {prefix}job_history h), 0))
