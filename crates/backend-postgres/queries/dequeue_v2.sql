-- Leases jobs of named queues without limits, in one order over all of them: dequeue_one_v2.sql for several queues.
--
-- Each level is a priority. `heads` has, for each queue, the next priority at which it has jobs or a floor; a level looks only into
-- the queues whose head it is, so that thousands of queues with a few jobs each cost one probe each.
CREATE FUNCTION {schema}.dequeue_v2(
    queues text[], wanted integer, looked_at integer, lease_us bigint, worker text, server bigint, floor_queues text[],
    floor_priorities integer[], floor_times timestamptz[], floor_ids bigint[], floor_since bigint[], undecided bigint[]
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
    SELECT q.name, q.place, p.max_lease_us, coalesce(p.paused, false) AS paused,
           p.concurrency_limit IS NOT NULL OR p.rate_per_sec IS NOT NULL OR coalesce(p.queue_order = 'fifo', false)
               AS limited
    FROM unnest($1::text[]) WITH ORDINALITY q (name, place)
    LEFT JOIN LATERAL ( -- Not even called while there are no policies.
        SELECT * FROM {schema}.effective_policy(q.name) WHERE EXISTS (SELECT FROM {schema}.job_queue_config)
    ) p ON true
), open AS MATERIALIZED (
    SELECT coalesce(array_agg(name), '{}') AS names, array_agg(max_lease_us) AS max_leases FROM asked
    WHERE NOT paused AND NOT EXISTS (SELECT FROM asked WHERE limited AND NOT paused) -- P1
), floor AS MATERIALIZED (
    SELECT * FROM unnest($7::text[], $8::integer[], $9::timestamptz[], $10::bigint[], $11::bigint[]::text[]::xid8[])
    AS f (name, priority, available_at, id, since)
    WHERE $6::bigint = {schema}.server_id()
), level (priority, heads) AS (
    SELECT 2147483648, (SELECT array_fill(2147483648, ARRAY[cardinality(o.names)]) FROM open o)
    UNION ALL
    SELECT (SELECT max(h.head) FROM unnest(n.heads) h (head)), n.heads FROM level l CROSS JOIN LATERAL (
        SELECT ARRAY(
            SELECT CASE WHEN u.head = l.priority THEN (
                SELECT coalesce((
                    SELECT j.priority::bigint FROM {schema}.job_queue j
                    WHERE j.queue_name = u.name AND j.lease_until IS NULL AND j.attempts < j.max_attempts
                      AND j.priority < l.priority AND j.priority > coalesce(k.priority, -2147483649)
                    ORDER BY j.priority DESC, j.written DESC LIMIT 1), k.priority)
                FROM (SELECT max(f.priority)::bigint AS priority FROM floor f
                      WHERE f.name = u.name AND f.priority < l.priority) k
            ) ELSE u.head END
            FROM unnest((SELECT o.names FROM open o), l.heads) u (name, head)
        ) AS heads
        WHERE l.priority IS NOT NULL
        OFFSET 0 -- Worked out once.
    ) n
), candidate AS MATERIALIZED (
    SELECT c.*, row_number() OVER () AS place FROM (
        SELECT c.* FROM level l
        CROSS JOIN LATERAL (
            SELECT y.id, y.available_at, l.priority, u.max_lease_us
            FROM unnest((SELECT o.names FROM open o), l.heads, (SELECT o.max_leases FROM open o)) u (name, head, max_lease_us)
            LEFT JOIN LATERAL (
                SELECT f.* FROM floor f CROSS JOIN LATERAL ( -- Where much was written since, a floor would save nothing.
                    SELECT count(*) > 5000 AS is_much FROM (
                        SELECT FROM {schema}.job_queue j
                        WHERE j.queue_name = f.name AND j.priority = f.priority AND j.lease_until IS NULL
                          AND j.attempts < j.max_attempts AND j.written >= f.since
                        ORDER BY j.written LIMIT 5001
                    ) j
                ) m
                WHERE f.name = u.name AND f.priority = l.priority AND NOT m.is_much
            ) f ON true
            CROSS JOIN LATERAL (
                SELECT b.id, b.available_at
                FROM {schema}.written_below(u.name, l.priority, f.available_at, f.id, f.since, $12::bigint[]) b
                UNION ALL
                (SELECT j.id, j.available_at FROM {schema}.job_queue j
                 WHERE j.queue_name = u.name AND j.priority = l.priority
                   AND j.lease_until IS NULL AND j.attempts < j.max_attempts -- D1
                   AND j.available_at <= statement_timestamp()
                   AND (j.available_at, j.id) >= (coalesce(f.available_at, '-infinity'), coalesce(f.id, 0))
                 ORDER BY j.available_at, j.id LIMIT $3::integer)
            ) y
            WHERE u.head = l.priority
            ORDER BY y.available_at, y.id LIMIT $3::integer
        ) c
        WHERE l.priority < 2147483648
        LIMIT $3::integer
    ) c
), locked AS MATERIALIZED (
    SELECT j.row, c.place, c.max_lease_us FROM (SELECT * FROM candidate ORDER BY place) c
    CROSS JOIN LATERAL ( -- One by one, by id: never a join over the whole table.
        SELECT j.ctid AS row FROM {schema}.job_queue j
        WHERE j.id = c.id -- The rest in words that no index knows.
          AND coalesce(j.locked_by, '') = '' AND j.attempts + 0 < j.max_attempts AND j.available_at <= statement_timestamp()
        FOR UPDATE SKIP LOCKED -- D2
    ) j
    LIMIT $2::integer -- D5, D6
), leased AS (
    UPDATE {schema}.job_queue j SET
        id = j.id, -- So that this statement does not try to clear the indexes of dead rows that an old snapshot holds.
        lease_until = statement_timestamp() + least($4::bigint, l.max_lease_us) * interval '1 microsecond', -- D7, P6
        locked_by = $5::text,
        attempts = j.attempts + 1, -- D3
        lease_epoch = j.lease_epoch + 1, -- D4
        first_leased_at = coalesce(j.first_leased_at, statement_timestamp()), -- D8
        updated_at = statement_timestamp()
    FROM locked l WHERE j.ctid = l.row -- Locked, so that no other transaction moves it.
    RETURNING j.*
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT l.queue_name, l.attempts - 1, {schema}.due(l.available_at), -count(*) FROM leased l GROUP BY 1, 2, 3
) /* and for tests: */
SELECT ARRAY[
           (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
           {schema}.server_id(),
           pg_snapshot_xmax(s.snapshot)::text::bigint,
           EXISTS (SELECT FROM asked WHERE limited AND NOT paused)::integer,
           (SELECT count(*) FROM leased),
           (SELECT count(*) FROM locked) - (SELECT count(*) FROM leased), -- Changed meanwhile: seen by the next look.
           (SELECT count(*) FROM candidate),
           k.priority,
           CASE WHEN isfinite(k.available_at) THEN (extract(epoch FROM k.available_at) * 1000000)::bigint END,
           k.id,
           (SELECT count(*) FROM asked WHERE paused)
       ] || ARRAY(SELECT a.place FROM asked a WHERE a.paused)
         || ARRAY(SELECT x.xid::text::bigint FROM pg_snapshot_xip(s.snapshot) x (xid)) AS meta,
       0::bigint AS id, ''::text AS queue_name, ''::text AS kind, 0 AS priority, NULL::text AS unique_key,
       'null'::json AS payload, 'null'::json AS headers, 0 AS attempts, 0 AS max_attempts,
       timestamptz 'epoch' AS available_at, NULL::timestamptz AS lease_until, NULL::text AS locked_by,
       0::bigint AS lease_epoch, NULL::timestamptz AS first_leased_at, NULL::json AS last_error, 0 AS redrives,
       timestamptz 'epoch' AS created_at, timestamptz 'epoch' AS updated_at
FROM (SELECT pg_current_snapshot() AS snapshot) s
LEFT JOIN LATERAL (
    -- The first job that could have been leased and was not, because another transaction has locked or changed it.
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
