SELECT id, payload FROM job_queue FORCE INDEX (job_queue_ready)
WHERE queue_name = 'bench' AND lease_until IS NULL AND place = 0 AND available_at <= UTC_TIMESTAMP(6)
ORDER BY available_at, id LIMIT ? FOR UPDATE SKIP LOCKED
