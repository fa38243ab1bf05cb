-- What decides when a queue is worth a look, and why a job of it is not running: a few index probes for each queue. Of queues between $2 and $3
-- that have nothing but jobs for later, only those are told of that are among the next $4 of all, unless that is null; `seen_to` is
-- then the time up to which nothing was left out. It is also told in a row without a name.
CREATE FUNCTION {schema}.facts_v2(queues text[], queues_from text, queues_to text, soon integer) RETURNS TABLE (
    name text, now timestamptz, leased bigint, first_lease_until timestamptz, first_leased_id bigint, exhausted boolean,
    first_id bigint, first_id_available_at timestamptz, first_id_waits boolean, first_available_at timestamptz,
    first_ready_id bigint, full_at timestamptz, rate_per_sec double precision, rate_burst integer, seen_to timestamptz
) {planned_once} SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH RECURSIVE named (name) AS (
    SELECT name FROM unnest($1::text[]) q (name)
), later AS MATERIALIZED (
    SELECT j.queue_name, j.available_at FROM {schema}.job_queue j
    WHERE j.lease_until IS NULL AND j.attempts < j.max_attempts AND j.available_at > j.updated_at AND $1::text[] IS NULL
    ORDER BY j.available_at LIMIT coalesce($4::integer, 0)
), present (name) AS (
    (SELECT j.queue_name || '' FROM {schema}.job_queue j
     WHERE j.lease_until IS NULL AND j.attempts < j.max_attempts AND j.available_at <= j.updated_at AND $1::text[] IS NULL AND $4::integer IS NOT NULL
       AND j.queue_name || '' >= $2::text AND j.queue_name || '' < $3::text ORDER BY j.queue_name || '' LIMIT 1)
    UNION ALL
    SELECT n.name FROM present l CROSS JOIN LATERAL (
        SELECT j.queue_name || '' AS name FROM {schema}.job_queue j
        WHERE j.lease_until IS NULL AND j.attempts < j.max_attempts AND j.available_at <= j.updated_at
          AND j.queue_name || '' > l.name AND j.queue_name || '' < $3::text ORDER BY j.queue_name || '' LIMIT 1) n
), waiting_queue (name) AS (
    (SELECT j.queue_name FROM {schema}.job_queue j
     WHERE j.lease_until IS NULL AND j.attempts < j.max_attempts AND $1::text[] IS NULL AND $4::integer IS NULL
       AND j.queue_name >= $2::text AND j.queue_name < $3::text ORDER BY j.queue_name LIMIT 1)
    UNION ALL
    SELECT n.name FROM waiting_queue l CROSS JOIN LATERAL (
        SELECT j.queue_name AS name FROM {schema}.job_queue j
        WHERE j.lease_until IS NULL AND j.attempts < j.max_attempts
          AND j.queue_name > l.name AND j.queue_name < $3::text ORDER BY j.queue_name LIMIT 1) n
), leasing (name) AS (
    (SELECT j.queue_name FROM {schema}.job_queue j
     WHERE j.lease_until IS NOT NULL AND $1::text[] IS NULL
       AND j.queue_name >= $2::text AND j.queue_name < $3::text ORDER BY j.queue_name, j.lease_until LIMIT 1)
    UNION ALL
    SELECT n.name FROM leasing l CROSS JOIN LATERAL (
        SELECT j.queue_name AS name FROM {schema}.job_queue j
        WHERE j.lease_until IS NOT NULL
          AND j.queue_name > l.name AND j.queue_name < $3::text ORDER BY j.queue_name, j.lease_until LIMIT 1) n
), exhausted (name) AS (
    (SELECT j.queue_name FROM {schema}.job_queue j
     WHERE j.lease_until IS NULL AND j.attempts >= j.max_attempts AND $1::text[] IS NULL
       AND j.queue_name >= $2::text AND j.queue_name < $3::text ORDER BY j.queue_name, j.id LIMIT 1)
    UNION ALL
    SELECT n.name FROM exhausted l CROSS JOIN LATERAL (
        SELECT j.queue_name AS name FROM {schema}.job_queue j
        WHERE j.lease_until IS NULL AND j.attempts >= j.max_attempts
          AND j.queue_name > l.name AND j.queue_name < $3::text ORDER BY j.queue_name, j.id LIMIT 1) n
), live (name) AS (
    SELECT name FROM present UNION SELECT name FROM waiting_queue UNION SELECT name FROM leasing UNION SELECT name FROM exhausted
    UNION SELECT l.queue_name FROM later l WHERE l.queue_name >= $2::text AND l.queue_name < $3::text
), seen AS MATERIALIZED (
    SELECT CASE WHEN (SELECT count(*) FROM later) = $4::integer THEN (SELECT max(l.available_at) FROM later l) END AS seen_to
)
SELECT q.name, statement_timestamp() AS now,
       held.leased, held.first_lease_until, held.first_leased_id,
       coalesce((SELECT true FROM {schema}.job_queue j
                 WHERE j.queue_name = q.name AND j.lease_until IS NULL AND j.attempts >= j.max_attempts
                 ORDER BY j.id LIMIT 1), false) AS exhausted,
       head.id AS first_id, head.available_at AS first_id_available_at, head.waits AS first_id_waits,
       waiting.available_at AS first_available_at,
       waiting.ready_id AS first_ready_id,
       k.full_at, k.rate_per_sec, k.rate_burst, (SELECT s.seen_to FROM seen s)
FROM (
    SELECT name FROM named UNION ALL SELECT name FROM live UNION ALL SELECT '' FROM seen s WHERE s.seen_to IS NOT NULL
) q
LEFT JOIN {schema}.job_queue_limit k ON k.queue_name = q.name
CROSS JOIN LATERAL (
    SELECT count(*) AS leased, min(l.lease_until) AS first_lease_until, min(l.id) AS first_leased_id FROM (
        SELECT j.id, j.lease_until FROM {schema}.job_queue j
        WHERE j.queue_name = q.name AND j.lease_until IS NOT NULL
        ORDER BY j.lease_until -- Lest the planner take another index: it would read the whole queue.
    ) l
) held
LEFT JOIN LATERAL (
    SELECT j.id, j.available_at, j.lease_until IS NULL AND j.attempts < j.max_attempts AS waits
    FROM {schema}.job_queue j WHERE j.queue_name = q.name ORDER BY j.id + 0 LIMIT 1
) head ON true
CROSS JOIN LATERAL (
    WITH RECURSIVE level (priority) AS (
        SELECT 2147483648
        UNION ALL
        SELECT n.priority FROM level l CROSS JOIN LATERAL (
            SELECT j.priority::bigint AS priority FROM {schema}.job_queue j
            WHERE j.queue_name = q.name AND j.lease_until IS NULL AND j.attempts < j.max_attempts
              AND j.priority < l.priority
            ORDER BY j.priority DESC LIMIT 1) n
    ), head AS MATERIALIZED ( -- The first job of each priority.
        SELECT l.priority, x.id, x.available_at FROM level l CROSS JOIN LATERAL (
            SELECT j.id, j.available_at FROM {schema}.job_queue j
            WHERE j.queue_name = q.name AND j.priority = l.priority
              AND j.lease_until IS NULL AND j.attempts < j.max_attempts
            ORDER BY j.available_at, j.id LIMIT 1) x
    )
    SELECT (SELECT min(h.available_at) FROM head h) AS available_at,
           (SELECT h.id FROM head h WHERE h.available_at <= statement_timestamp() ORDER BY h.priority DESC LIMIT 1) AS ready_id
) waiting;
END
$$;
