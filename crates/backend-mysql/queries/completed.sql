-- Removes from the queue what `complete.sql` has written.
DELETE FROM {prefix}job_queue WHERE id IN ({list}) AND lease_epoch = ? AND lease_until IS NOT NULL
