-- Replaces the policy of a pattern as a whole (P9).
REPLACE INTO {prefix}job_queue_config
    (pattern, paused, concurrency_limit, rate_per_sec, rate_burst, max_lease_us, backoff_base_us, backoff_jitter,
     backoff_min_us, backoff_max_us, max_attempts, queue_order, retention_us, archive, on_expiry, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6))
