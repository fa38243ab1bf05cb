SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, available_at, lease_until, locked_by,
       lease_epoch, first_leased_at, last_error, redrives, created_at, updated_at
FROM job_queue FORCE INDEX (job_queue_ready)
WHERE queue_name = 'bench' AND lease_until IS NULL AND place = 0 AND available_at <= UTC_TIMESTAMP(6)
ORDER BY available_at, id LIMIT ? FOR UPDATE SKIP LOCKED
