-- Replaces the policy of a pattern as a whole (P9).
INSERT OR REPLACE INTO {prefix}job_queue_config
    (pattern, paused, concurrency_limit, rate_per_sec, rate_burst, max_lease_us, backoff_base_us, backoff_jitter,
     backoff_min_us, backoff_max_us, max_attempts, queue_order, retention_us, archive, on_expiry, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
