-- Accepts jobs without unique keys. The ids rise in the order given (E2, E10).
CREATE FUNCTION {schema}.enqueue(
    queues text[], kinds text[], priorities integer[], payloads text[], all_headers text[],
    attempts_allowed integer[], delays_us bigint[], times timestamptz[]
) RETURNS TABLE (id bigint) {planned_once} AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH accepted AS (
    INSERT INTO {schema}.job_queue
        (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
    SELECT n.queue_name, n.kind, n.priority, n.payload::json, n.headers::json,
           coalesce(n.max_attempts, d.max_attempts, 5), -- E12
           greatest(statement_timestamp(), coalesce(n.at, least( -- E8
               statement_timestamp() + coalesce(n.delay_us, 0) * interval '1 microsecond',
               timestamptz '9999-12-31 23:59:59.999999+00'))),
           statement_timestamp(), statement_timestamp()
    FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::integer[], $7::bigint[],
                $8::timestamptz[])
         WITH ORDINALITY AS n (queue_name, kind, priority, payload, headers, max_attempts, delay_us, at, ord)
    LEFT JOIN (
        SELECT q.name, p.max_attempts
        FROM (SELECT DISTINCT unnest($1::text[]) AS name WHERE EXISTS (SELECT FROM {schema}.job_queue_config)) q
        CROSS JOIN LATERAL {schema}.effective_policy(q.name) p
    ) d ON d.name = n.queue_name
    ORDER BY n.ord
    RETURNING id, queue_name, available_at
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT a.queue_name, 0, {schema}.due(a.available_at), count(*) FROM accepted a GROUP BY 1, 3
)
SELECT a.id FROM accepted a;
END
$$;
