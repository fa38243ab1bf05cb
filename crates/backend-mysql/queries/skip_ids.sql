-- Takes an id, so that smaller ones are not given any more. The row is rolled back; the counter of ids is not.
INSERT INTO {prefix}job_queue
    (id, queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
VALUES (?, 'leasehold', 'leasehold', 0, 'null', '{}', 1, '9999-12-31 00:00:00', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
