SELECT queue_name, full_at, rate_per_sec, rate_burst FROM {prefix}job_queue_limit
