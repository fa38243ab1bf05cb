-- Ends a job, whoever holds it (A2, A4).
WITH finished AS (
    DELETE FROM {schema}.job_queue j WHERE j.id = $1::bigint RETURNING j.*
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT f.queue_name, f.attempts, {schema}.due(f.available_at), -1 FROM finished f
    WHERE f.lease_until IS NULL AND f.attempts < f.max_attempts
), archived AS (
    INSERT INTO {schema}.job_history
        (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final,
         result, last_error, redrives, processed_by, created_at, started_at, finished_at)
    SELECT f.id, f.queue_name, f.kind, f.priority, f.unique_key, f.payload, f.headers, f.attempts, f.max_attempts,
           CASE WHEN f.lease_until IS NOT NULL THEN f.lease_epoch + 1 ELSE f.lease_epoch END, 'discarded',
           $2::text::json, f.last_error, f.redrives, f.locked_by, f.created_at, f.first_leased_at, statement_timestamp()
    FROM finished f
    WHERE coalesce((SELECT p.archive FROM {schema}.effective_policy(f.queue_name) p), 'all') = 'all' -- P7
)
SELECT queue_name, true FROM finished
