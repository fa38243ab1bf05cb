-- Gives finished jobs other ids.
UPDATE {prefix}job_history FORCE INDEX (PRIMARY) SET id = id + ? WHERE id IN ({list})
