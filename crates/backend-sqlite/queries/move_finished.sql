-- Gives finished jobs other ids.
UPDATE {prefix}job_history SET id = id + ?1 WHERE id IN (SELECT value FROM json_each(?2))
