-- A bucket that nothing is known of is full.
DELETE FROM {prefix}job_queue_limit WHERE queue_name = ?1
