-- Removes jobs from the history. The second condition is as in `remove.sql`.
DELETE h FROM {prefix}job_history h FORCE INDEX (PRIMARY) WHERE h.id IN ({list}) AND h.lease_epoch >= 0
