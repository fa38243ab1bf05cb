-- A bucket that nothing is known of is full.
UPDATE {prefix}job_queue_limit SET full_at = NULL, rate_per_sec = NULL, rate_burst = NULL WHERE queue_name = ?
