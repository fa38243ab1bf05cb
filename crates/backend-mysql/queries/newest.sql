SELECT id FROM {prefix}job_queue ORDER BY id DESC LIMIT 1
