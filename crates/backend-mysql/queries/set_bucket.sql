-- Remembers when a bucket is full again (P3).
UPDATE {prefix}job_queue_limit SET full_at = ?, rate_per_sec = ?, rate_burst = ? WHERE queue_name = ?
