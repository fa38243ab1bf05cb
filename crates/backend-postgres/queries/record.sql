-- A job, wherever it is. In one snapshot, so that one that moves is seen in one of the two places (C1).
SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.available_at, j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives,
       j.created_at, j.updated_at,
       h.id, h.queue_name, h.kind, h.priority, h.unique_key, h.payload, h.headers, h.attempts, h.max_attempts,
       h.lease_epoch, h.status_final, h.result, h.last_error, h.redrives, h.processed_by, h.created_at, h.started_at,
       h.finished_at
FROM (SELECT $1::bigint AS id) asked
LEFT JOIN {schema}.job_queue j ON j.id = asked.id
LEFT JOIN {schema}.job_history h ON h.id = asked.id
