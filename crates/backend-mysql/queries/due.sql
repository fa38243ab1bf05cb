-- Jobs to be reclaimed at a time: leases that have passed (R1), and jobs whose attempts are spent. Locks nothing.
SELECT j.id FROM {prefix}job_queue j FORCE INDEX (job_queue_reclaim)
WHERE j.ready_queue IS NULL AND j.reclaim_at <= ? ORDER BY j.reclaim_at, j.queue_name, j.id LIMIT ? OFFSET ?
