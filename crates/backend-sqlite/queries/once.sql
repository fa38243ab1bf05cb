-- Takes a key once (T5).
INSERT INTO {prefix}job_idempotency (key, created_at) VALUES (?1, ?2) ON CONFLICT (key) DO NOTHING
