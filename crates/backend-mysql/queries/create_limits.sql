INSERT IGNORE INTO {prefix}job_queue_limit (queue_name) VALUES {list}
