-- Makes a job available at another time, whoever holds it.
WITH job AS MATERIALIZED (
    SELECT j.id, j.available_at, j.lease_until FROM {schema}.job_queue j WHERE j.id = $1::bigint FOR UPDATE
), later AS (
    UPDATE {schema}.job_queue j SET
        lease_epoch = CASE WHEN j.lease_until IS NOT NULL THEN j.lease_epoch + 1 ELSE j.lease_epoch END, -- A4
        lease_until = NULL,
        locked_by = NULL,
        available_at = greatest(statement_timestamp(), coalesce($3::timestamptz, least( -- A1
            statement_timestamp() + coalesce($2::bigint, 0)::double precision * interval '1 microsecond',
            timestamptz '9999-12-31 23:59:59.999999+00'))),
        updated_at = statement_timestamp()
    FROM job WHERE j.id = job.id
    RETURNING j.queue_name, j.attempts, j.max_attempts, j.available_at
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT l.queue_name, l.attempts, c.due, c.jobs FROM later l CROSS JOIN job
    CROSS JOIN LATERAL (
        SELECT {schema}.due(job.available_at), -1 WHERE job.lease_until IS NULL
        UNION ALL
        SELECT {schema}.due(l.available_at), 1
    ) AS c (due, jobs)
    WHERE l.attempts < l.max_attempts
)
SELECT queue_name, true FROM later
