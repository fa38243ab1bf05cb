DELETE FROM {prefix}job_hint WHERE seq <= ?1
