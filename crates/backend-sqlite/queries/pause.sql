-- Changes nothing of a policy but whether it is paused (P10).
INSERT INTO {prefix}job_queue_config (pattern, paused, updated_at) VALUES (?1, 1, ?2)
ON CONFLICT (pattern) DO UPDATE SET paused = 1, updated_at = excluded.updated_at
