-- Accepts jobs of which some have unique keys, none twice. A live job with the same key wins (E3, E5).
-- A key can be taken by a job that this statement cannot see: it was enqueued, or ended, meanwhile. Then the statement
-- fails as a whole if $10 says so, and otherwise leaves that job out of its answer.
-- Planned anew each time: whether to look up each key or to read them all depends on how many there are, of both.
CREATE FUNCTION {schema}.enqueue_keyed(
    queues text[], kinds text[], priorities integer[], payloads text[], headers text[], attempts_allowed integer[],
    delays_us bigint[], times timestamptz[], keys text[], fails_as_a_whole boolean
) RETURNS TABLE (id bigint, queue_name text, unique_key text, deduplicated boolean) LANGUAGE plpgsql AS $$
BEGIN
RETURN QUERY EXECUTE $statement$
WITH n AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::integer[], $7::bigint[],
                         $8::timestamptz[], $9::text[])
    WITH ORDINALITY
    AS n (queue_name, kind, priority, payload, headers, max_attempts, delay_us, at, unique_key, ord)
), d AS (
    SELECT q.name, p.max_attempts
    FROM (SELECT DISTINCT queue_name AS name FROM n WHERE EXISTS (SELECT FROM {schema}.job_queue_config)) q
    CROSS JOIN LATERAL {schema}.effective_policy(q.name) p
), accepted AS (
    INSERT INTO {schema}.job_queue
        (queue_name, kind, priority, unique_key, payload, headers, max_attempts, available_at, created_at, updated_at)
    SELECT n.queue_name, n.kind, n.priority, n.unique_key, n.payload::json, n.headers::json,
           coalesce(n.max_attempts, d.max_attempts, 5), -- E12
           greatest(statement_timestamp(), coalesce(n.at, least( -- E8
               statement_timestamp() + coalesce(n.delay_us, 0) * interval '1 microsecond',
               timestamptz '9999-12-31 23:59:59.999999+00'))),
           statement_timestamp(), statement_timestamp()
    FROM n LEFT JOIN d ON d.name = n.queue_name
    ORDER BY n.ord
    ON CONFLICT (queue_name, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
    RETURNING id, queue_name, unique_key, available_at
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT a.queue_name, 0, {schema}.due(a.available_at), count(*) FROM accepted a GROUP BY 1, 3
), answer AS (
    SELECT a.id, a.queue_name, a.unique_key, false AS deduplicated FROM accepted a
    UNION ALL
    SELECT j.id, j.queue_name, j.unique_key, true
    FROM n JOIN {schema}.job_queue j ON j.queue_name = n.queue_name AND j.unique_key = n.unique_key
    WHERE NOT EXISTS (
        SELECT FROM accepted a WHERE a.queue_name = n.queue_name AND a.unique_key = n.unique_key)
)
SELECT id, queue_name::text, unique_key::text, deduplicated FROM answer
UNION ALL
SELECT {schema}.lost_race(), NULL, NULL, NULL
WHERE $10::boolean AND (SELECT count(*) FROM answer) < (SELECT count(*) FROM n)
$statement$ USING $1, $2, $3, $4, $5, $6, $7, $8, $9, $10;
END
$$;
