-- Writes the rows of queues with limits from which jobs are leased. Their locks hold on one server only: on a cluster where several members
-- take writes, it is the write by which the second of two such claims is refused when it commits (P2, P3, P4).
-- `in_transaction` is as in `requeue.sql`.
UPDATE {prefix}job_queue_limit FORCE INDEX (PRIMARY) SET version = version + 1 WHERE queue_name IN ({list}) /*M! AND @@in_transaction = 1 */
