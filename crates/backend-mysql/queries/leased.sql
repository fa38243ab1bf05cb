-- How many leases a queue has, passed ones included (P2), the first end of one, and the smallest id of a job with one.
(SELECT CAST(? AS SIGNED), COUNT(*), MIN(j.lease_until), MIN(j.id)
 FROM {prefix}job_queue j FORCE INDEX (job_queue_ready) WHERE j.queue_name = ? AND j.lease_until IS NOT NULL)
