-- Removes rows of limits, which are locked. The next claim makes them again. `sql_safe_updates` is as in `requeue.sql`.
/*M! SET STATEMENT sql_safe_updates = 0 FOR */
DELETE l FROM {prefix}job_queue_limit l FORCE INDEX (PRIMARY)
WHERE l.queue_name IN ({list}) AND (l.full_at IS NULL OR l.full_at <= UTC_TIMESTAMP(6)) AND l.version >= 0
