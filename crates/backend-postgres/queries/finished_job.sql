SELECT h.id, h.queue_name, h.kind, h.priority, h.unique_key, h.payload, h.headers, h.attempts, h.max_attempts,
       h.lease_epoch, h.status_final, h.result, h.last_error, h.redrives, h.processed_by, h.created_at, h.started_at,
       h.finished_at
FROM {schema}.job_history h WHERE h.id = $1::bigint
