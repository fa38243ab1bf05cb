-- Takes a key once (T5), and keeps it until ?3 at least.
INSERT INTO {prefix}job_idempotency (key, created_at, kept_until) VALUES (?1, ?2, ?3) ON CONFLICT (key) DO NOTHING
