SELECT 1 FROM {prefix}job_history WHERE id = ?
