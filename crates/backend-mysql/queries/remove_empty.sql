-- Removes a policy that says nothing.
DELETE FROM {prefix}job_queue_config
WHERE pattern = ? AND paused IS NULL AND concurrency_limit IS NULL AND rate_per_sec IS NULL AND max_lease_us IS NULL
  AND backoff_base_us IS NULL AND max_attempts IS NULL AND queue_order IS NULL AND retention_us IS NULL AND archive IS NULL
  AND on_expiry IS NULL
