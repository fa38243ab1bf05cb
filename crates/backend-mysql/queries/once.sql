-- Takes a key once (T5), and keeps it for so many microseconds at least.
INSERT IGNORE INTO {prefix}job_idempotency (idempotency_key, created_at, kept_until)
VALUES (?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
