-- Removes rows of unique keys, which are locked. The second condition is as in `forget.sql`.
DELETE k FROM {prefix}job_unique k FORCE INDEX (PRIMARY) WHERE (k.queue_name, k.unique_key) IN ({list}) AND k.version >= 0
