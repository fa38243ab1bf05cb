-- Remembers when a bucket is full again (P3).
INSERT INTO {prefix}job_queue_limit (queue_name, full_at, rate_per_sec, rate_burst) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue_name) DO UPDATE SET
    full_at = excluded.full_at, rate_per_sec = excluded.rate_per_sec, rate_burst = excluded.rate_burst
