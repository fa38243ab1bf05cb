-- Jobs whose leases passed at least so long ago (G4). Found by the index of leases, and sorted after that.
WITH passed AS MATERIALIZED (
    SELECT * FROM {schema}.job_queue WHERE lease_until <= statement_timestamp() - $1::bigint::double precision * interval '1 microsecond'
)
SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.available_at, j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives,
       j.created_at, j.updated_at
FROM passed j
ORDER BY j.id LIMIT $2::integer
