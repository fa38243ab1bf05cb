-- Queues with jobs for now, from one name on and before another: one step in the index for each.
SELECT j.ready_queue FROM {prefix}job_queue j FORCE INDEX (job_queue_reclaim)
WHERE j.ready_queue > '' AND j.ready_queue >= ? AND j.ready_queue < ? GROUP BY j.ready_queue ORDER BY j.ready_queue LIMIT ?
