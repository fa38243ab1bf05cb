-- Accepts jobs without unique keys. The ids rise in the order given (E2, E10).
-- The attempts that policies allow are a list beside the others: each queue is looked up once, and joined with the names alone by hash, so
-- that no payload is hashed or sorted. Only this field is read, in the order of effective_policy() (P8): to call that for each of ten thousand
-- queues takes longer than everything else here.
-- Sorts are allowed: without them a nested loop, which keeps the order of the names, would cost the planner no more than a hash join.
CREATE FUNCTION {schema}.enqueue_v2(
    queues text[], kinds text[], priorities integer[], payloads text[], all_headers text[],
    attempts_allowed integer[], delays_us bigint[], times timestamptz[]
) RETURNS TABLE (id bigint) {planned_by_hash} SET enable_sort = on AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH accepted AS (
    INSERT INTO {schema}.job_queue
        (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
    SELECT n.queue_name, n.kind, n.priority, n.payload::json, n.headers::json,
           coalesce(n.max_attempts, n.by_policy, 5), -- E12
           greatest(statement_timestamp(), coalesce(n.at, least( -- E8
               statement_timestamp() + coalesce(n.delay_us, 0) * interval '1 microsecond',
               timestamptz '9999-12-31 23:59:59.999999+00'))),
           statement_timestamp(), statement_timestamp()
    FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::integer[], $7::bigint[],
                $8::timestamptz[], ARRAY(
        SELECT d.max_attempts FROM unnest($1::text[]) WITH ORDINALITY q (name, ord) LEFT JOIN (
            SELECT q.name, coalesce(
                (SELECT own.max_attempts FROM {schema}.job_queue_config own WHERE own.pattern = q.name),
                (SELECT wide.max_attempts FROM {schema}.job_queue_config wide
                 WHERE right(wide.pattern, 1) = '*' AND starts_with(q.name, left(wide.pattern, -1))
                   AND wide.max_attempts IS NOT NULL
                 ORDER BY length(wide.pattern) DESC LIMIT 1)) AS max_attempts
            FROM (SELECT DISTINCT unnest($1::text[]) AS name) q
        ) d ON d.name = q.name
        WHERE EXISTS (SELECT FROM {schema}.job_queue_config)
        ORDER BY q.ord
    )) WITH ORDINALITY
        AS n (queue_name, kind, priority, payload, headers, max_attempts, delay_us, at, by_policy, ord)
    ORDER BY n.ord
    RETURNING id, queue_name, available_at
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT a.queue_name, 0, {schema}.due(a.available_at), count(*) FROM accepted a GROUP BY 1, 3
)
SELECT a.id FROM accepted a;
END
$$;
