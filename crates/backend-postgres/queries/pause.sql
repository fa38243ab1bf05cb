-- Changes nothing of a policy but whether it is paused (P10).
INSERT INTO {schema}.job_queue_config (pattern, paused) VALUES ($1::text, true)
ON CONFLICT (pattern) DO UPDATE SET paused = true, updated_at = statement_timestamp()
