-- Writes the history of jobs that end in the same way: how, their result, their error if that is another than their last, whether
-- the one who ends them takes them from a holder and so raises their epoch, and when. A job that is not as it was locked is left out.
-- `in_transaction` is as in `requeue.sql`.
INSERT INTO {prefix}job_history
    (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final, result,
     last_error, redrives, processed_by, created_at, started_at, finished_at)
SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.lease_epoch + (? AND j.lease_until IS NOT NULL), -- A4, R8
       ?, ?, COALESCE(?, j.last_error), j.redrives, j.locked_by, j.created_at, j.first_leased_at, ? -- S12
FROM {prefix}job_queue j FORCE INDEX (PRIMARY)
WHERE j.id IN ({list}) AND j.lease_epoch = ? AND (j.lease_until IS NOT NULL) = ?
  /*M! AND @@in_transaction = 1 */
