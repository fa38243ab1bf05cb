WITH finished AS (
    DELETE FROM {schema}.job_queue WHERE id = ANY (:ids::bigint[]) RETURNING *
)
INSERT INTO {schema}.job_history
    (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final,
     result, last_error, redrives, processed_by, created_at, started_at, finished_at)
SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, 'completed',
       'null', last_error, redrives, locked_by, created_at, first_leased_at, now()
FROM finished;
