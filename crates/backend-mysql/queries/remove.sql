-- Removes jobs from the queue, in the transaction that has written their history.
DELETE FROM {prefix}job_queue WHERE id IN ({list})
