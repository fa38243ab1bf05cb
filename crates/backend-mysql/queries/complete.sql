-- Completes jobs of one epoch with one result, if there was no policy when `is_open_policies.sql` looked (S3). What was not as expected is left out.
-- In a user's transaction, where it waits for other transactions.
-- `in_transaction` is as in `requeue.sql`.
INSERT INTO {prefix}job_history
    (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final, result,
     last_error, redrives, processed_by, created_at, started_at, finished_at)
SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.lease_epoch, 'completed', ?, j.last_error, j.redrives, j.locked_by, j.created_at, j.first_leased_at, UTC_TIMESTAMP(6)
FROM {prefix}job_queue j FORCE INDEX (PRIMARY)
WHERE j.id IN ({list}) AND j.lease_epoch = ? AND j.lease_until IS NOT NULL
  AND @leasehold_has_policies = 0 /*M! AND @@in_transaction = 1 */
FOR UPDATE
