-- Replaces the policy of a pattern as a whole (P9).
INSERT INTO {schema}.job_queue_config
    (pattern, paused, concurrency_limit, rate_per_sec, rate_burst, max_lease_us, backoff_base_us, backoff_jitter,
     backoff_min_us, backoff_max_us, max_attempts, queue_order, retention_us, archive, on_expiry)
VALUES ($1::text, $2::boolean, $3::integer, $4::double precision, $5::integer, $6::bigint, $7::bigint,
        $8::double precision, $9::bigint, $10::bigint, $11::integer, $12::text, $13::bigint, $14::text, $15::text)
ON CONFLICT (pattern) DO UPDATE SET
    paused = excluded.paused, concurrency_limit = excluded.concurrency_limit, rate_per_sec = excluded.rate_per_sec,
    rate_burst = excluded.rate_burst, max_lease_us = excluded.max_lease_us, backoff_base_us = excluded.backoff_base_us,
    backoff_jitter = excluded.backoff_jitter, backoff_min_us = excluded.backoff_min_us,
    backoff_max_us = excluded.backoff_max_us, max_attempts = excluded.max_attempts, queue_order = excluded.queue_order,
    retention_us = excluded.retention_us, archive = excluded.archive, on_expiry = excluded.on_expiry,
    updated_at = statement_timestamp()
