-- Queues of jobs that are leased, and until when, or whose attempts are spent, the first first.
SELECT j.queue_name, j.reclaim_at FROM {prefix}job_queue j FORCE INDEX (job_queue_reclaim)
WHERE j.ready_queue IS NULL AND j.reclaim_at IS NOT NULL AND j.queue_name >= ? AND j.queue_name < ? ORDER BY j.reclaim_at LIMIT ?
