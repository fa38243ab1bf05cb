-- Removes from the queue what `complete.sql` has written. `sql_safe_updates` is as in `requeue.sql`.
-- `in_transaction` is as in `requeue.sql`.
/*M! SET STATEMENT sql_safe_updates = 0 FOR */
DELETE j FROM {prefix}job_queue j FORCE INDEX (PRIMARY)
WHERE j.id IN ({list}) AND j.lease_epoch = ? AND j.lease_until IS NOT NULL /*M! AND @@in_transaction = 1 */
