-- Accepts jobs. Their ids follow each other, since the server knows how many they are.
INSERT INTO {prefix}job_queue
    (queue_name, kind, priority, unique_key, payload, headers, max_attempts, available_at, created_at, updated_at, unique_held)
VALUES {list}
