-- How many leases a queue has, passed ones included (P2).
SELECT count(*) FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_leased
WHERE j.queue_name = ?1 AND j.lease_until IS NOT NULL
