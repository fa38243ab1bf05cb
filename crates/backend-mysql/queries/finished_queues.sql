-- Queues with finished jobs, from one name on and before another: one step in the index for each.
SELECT h.queue_name FROM {prefix}job_history h FORCE INDEX (job_history_finished)
WHERE h.queue_name >= ? AND h.queue_name < ? GROUP BY h.queue_name ORDER BY h.queue_name
