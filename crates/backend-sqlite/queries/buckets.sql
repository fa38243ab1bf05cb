SELECT queue_name, rate_per_sec, rate_burst FROM {prefix}job_queue_limit
