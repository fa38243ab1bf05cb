-- Leases jobs of queues that may have limits: some by name ($1, in one order), or all between $2 and $3 (in turns, from
-- after $4 on).
--
-- A limit is kept by its queue's row in job_queue_limit. A claim that grants leases locks that row and raises its version. A
-- statement sees the leases of one snapshot, but the row as it is once it is locked: if the versions differ, another claim has
-- granted leases that are not in the snapshot, and nothing may be granted until the next look (P2, P3, P4).
--
-- Rows with an id of 0 are about the claim itself. Those that name a queue were not served: `place` 0 if the row is missing, and
-- then nothing at all was leased; 1 if the queue must be looked at again. `place` 2: jobs were passed over because other
-- transactions have locked them, and there may be more behind them; a look at $8 jobs and queues more than are wanted finds them
-- (D14). The others are leased jobs, in the order of `place`.
CREATE FUNCTION {schema}.dequeue_limited_v3(
    queues text[], queues_from text, queues_to text, served_last text, wanted integer, lease_us bigint,
    worker text, beyond integer
) RETURNS TABLE (
    place bigint, id bigint, queue_name text, kind text, priority integer, unique_key text, payload json, headers json,
    attempts integer, max_attempts integer, available_at timestamptz, lease_until timestamptz, locked_by text,
    lease_epoch bigint, first_leased_at timestamptz, last_error json, redrives integer, created_at timestamptz,
    updated_at timestamptz
) {planned_once} SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH RECURSIVE later AS MATERIALIZED (
    -- Jobs for later whose time has come. Hardly ever many: if there are, every queue with a waiting job is visited.
    SELECT j.queue_name FROM {schema}.job_queue j
    WHERE j.lease_until IS NULL AND j.attempts < j.max_attempts AND j.available_at > j.updated_at
      AND j.available_at <= statement_timestamp() AND $1::text[] IS NULL
    ORDER BY j.available_at LIMIT 1000
), due AS MATERIALIZED (
    SELECT ARRAY(SELECT DISTINCT l.queue_name FROM later l WHERE l.queue_name >= $2::text AND l.queue_name < $3::text
                 ORDER BY l.queue_name) AS names,
           (SELECT count(*) FROM later) = 1000 AS is_cut
), waiting (step, round, name) AS (
    -- Queues that have jobs for now, or are due: those after $4, then those up to it. An index probe or two for each.
    SELECT 0, 0, $4::text COLLATE "C"
    UNION ALL
    SELECT w.step + 1, n.round, n.name FROM waiting w
    CROSS JOIN (SELECT least($3::text COLLATE "C", $4::text || E'\x01') AS below) u -- No name is between $4 and that.
    CROSS JOIN LATERAL (
        SELECT x.round, x.name FROM (
            SELECT w.round AS round, w.name AS after, CASE WHEN w.round = 0 THEN $3::text ELSE u.below END AS below
            UNION ALL
            SELECT 1, '' COLLATE "C", u.below WHERE w.round = 0
        ) r CROSS JOIN LATERAL (
            SELECT r.round, min(c.name) AS name FROM (
                (SELECT j.queue_name || '' FROM {schema}.job_queue j
                 WHERE j.lease_until IS NULL AND j.attempts < j.max_attempts AND j.available_at <= j.updated_at
                   AND j.queue_name || '' >= $2::text AND j.queue_name || '' > r.after AND j.queue_name || '' < r.below
                 ORDER BY j.queue_name || '' LIMIT 1)
                UNION ALL
                (SELECT j.queue_name FROM {schema}.job_queue j
                 WHERE j.lease_until IS NULL AND j.attempts < j.max_attempts
                   AND j.queue_name >= $2::text AND j.queue_name > r.after AND j.queue_name < r.below
                   AND (SELECT d.is_cut FROM due d)
                 ORDER BY j.queue_name LIMIT 1)
                UNION ALL
                (SELECT u.name FROM due d CROSS JOIN LATERAL (
                     SELECT d.names[width_bucket(r.after, d.names) + 1] AS name) u
                 WHERE d.names <> '{}' AND u.name < r.below)
            ) c (name)
        ) x WHERE x.name IS NOT NULL ORDER BY x.round LIMIT 1
    ) n
), asked (name) AS (
    SELECT name FROM unnest($1::text[]) q (name)
    UNION ALL
    SELECT name FROM waiting WHERE step > 0 AND $1::text[] IS NULL
), open AS MATERIALIZED (
    SELECT * FROM (SELECT o.*, row_number() OVER (PARTITION BY o.is_wrong ORDER BY o.priority DESC, o.available_at, o.id) AS rank
    FROM (SELECT o.*, row_number() OVER () AS turn FROM (
        SELECT a.name, p.limited, p.fifo, p.max_lease_us, p.rate_per_sec, p.rate_burst, l.version, l.full_at, l.is_wrong,
               least($5::integer, places.free, tokens.free) AS quota,
               head.priority, head.available_at, head.id
        FROM asked a
        LEFT JOIN LATERAL (
            SELECT e.*, coalesce(e.queue_order = 'fifo', false) AS fifo,
                   e.concurrency_limit IS NOT NULL OR e.rate_per_sec IS NOT NULL
                       OR coalesce(e.queue_order = 'fifo', false) AS limited
            FROM {schema}.effective_policy(a.name) e WHERE EXISTS (SELECT FROM {schema}.job_queue_config)
        ) p ON true
        LEFT JOIN {schema}.job_queue_limit k ON k.queue_name = a.name AND p.limited
        CROSS JOIN LATERAL (
            -- A changed rate starts with a full bucket.
            SELECT k.version, CASE WHEN f.is_kept THEN least(k.full_at, f.full_after_empty) END AS full_at,
                   -- So far ahead only if the clock was set back. A second is left to claims that did not come in the order of their times.
                   coalesce(f.is_kept AND k.full_at > f.full_after_empty + interval '1 second', false) AS is_wrong
            FROM (
                SELECT k.rate_per_sec = p.rate_per_sec AND k.rate_burst = p.rate_burst AS is_kept,
                       statement_timestamp() + least(p.rate_burst / p.rate_per_sec, 1e11) * interval '1 second' AS full_after_empty
            ) f
        ) l
        CROSS JOIN LATERAL (
            SELECT CASE WHEN p.fifo OR p.concurrency_limit IS NOT NULL THEN
                CASE WHEN p.fifo THEN 1 ELSE p.concurrency_limit END - (
                    SELECT count(*) FROM ( -- In an order, lest the planner take another index: it would read the whole queue.
                        SELECT FROM {schema}.job_queue j WHERE j.queue_name = a.name AND j.lease_until IS NOT NULL
                        ORDER BY j.lease_until LIMIT CASE WHEN p.fifo THEN 1 ELSE p.concurrency_limit END) l)
            END::integer AS free
        ) places
        CROSS JOIN LATERAL (
            -- RateLimit::tokens of leasehold-core.
            SELECT CASE WHEN p.rate_per_sec IS NOT NULL THEN
                least(greatest(floor(p.rate_burst + p.rate_per_sec * 2e-6 - p.rate_per_sec
                    * greatest(coalesce(extract(epoch FROM l.full_at - statement_timestamp())::double precision, 0), 0)
                ), 0), p.rate_burst)
            END::integer AS free
        ) tokens
        LEFT JOIN LATERAL (SELECT * FROM (
            (SELECT j.priority, j.available_at, j.id FROM (
                 SELECT j.* FROM {schema}.job_queue j WHERE j.queue_name = a.name ORDER BY j.id + 0 LIMIT 1) j -- P5
             WHERE p.fifo AND j.available_at <= statement_timestamp() AND j.attempts < j.max_attempts)
            UNION ALL
            (WITH RECURSIVE level (priority) AS (
                 SELECT 2147483648 WHERE p.fifo IS NOT TRUE
                 UNION ALL
                 SELECT n.priority FROM level v CROSS JOIN LATERAL (
                     SELECT j.priority::bigint AS priority FROM {schema}.job_queue j
                     WHERE j.queue_name = a.name AND j.lease_until IS NULL AND j.attempts < j.max_attempts
                       AND j.priority < v.priority
                     ORDER BY j.priority DESC LIMIT 1) n
             )
             SELECT x.priority, x.available_at, x.id FROM level v CROSS JOIN LATERAL (
                 SELECT j.priority, j.available_at, j.id FROM {schema}.job_queue j
                 WHERE j.queue_name = a.name AND j.priority = v.priority
                   AND j.lease_until IS NULL AND j.attempts < j.max_attempts
                   AND j.available_at <= statement_timestamp()
                 ORDER BY j.available_at, j.id LIMIT 1) x
             LIMIT 1)
        ) x WHERE NOT coalesce(p.paused, false) AND least($5::integer, places.free, tokens.free) > 0) head ON true
        WHERE NOT coalesce(p.paused, false) AND (l.is_wrong OR head.id IS NOT NULL) -- P1
        LIMIT CASE WHEN $1::text[] IS NULL THEN $5::integer + $8::integer END
    ) o) o) o
    -- So many jobs are in no more queues, and by name in those whose heads come first. No row of another is locked.
    WHERE $1::text[] IS NULL OR o.is_wrong OR o.rank <= $5::integer + $8::integer
), held AS MATERIALIZED (
    SELECT k.queue_name, k.version FROM {schema}.job_queue_limit k
    WHERE k.queue_name = ANY (ARRAY(SELECT o.name FROM open o WHERE o.limited)) -- A list: there may be ten thousand others.
    ORDER BY k.queue_name FOR UPDATE
), served AS MATERIALIZED (
    SELECT o.*, CASE WHEN o.limited THEN least(o.quota, m.most) ELSE m.most END AS most, -- So many of its jobs are looked at.
           NOT coalesce(o.limited, false) OR m.most < o.quota AS cut_short -- If it has so many, it may have more.
    FROM open o CROSS JOIN (
        -- In turns, each of the others gives at least one.
        SELECT $8::integer + $5::integer
               - CASE WHEN $1::text[] IS NULL THEN least($5::integer, (SELECT count(*) FROM open)) - 1 ELSE 0 END AS most
    ) m
    WHERE (NOT coalesce(o.limited, false) OR (o.name, o.version) IN (SELECT h.queue_name, h.version FROM held h))
      AND NOT EXISTS (SELECT FROM open WHERE limited AND version IS NULL)
      AND NOT o.is_wrong
), candidate AS MATERIALIZED (
    SELECT c.*, s.name, s.max_lease_us, s.limited, s.full_at, s.rate_per_sec, s.rate_burst, s.turn, s.most, s.cut_short,
           row_number() OVER (PARTITION BY s.name ORDER BY c.priority DESC, c.available_at, c.id) AS round
    FROM served s CROSS JOIN LATERAL (
        (SELECT j.id, j.priority, j.available_at FROM {schema}.job_queue j
         WHERE s.fifo AND j.queue_name = s.name ORDER BY j.id + 0 LIMIT 1) -- P4
        UNION ALL
        (WITH RECURSIVE level (priority) AS (
             SELECT 2147483648 WHERE s.limited IS NOT TRUE
             UNION ALL
             SELECT n.priority FROM level v CROSS JOIN LATERAL (
                 SELECT j.priority::bigint AS priority FROM {schema}.job_queue j
                 WHERE j.queue_name = s.name AND j.lease_until IS NULL AND j.attempts < j.max_attempts
                   AND j.priority < v.priority
                 ORDER BY j.priority DESC LIMIT 1) n
         )
         SELECT x.id, x.priority, x.available_at FROM level v CROSS JOIN LATERAL (
             SELECT j.id, j.priority, j.available_at FROM {schema}.job_queue j
             WHERE j.queue_name = s.name AND j.priority = v.priority
               AND j.lease_until IS NULL AND j.attempts < j.max_attempts -- D1
               AND j.available_at <= statement_timestamp()
             ORDER BY j.available_at, j.id LIMIT s.most) x
         LIMIT s.most)
        UNION ALL
        (WITH RECURSIVE level (priority) AS (
             SELECT 2147483648 WHERE s.limited AND NOT s.fifo
             UNION ALL
             SELECT n.priority FROM level v CROSS JOIN LATERAL (
                 SELECT j.priority::bigint AS priority FROM {schema}.job_queue j
                 WHERE j.queue_name = s.name AND j.lease_until IS NULL AND j.attempts < j.max_attempts
                   AND j.priority < v.priority
                 ORDER BY j.priority DESC LIMIT 1) n
         )
         SELECT x.id, x.priority, x.available_at FROM level v CROSS JOIN LATERAL (
             SELECT j.id, j.priority, j.available_at FROM {schema}.job_queue j -- This claim has the row of its limit.
             WHERE j.queue_name = s.name AND j.priority = v.priority
               AND j.lease_until IS NULL AND j.attempts < j.max_attempts -- D1
               AND j.available_at <= statement_timestamp()
             ORDER BY j.available_at, j.id LIMIT s.most FOR UPDATE SKIP LOCKED) x
         LIMIT s.most)
    ) c
), edge AS MATERIALIZED (
    -- Jobs that were not looked at come after these: after the last head, and after the last of a queue that may have more. If some
    -- before them are locked by others, the next look goes on (D6).
    SELECT e.priority, e.available_at, e.id FROM (
        SELECT o.priority, o.available_at, o.id FROM open o WHERE o.rank = $5::integer + $8::integer AND NOT o.is_wrong
        UNION ALL
        SELECT c.priority, c.available_at, c.id FROM candidate c WHERE c.cut_short AND c.round = c.most
    ) e
    WHERE $1::text[] IS NOT NULL
    ORDER BY e.priority DESC, e.available_at, e.id LIMIT 1
), picked AS MATERIALIZED (
    SELECT c.*, row_number() OVER (
        ORDER BY CASE WHEN $1::text[] IS NULL THEN c.round END, CASE WHEN $1::text[] IS NULL THEN c.turn END, -- D11
                 c.priority DESC, c.available_at, c.id) AS place -- D6
    FROM candidate c
    WHERE NOT EXISTS (
        SELECT FROM edge e WHERE (-e.priority::bigint, e.available_at, e.id) < (-c.priority::bigint, c.available_at, c.id))
), locked AS MATERIALIZED (
    SELECT j.id, j.row, p.name, p.max_lease_us, p.limited, p.full_at, p.rate_per_sec, p.rate_burst FROM (SELECT * FROM picked ORDER BY place) p
    CROSS JOIN LATERAL (
        SELECT j.id, j.ctid AS row FROM {schema}.job_queue j
        WHERE j.id = p.id -- The rest in words that no index knows.
          AND coalesce(j.locked_by, '') = '' AND j.attempts + 0 < j.max_attempts AND j.available_at <= statement_timestamp()
        FOR UPDATE SKIP LOCKED -- D2
    ) j
    LIMIT $5::integer -- D5
), leased AS (
    UPDATE {schema}.job_queue j SET
        lease_until = statement_timestamp() -- D7, P6
            + least($6::bigint, (ARRAY(SELECT l.max_lease_us FROM locked l))[array_position(ARRAY(SELECT l.id FROM locked l), j.id)])
            * interval '1 microsecond',
        locked_by = $7::text,
        attempts = j.attempts + 1, -- D3
        lease_epoch = j.lease_epoch + 1, -- D4
        first_leased_at = coalesce(j.first_leased_at, statement_timestamp()), -- D8
        updated_at = statement_timestamp()
    WHERE j.ctid = ANY (ARRAY(SELECT l.row FROM locked l)) -- Locked, so that no other transaction moves it.
    RETURNING j.*, array_position(ARRAY(SELECT l.id FROM locked l), j.id)::bigint AS place
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT l.queue_name, l.attempts - 1, {schema}.due(l.available_at), -count(*) FROM leased l GROUP BY 1, 2, 3
), granted AS (
    UPDATE {schema}.job_queue_limit k SET
        version = k.version + 1,
        full_at = CASE WHEN s.rate_per_sec IS NOT NULL THEN least( -- P3
            greatest(coalesce(s.full_at, statement_timestamp()), statement_timestamp())
                + round(s.count / s.rate_per_sec * 1000000) * interval '1 microsecond',
            timestamptz '9999-12-31 23:59:59.999999+00') END,
        rate_per_sec = s.rate_per_sec, rate_burst = s.rate_burst
    FROM (SELECT l.name, l.full_at, l.rate_per_sec, l.rate_burst, count(*) FROM locked l WHERE l.limited GROUP BY 1, 2, 3, 4) s
    WHERE k.queue_name = s.name
), corrected AS (
    UPDATE {schema}.job_queue_limit k SET
        version = k.version + 1,
        full_at = statement_timestamp() + least(k.rate_burst / k.rate_per_sec, 1e11) * interval '1 second' -- P14
    WHERE k.queue_name = ANY (ARRAY(SELECT o.name FROM open o WHERE o.is_wrong))
      AND (k.queue_name, k.version) IN (SELECT h.queue_name, h.version FROM held h)
) /* and for tests: */
SELECT CASE WHEN o.limited AND o.version IS NULL THEN 0 ELSE 1 END::bigint AS place,
       0::bigint AS id, o.name AS queue_name, ''::text AS kind, 0 AS priority, NULL::text AS unique_key,
       'null'::json AS payload, 'null'::json AS headers, 0 AS attempts, 0 AS max_attempts,
       timestamptz 'epoch' AS available_at, NULL::timestamptz AS lease_until, NULL::text AS locked_by,
       0::bigint AS lease_epoch, NULL::timestamptz AS first_leased_at, NULL::json AS last_error, 0 AS redrives,
       timestamptz 'epoch' AS created_at, timestamptz 'epoch' AS updated_at
FROM open o WHERE o.name <> ALL (ARRAY(SELECT s.name FROM served s))
UNION ALL
SELECT 2, 0, '', '', 0, NULL, 'null', 'null', 0, 0, 'epoch', NULL, NULL, 0, NULL, NULL, 0, 'epoch', 'epoch'
WHERE (SELECT count(*) FROM leased) < $5::integer
  AND ((SELECT count(*) FROM locked) > (SELECT count(*) FROM leased) -- Changed meanwhile: seen by the next look.
       OR (SELECT count(*) FROM open) >= $5::integer + $8::integer
       OR EXISTS (SELECT FROM candidate c WHERE c.cut_short AND c.round = c.most))
UNION ALL
SELECT j.place, j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.available_at, j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives,
       j.created_at, j.updated_at
FROM leased j;
END
$$;
