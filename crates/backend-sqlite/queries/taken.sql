-- The live job that has a unique key.
SELECT id FROM {prefix}job_queue WHERE queue_name = ?1 AND unique_key = ?2 AND unique_key IS NOT NULL
