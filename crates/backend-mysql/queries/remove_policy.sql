DELETE FROM {prefix}job_queue_config WHERE pattern = ?
