SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.available_at, j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives,
       j.created_at, j.updated_at
FROM {schema}.job_queue j
WHERE j.lease_until <= statement_timestamp() - $1::bigint * interval '1 microsecond' -- G4
ORDER BY j.id LIMIT $2::integer
