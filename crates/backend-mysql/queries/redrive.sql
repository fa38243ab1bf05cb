-- Puts dead letters back into their queues (X2, X3, X5).
INSERT INTO {prefix}job_queue
    (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, available_at, lease_epoch,
     first_leased_at, last_error, redrives, created_at, updated_at, unique_held)
SELECT h.id, h.queue_name, h.kind, h.priority, h.unique_key, h.payload, h.headers, 0, h.max_attempts, ?, h.lease_epoch,
       h.started_at, h.last_error, h.redrives + 1, h.created_at, ?, 1
FROM {prefix}job_history h FORCE INDEX (PRIMARY) WHERE h.id IN ({list})
