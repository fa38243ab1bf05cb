-- Removes jobs from the queue, in the transaction that has written their history.
DELETE FROM {prefix}job_queue WHERE id IN (SELECT value FROM json_each(?1))
