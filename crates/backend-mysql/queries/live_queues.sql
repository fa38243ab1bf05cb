-- Queues with live jobs, after one name: one step in the index for each.
SELECT j.queue_name FROM {prefix}job_queue j FORCE INDEX (job_queue_fifo)
WHERE j.queue_name > ? GROUP BY j.queue_name ORDER BY j.queue_name LIMIT ?
