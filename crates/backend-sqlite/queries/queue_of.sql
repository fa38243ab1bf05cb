SELECT queue_name FROM {prefix}job_queue WHERE id = ?1
