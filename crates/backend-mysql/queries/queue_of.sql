-- Locks a job, and tells its queue.
SELECT queue_name FROM {prefix}job_queue WHERE id = ? FOR UPDATE
