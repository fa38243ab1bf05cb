-- The store's time and all policies. The last row is of none. MariaDB can take an empty literal for NULL (EMPTY_STRING_IS_NULL).
SELECT UTC_TIMESTAMP(6), pattern, paused, concurrency_limit, rate_per_sec, rate_burst, max_lease_us, backoff_base_us,
       backoff_jitter, backoff_min_us, backoff_max_us, max_attempts, queue_order, retention_us, archive, on_expiry
FROM {prefix}job_queue_config
UNION ALL
SELECT UTC_TIMESTAMP(6), LEFT('-', 0), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
