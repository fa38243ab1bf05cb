-- Removes rows of unique keys, which are locked. The second condition is as in `forget.sql`. `sql_safe_updates` is as in `requeue.sql`.
/*M! SET STATEMENT sql_safe_updates = 0 FOR */
DELETE k FROM {prefix}job_unique k FORCE INDEX (PRIMARY) WHERE (k.queue_name, k.unique_key) IN ({list}) AND k.version >= 0
