DELETE FROM {prefix}job_history WHERE id IN ({list})
