-- Rows of limits after one, and whether they say nothing: the bucket is full, and the queue has no job.
SELECT p.queue_name, (p.full_at IS NULL OR p.full_at <= UTC_TIMESTAMP(6)) AND NOT EXISTS (
    SELECT 1 FROM {prefix}job_queue j FORCE INDEX (job_queue_fifo) WHERE j.queue_name = p.queue_name)
FROM (SELECT l.queue_name, l.full_at FROM {prefix}job_queue_limit l FORCE INDEX (PRIMARY)
      WHERE l.queue_name > ? ORDER BY l.queue_name LIMIT ?) p
ORDER BY p.queue_name
