-- Queues of jobs for later whose time has come, the first first.
SELECT j.queue_name FROM {prefix}job_queue j FORCE INDEX (job_queue_reclaim)
WHERE j.ready_queue = '' AND j.reclaim_at <= ? AND j.queue_name >= ? AND j.queue_name < ? ORDER BY j.reclaim_at LIMIT ?
