INSERT INTO job_queue
    (queue_name, kind, priority, unique_key, payload, headers, max_attempts, available_at, created_at, updated_at)
VALUES {list}
