-- Changes nothing of a policy but whether it is paused (P10).
INSERT INTO {prefix}job_queue_config (pattern, paused, updated_at) VALUES (?, 1, UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE paused = 1, updated_at = UTC_TIMESTAMP(6)
