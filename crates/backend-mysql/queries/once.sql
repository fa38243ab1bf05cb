-- Takes a key once (T5).
INSERT IGNORE INTO {prefix}job_idempotency (idempotency_key, created_at) VALUES (?, UTC_TIMESTAMP(6))
