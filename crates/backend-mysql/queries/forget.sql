-- Removes jobs from the history. Without a second condition both servers walk all over a small table whatever index is named, and wait
-- for what others have locked there. `sql_safe_updates` is as in `requeue.sql`.
/*M! SET STATEMENT sql_safe_updates = 0 FOR */
DELETE h FROM {prefix}job_history h FORCE INDEX (PRIMARY) WHERE h.id IN ({list}) AND h.lease_epoch >= 0
