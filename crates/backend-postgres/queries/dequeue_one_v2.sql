-- Leases jobs of one queue without limits. The index is walked level by level: the highest priority, the next lower, and so on,
-- each only as long as jobs are still wanted.
--
-- $6 to $9 are floors: below that place the queue has nothing leasable at that priority, except what was written by a transaction
-- that is not older than `since` or that is one of $10 (floors.rs says how that is known). So the walk begins at the floor, and
-- steps over no dead rows, and what was written since is found by its own index. Floors of another server, or of this one before
-- it was started again ($5), do not count.
--
-- The row with an id of 0 is about the claim itself, in `meta`; every other row is a leased job. If the queue has limits, nothing is
-- leased and `meta` says so.
CREATE FUNCTION {schema}.dequeue_one_v2(
    queue text, wanted integer, lease_us bigint, worker text, server bigint, floor_priorities integer[],
    floor_times timestamptz[], floor_ids bigint[], floor_since bigint[], undecided bigint[]
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
    SELECT * FROM unnest($6::integer[], $7::timestamptz[], $8::bigint[], $9::bigint[]::text[]::xid8[])
    AS f (priority, available_at, id, since)
    WHERE $5::bigint = {schema}.server_id()
), level (priority, available_at, id, since) AS ( -- Where to begin at each priority: at its floor, or at its first job.
    SELECT 2147483648, NULL::timestamptz, NULL::bigint, NULL::xid8
    WHERE NOT EXISTS (SELECT FROM policy WHERE paused OR limited) -- P1
    UNION ALL
    SELECT n.priority, n.available_at, n.id, n.since FROM level l
    CROSS JOIN LATERAL (SELECT max(f.priority)::bigint AS priority FROM floor f WHERE f.priority < l.priority) k
    CROSS JOIN LATERAL (
        (SELECT j.priority::bigint AS priority, j.available_at, j.id, NULL::xid8 AS since FROM {schema}.job_queue j
         WHERE j.queue_name = $1::text AND j.lease_until IS NULL AND j.attempts < j.max_attempts
           AND j.priority < l.priority AND j.priority > coalesce(k.priority, -2147483649)
         ORDER BY j.priority DESC, j.available_at, j.id LIMIT 1)
        UNION ALL
        SELECT f.priority::bigint, CASE WHEN m.is_much THEN '-infinity' ELSE f.available_at END, f.id,
               CASE WHEN m.is_much THEN NULL ELSE f.since END
        FROM floor f CROSS JOIN LATERAL ( -- Where much was written since, a floor would save nothing.
            SELECT count(*) > 5000 AS is_much FROM (
                SELECT FROM {schema}.job_queue j
                WHERE j.queue_name = $1::text AND j.priority = f.priority AND j.lease_until IS NULL
                  AND j.attempts < j.max_attempts AND j.written >= f.since
                ORDER BY j.written LIMIT 5001
            ) j
        ) m
        WHERE f.priority = k.priority
        LIMIT 1
    ) n
), locked AS MATERIALIZED (
    SELECT x.* FROM level l CROSS JOIN LATERAL (
        (SELECT k.row, b.priority, b.available_at, b.id
         FROM {schema}.written_below($1::text, l.priority, l.available_at, l.id, l.since, $10::bigint[]) b
         CROSS JOIN LATERAL (
             SELECT j.ctid AS row FROM {schema}.job_queue j
             WHERE j.id = b.id AND coalesce(j.locked_by, '') = '' AND j.attempts + 0 < j.max_attempts
               AND j.available_at <= statement_timestamp()
             FOR UPDATE SKIP LOCKED
         ) k)
        UNION ALL
        SELECT y.* FROM (
            SELECT j.ctid AS row, j.priority, j.available_at, j.id FROM {schema}.job_queue j
            WHERE j.queue_name = $1::text AND j.priority = l.priority
              AND j.lease_until IS NULL AND j.attempts < j.max_attempts -- D1
              AND j.available_at <= statement_timestamp() AND (j.available_at, j.id) >= (l.available_at, l.id)
            ORDER BY j.available_at, j.id LIMIT $2::integer FOR UPDATE SKIP LOCKED -- D2, D6
        ) y
    ) x
    LIMIT $2::integer -- D5
), leased AS (
    UPDATE {schema}.job_queue j SET
        id = j.id, -- So that this statement does not try to clear the indexes of dead rows that an old snapshot holds.
        lease_until = statement_timestamp()
            + least($3::bigint, (SELECT max_lease_us FROM policy)) * interval '1 microsecond', -- D7, P6
        locked_by = $4::text,
        attempts = j.attempts + 1, -- D3
        lease_epoch = j.lease_epoch + 1, -- D4
        first_leased_at = coalesce(j.first_leased_at, statement_timestamp()), -- D8
        updated_at = statement_timestamp()
    WHERE j.ctid = ANY (ARRAY(SELECT k.row FROM locked k)) -- Locked, so that no other transaction moves it.
    RETURNING j.*
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT $1, l.attempts - 1, {schema}.due(l.available_at), -count(*) FROM leased l GROUP BY 2, 3
) /* and for tests: */
SELECT ARRAY[
           (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
           {schema}.server_id(),
           pg_snapshot_xmax(s.snapshot)::text::bigint,
           EXISTS (SELECT FROM policy WHERE limited AND NOT paused)::integer,
           (SELECT count(*) FROM leased),
           (SELECT count(*) FROM locked) - (SELECT count(*) FROM leased), -- Changed meanwhile: seen by the next look.
           (SELECT count(*) FROM locked),
           k.priority,
           CASE WHEN isfinite(k.available_at) THEN (extract(epoch FROM k.available_at) * 1000000)::bigint END,
           k.id,
           (SELECT count(*) FROM policy WHERE paused)
       ] || ARRAY(SELECT 1::bigint FROM policy WHERE paused)
         || ARRAY(SELECT x.xid::text::bigint FROM pg_snapshot_xip(s.snapshot) x (xid)) AS meta,
       0::bigint AS id, ''::text AS queue_name, ''::text AS kind, 0 AS priority, NULL::text AS unique_key,
       'null'::json AS payload, 'null'::json AS headers, 0 AS attempts, 0 AS max_attempts,
       timestamptz 'epoch' AS available_at, NULL::timestamptz AS lease_until, NULL::text AS locked_by,
       0::bigint AS lease_epoch, NULL::timestamptz AS first_leased_at, NULL::json AS last_error, 0 AS redrives,
       timestamptz 'epoch' AS created_at, timestamptz 'epoch' AS updated_at
FROM (SELECT pg_current_snapshot() AS snapshot) s
LEFT JOIN LATERAL ( -- The first job that could have been leased and was not: both are in one order, so where they first differ.
    SELECT w.* FROM (
        SELECT x.*, row_number() OVER () AS place FROM level l CROSS JOIN LATERAL (
            SELECT b.priority, b.available_at, b.id
            FROM {schema}.written_below($1::text, l.priority, l.available_at, l.id, l.since, $10::bigint[]) b
            UNION ALL
            (SELECT j.priority, j.available_at, j.id FROM {schema}.job_queue j
             WHERE j.queue_name = $1::text AND j.priority = l.priority
               AND j.lease_until IS NULL AND j.attempts < j.max_attempts
               AND j.available_at <= statement_timestamp() AND (j.available_at, j.id) >= (l.available_at, l.id)
             ORDER BY j.available_at, j.id LIMIT $2::integer + 1)
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
