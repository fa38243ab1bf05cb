-- Who leases a job from a queue with limits raises this. On a cluster where several members take writes a lock excludes only those on the
-- same member, and a row that was written excludes all.

ALTER TABLE {prefix}job_queue_limit ADD COLUMN version BIGINT NOT NULL DEFAULT 0;
