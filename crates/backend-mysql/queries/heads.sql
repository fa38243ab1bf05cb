-- The first jobs of a queue without a lease and beyond a place, in the order in which they are leased (D6), whether or not
-- their time has come. A walk in the index, as long as is asked for. Locks nothing. To count the policies would make MySQL start threads in each branch.
(SELECT j.id, j.queue_name, j.place, j.available_at, UTC_TIMESTAMP(6),
        EXISTS (SELECT 1 FROM {prefix}job_queue_config)
 FROM {prefix}job_queue j FORCE INDEX (job_queue_ready)
 WHERE j.queue_name = ? AND j.lease_until IS NULL AND j.place > ?
 ORDER BY j.place, j.available_at, j.id LIMIT ?)
