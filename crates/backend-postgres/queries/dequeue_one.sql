-- Leases jobs of one queue without limits, from the beginning: what nearly every claim is, and so a statement of its own,
-- as small as can be. The answer has the form of dequeue.sql's, and the walk is the same.
WITH RECURSIVE policy AS MATERIALIZED (
    SELECT p.max_lease_us, coalesce(p.paused, false) AS paused,
           p.concurrency_limit IS NOT NULL OR p.rate_per_sec IS NOT NULL OR coalesce(p.queue_order = 'fifo', false)
               AS limited
    FROM {schema}.effective_policy($1::text) p WHERE EXISTS (SELECT FROM {schema}.job_queue_config)
), level (priority) AS (
    SELECT 2147483648 WHERE NOT EXISTS (SELECT FROM policy WHERE paused OR limited) -- P1
    UNION ALL
    SELECT n.priority FROM level l CROSS JOIN LATERAL (
        SELECT j.priority::bigint AS priority FROM {schema}.job_queue j
        WHERE j.queue_name = $1::text AND j.lease_until IS NULL AND j.attempts < j.max_attempts
          AND j.priority < l.priority
        ORDER BY j.priority DESC LIMIT 1
    ) n
), locked AS MATERIALIZED (
    SELECT x.id FROM level l CROSS JOIN LATERAL (
        SELECT j.id FROM {schema}.job_queue j
        WHERE j.queue_name = $1::text AND j.priority = l.priority
          AND j.lease_until IS NULL AND j.attempts < j.max_attempts -- D1
          AND j.available_at <= statement_timestamp()
        ORDER BY j.available_at, j.id LIMIT $2::integer FOR UPDATE SKIP LOCKED -- D2, D6
    ) x
    LIMIT $2::integer -- D5
), leased AS (
    UPDATE {schema}.job_queue j SET
        lease_until = statement_timestamp()
            + least($3::bigint, (SELECT max_lease_us FROM policy)) * interval '1 microsecond', -- D7, P6
        locked_by = $4::text,
        attempts = j.attempts + 1, -- D3
        lease_epoch = j.lease_epoch + 1, -- D4
        first_leased_at = coalesce(j.first_leased_at, statement_timestamp()), -- D8
        updated_at = statement_timestamp()
    WHERE j.id = ANY (ARRAY(SELECT id FROM locked))
    RETURNING j.*
)
SELECT ARRAY[
           0, 0, 0,
           EXISTS (SELECT FROM policy WHERE limited AND NOT paused)::integer,
           (SELECT count(*) FROM locked),
           NULL, NULL, NULL,
           (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint
       ] AS meta,
       0::bigint AS id, ''::text AS queue_name, ''::text AS kind, 0 AS priority, NULL::text AS unique_key,
       'null'::json AS payload, 'null'::json AS headers, 0 AS attempts, 0 AS max_attempts,
       timestamptz 'epoch' AS available_at, NULL::timestamptz AS lease_until, NULL::text AS locked_by,
       0::bigint AS lease_epoch, NULL::timestamptz AS first_leased_at, NULL::json AS last_error, 0 AS redrives,
       timestamptz 'epoch' AS created_at, timestamptz 'epoch' AS updated_at
UNION ALL
SELECT NULL, j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.available_at, j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives,
       j.created_at, j.updated_at
FROM leased j
