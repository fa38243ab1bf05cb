SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.available_at, j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives,
       j.created_at, j.updated_at
FROM {schema}.job_queue j WHERE j.id = $1::bigint
