-- Makes a job available at another time, whoever holds it.
UPDATE {schema}.job_queue SET
    lease_epoch = CASE WHEN lease_until IS NOT NULL THEN lease_epoch + 1 ELSE lease_epoch END, -- A4
    lease_until = NULL,
    locked_by = NULL,
    available_at = greatest(statement_timestamp(), coalesce($3::timestamptz, least( -- A1
        statement_timestamp() + coalesce($2::bigint, 0) * interval '1 microsecond',
        timestamptz '9999-12-31 23:59:59.999999+00'))),
    updated_at = statement_timestamp()
WHERE id = $1::bigint
RETURNING queue_name, true
