-- Whether a queue has a job whose attempts are spent and that nobody holds.
(SELECT CAST(? AS SIGNED) FROM {prefix}job_queue j FORCE INDEX (job_queue_reclaim)
 WHERE j.ready_queue IS NULL AND j.reclaim_at = '1970-01-01 00:00:00' AND j.queue_name = ? AND j.lease_until IS NULL LIMIT 1)
