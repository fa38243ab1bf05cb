-- Locks those of them that are still there.
SELECT id FROM {prefix}job_history FORCE INDEX (PRIMARY) WHERE id IN ({list}) AND status_final = 'dead_letter' ORDER BY id FOR UPDATE
