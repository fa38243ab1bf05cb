-- Leases jobs of one queue without limits: what nearly every claim is, and so a statement of its own, as small as can be.
-- The answer has the form of dequeue.sql's, and so has the walk; $5 to $7 are the floors of this queue. Jobs are locked where
-- they are found, and what was passed over because somebody else has locked it is looked for afterwards.
CREATE FUNCTION {schema}.dequeue_one(
    queue text, wanted integer, lease_us bigint, worker text, floor_priorities integer[], floor_times timestamptz[],
    floor_ids bigint[]
) RETURNS TABLE (
    meta bigint[], id bigint, queue_name text, kind text, priority integer, unique_key text, payload json, headers json,
    attempts integer, max_attempts integer, available_at timestamptz, lease_until timestamptz, locked_by text,
    lease_epoch bigint, first_leased_at timestamptz, last_error json, redrives integer, created_at timestamptz,
    updated_at timestamptz
) {planned_once} AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH RECURSIVE policy AS MATERIALIZED (
    SELECT p.max_lease_us, coalesce(p.paused, false) AS paused,
           p.concurrency_limit IS NOT NULL OR p.rate_per_sec IS NOT NULL OR coalesce(p.queue_order = 'fifo', false)
               AS limited
    FROM {schema}.effective_policy($1::text) p WHERE EXISTS (SELECT FROM {schema}.job_queue_config)
), floor AS MATERIALIZED (
    SELECT * FROM unnest($5::integer[], $6::timestamptz[], $7::bigint[]) AS f (priority, available_at, id)
), level (priority, available_at, id) AS ( -- Where to begin at each priority: at its floor, or at its first job.
    SELECT 2147483648, NULL::timestamptz, NULL::bigint
    WHERE NOT EXISTS (SELECT FROM policy WHERE paused OR limited) -- P1
    UNION ALL
    SELECT n.priority, n.available_at, n.id FROM level l
    CROSS JOIN LATERAL (SELECT max(f.priority)::bigint AS priority FROM floor f WHERE f.priority < l.priority) k
    CROSS JOIN LATERAL (
        (SELECT j.priority::bigint AS priority, j.available_at, j.id FROM {schema}.job_queue j
         WHERE j.queue_name = $1::text AND j.lease_until IS NULL AND j.attempts < j.max_attempts
           AND j.priority < l.priority AND j.priority > coalesce(k.priority, -2147483649)
         ORDER BY j.priority DESC, j.available_at, j.id LIMIT 1)
        UNION ALL
        SELECT f.priority::bigint, f.available_at, f.id FROM floor f WHERE f.priority = k.priority
        LIMIT 1
    ) n
), locked AS MATERIALIZED (
    SELECT x.* FROM level l CROSS JOIN LATERAL (
        SELECT j.ctid AS row, j.priority, j.available_at, j.id FROM {schema}.job_queue j
        WHERE j.queue_name = $1::text AND j.priority = l.priority
          AND j.lease_until IS NULL AND j.attempts < j.max_attempts -- D1
          AND j.available_at <= statement_timestamp() AND (j.available_at, j.id) >= (l.available_at, l.id)
        ORDER BY j.available_at, j.id LIMIT $2::integer FOR UPDATE SKIP LOCKED -- D2, D6
    ) x
    LIMIT $2::integer -- D5
), leased AS (
    UPDATE {schema}.job_queue j SET
        id = j.id, -- So that nobody tries to clear its indexes of dead rows that an old snapshot holds.
        lease_until = statement_timestamp()
            + least($3::bigint, (SELECT max_lease_us FROM policy)) * interval '1 microsecond', -- D7, P6
        locked_by = $4::text,
        attempts = j.attempts + 1, -- D3
        lease_epoch = j.lease_epoch + 1, -- D4
        first_leased_at = coalesce(j.first_leased_at, statement_timestamp()), -- D8
        updated_at = statement_timestamp()
    WHERE j.ctid = ANY (ARRAY(SELECT k.row FROM locked k)) -- Locked, so nobody moves it.
    RETURNING j.*
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT $1, l.attempts - 1, {schema}.due(l.available_at), -count(*) FROM leased l GROUP BY 2, 3
)
SELECT ARRAY[
           (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
           pg_snapshot_xmin(s.snapshot)::text::bigint,
           pg_snapshot_xmax(s.snapshot)::text::bigint,
           EXISTS (SELECT FROM policy WHERE limited AND NOT paused)::integer,
           (SELECT count(*) FROM locked),
           k.priority, (extract(epoch FROM k.available_at) * 1000000)::bigint, k.id,
           (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint
       ] AS meta,
       0::bigint AS id, ''::text AS queue_name, ''::text AS kind, 0 AS priority, NULL::text AS unique_key,
       'null'::json AS payload, 'null'::json AS headers, 0 AS attempts, 0 AS max_attempts,
       timestamptz 'epoch' AS available_at, NULL::timestamptz AS lease_until, NULL::text AS locked_by,
       0::bigint AS lease_epoch, NULL::timestamptz AS first_leased_at, NULL::json AS last_error, 0 AS redrives,
       timestamptz 'epoch' AS created_at, timestamptz 'epoch' AS updated_at
FROM (SELECT pg_current_snapshot() AS snapshot) s
LEFT JOIN LATERAL ( -- The first job that could have been leased and was not: both are in one order, so where they first differ.
    SELECT w.* FROM (
        SELECT x.*, row_number() OVER () AS place FROM level l CROSS JOIN LATERAL (
            SELECT j.priority, j.available_at, j.id FROM {schema}.job_queue j
            WHERE j.queue_name = $1::text AND j.priority = l.priority
              AND j.lease_until IS NULL AND j.attempts < j.max_attempts
              AND j.available_at <= statement_timestamp() AND (j.available_at, j.id) >= (l.available_at, l.id)
            ORDER BY j.available_at, j.id LIMIT $2::integer + 1
        ) x
    ) w
    WHERE w.id IS DISTINCT FROM (ARRAY(SELECT k.id FROM locked k))[w.place]
    LIMIT 1
) k ON true
UNION ALL
SELECT NULL, j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.available_at, j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives,
       j.created_at, j.updated_at
FROM leased j;
END
$$;
