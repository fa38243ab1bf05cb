-- Leases jobs of named queues without limits.
--
-- The index is walked level by level: the highest priority that any of the queues has, the next lower, and so on, each
-- only as long as jobs are still wanted. Neither jobs that wait for a later time nor the length of a queue cost
-- anything. $6 to $9 are floors: below that place, this queue has nothing to lease at that priority (positions.rs says
-- why that can be known), so that the walk steps over no dead rows.
--
-- The row with an id of 0 is about the claim itself, in `meta`; every other row is a leased job. If any of the queues has limits,
-- nothing is leased and `meta` says so.
CREATE FUNCTION {schema}.dequeue(
    queues text[], wanted integer, looked_at integer, lease_us bigint, worker text, floor_queues text[],
    floor_priorities integer[], floor_times timestamptz[], floor_ids bigint[]
) RETURNS TABLE (
    meta bigint[], id bigint, queue_name text, kind text, priority integer, unique_key text, payload json, headers json,
    attempts integer, max_attempts integer, available_at timestamptz, lease_until timestamptz, locked_by text,
    lease_epoch bigint, first_leased_at timestamptz, last_error json, redrives integer, created_at timestamptz,
    updated_at timestamptz
) {planned_once} AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH RECURSIVE asked AS MATERIALIZED (
    SELECT q.name, p.max_lease_us, coalesce(p.paused, false) AS paused,
           p.concurrency_limit IS NOT NULL OR p.rate_per_sec IS NOT NULL OR coalesce(p.queue_order = 'fifo', false)
               AS limited
    FROM unnest($1::text[]) q (name)
    LEFT JOIN LATERAL ( -- Not even called while there are no policies.
        SELECT * FROM {schema}.effective_policy(q.name) WHERE EXISTS (SELECT FROM {schema}.job_queue_config)
    ) p ON true
), open AS MATERIALIZED (
    SELECT name, max_lease_us FROM asked
    WHERE NOT paused AND NOT EXISTS (SELECT FROM asked WHERE limited AND NOT paused) -- P1
), floor AS MATERIALIZED (
    SELECT * FROM unnest($6::text[], $7::integer[], $8::timestamptz[], $9::bigint[])
    AS f (name, priority, available_at, id)
), level (priority) AS (
    SELECT 2147483648
    UNION ALL
    SELECT n.priority FROM level l
    CROSS JOIN LATERAL (SELECT max(f.priority)::bigint AS priority FROM floor f WHERE f.priority < l.priority) k
    CROSS JOIN LATERAL (
        SELECT coalesce(max(x.priority)::bigint, k.priority) AS priority FROM open o
        CROSS JOIN LATERAL (
            SELECT j.priority FROM {schema}.job_queue j
            WHERE j.queue_name = o.name AND j.lease_until IS NULL AND j.attempts < j.max_attempts
              AND j.priority < l.priority AND j.priority > coalesce(k.priority, -2147483649)
            ORDER BY j.priority DESC LIMIT 1
        ) x
    ) n
    WHERE n.priority IS NOT NULL
), candidate AS MATERIALIZED (
    SELECT c.*, row_number() OVER () AS place FROM (
        SELECT c.* FROM level l
        CROSS JOIN LATERAL (
            SELECT y.id, y.available_at, l.priority FROM open o
            LEFT JOIN floor f ON f.name = o.name AND f.priority = l.priority
            CROSS JOIN LATERAL (
                SELECT j.id, j.available_at FROM {schema}.job_queue j
                WHERE j.queue_name = o.name AND j.priority = l.priority
                  AND j.lease_until IS NULL AND j.attempts < j.max_attempts -- D1
                  AND j.available_at <= statement_timestamp()
                  AND (j.available_at, j.id) > (coalesce(f.available_at, '-infinity'), coalesce(f.id, 0))
                ORDER BY j.available_at, j.id LIMIT $3::integer
            ) y
            ORDER BY y.available_at, y.id LIMIT $3::integer
        ) c
        LIMIT $3::integer
    ) c
), locked AS MATERIALIZED (
    SELECT j.row, c.place FROM (SELECT * FROM candidate ORDER BY place) c
    CROSS JOIN LATERAL ( -- One by one, by id: never a join over the whole table.
        SELECT j.ctid AS row FROM {schema}.job_queue j
        WHERE j.id = c.id -- The rest in words that no index knows.
          AND coalesce(j.locked_by, '') = '' AND j.attempts + 0 < j.max_attempts AND j.available_at <= statement_timestamp()
        FOR UPDATE SKIP LOCKED -- D2
    ) j
    LIMIT $2::integer -- D5, D6
), leased AS (
    UPDATE {schema}.job_queue j SET
        id = j.id, -- So that nobody tries to clear its indexes of dead rows that an old snapshot holds.
        lease_until = statement_timestamp() -- D7, P6
            + least($4::bigint, (SELECT o.max_lease_us FROM open o WHERE o.name = j.queue_name)) * interval '1 microsecond',
        locked_by = $5::text,
        attempts = j.attempts + 1, -- D3
        lease_epoch = j.lease_epoch + 1, -- D4
        first_leased_at = coalesce(j.first_leased_at, statement_timestamp()), -- D8
        updated_at = statement_timestamp()
    WHERE j.ctid = ANY (ARRAY(SELECT l.row FROM locked l)) -- Locked, so nobody moves it.
    RETURNING j.*
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT l.queue_name, l.attempts - 1, {schema}.due(l.available_at), -count(*) FROM leased l GROUP BY 1, 2, 3
)
SELECT ARRAY[
           (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
           pg_snapshot_xmin(s.snapshot)::text::bigint,
           pg_snapshot_xmax(s.snapshot)::text::bigint,
           EXISTS (SELECT FROM asked WHERE limited AND NOT paused)::integer,
           (SELECT count(*) FROM candidate),
           k.priority, (extract(epoch FROM k.available_at) * 1000000)::bigint, k.id,
           (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint
       ] AS meta,
       0::bigint AS id, ''::text AS queue_name, ''::text AS kind, 0 AS priority, NULL::text AS unique_key,
       'null'::json AS payload, 'null'::json AS headers, 0 AS attempts, 0 AS max_attempts,
       timestamptz 'epoch' AS available_at, NULL::timestamptz AS lease_until, NULL::text AS locked_by,
       0::bigint AS lease_epoch, NULL::timestamptz AS first_leased_at, NULL::json AS last_error, 0 AS redrives,
       timestamptz 'epoch' AS created_at, timestamptz 'epoch' AS updated_at
FROM (SELECT pg_current_snapshot() AS snapshot) s
LEFT JOIN LATERAL (
    -- The first job that could have been leased and was not, because somebody else has locked it.
    SELECT c.priority, c.available_at, c.id FROM candidate c
    WHERE c.place IS DISTINCT FROM (ARRAY(SELECT l.place FROM locked l))[c.place] -- Those before it are all among them.
      AND ((SELECT count(*) FROM locked) < $2::integer OR c.place < (SELECT max(l.place) FROM locked l))
    ORDER BY c.place LIMIT 1
) k ON true
UNION ALL
SELECT NULL, j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.available_at, j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives,
       j.created_at, j.updated_at
FROM leased j;
END
$$;
