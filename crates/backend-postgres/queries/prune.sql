-- Forgets finished jobs of at least an age ($1), or of their queue's retention if that is null, queue by queue; then, if $8, idempotency keys
-- whose retention has passed.
WITH RECURSIVE queue (name) AS (
    (SELECT h.queue_name FROM {schema}.job_history h
     WHERE h.queue_name >= coalesce($3::text, '') ORDER BY h.queue_name LIMIT 1)
    UNION ALL
    SELECT n.name FROM queue q CROSS JOIN LATERAL (
        SELECT h.queue_name AS name FROM {schema}.job_history h
        WHERE h.queue_name > q.name ORDER BY h.queue_name LIMIT 1) n
    WHERE $4::text IS NULL OR n.name < $4::text
), old AS MATERIALIZED (
    SELECT x.id FROM queue q
    LEFT JOIN LATERAL {schema}.effective_policy(q.name) p ON $1::bigint IS NULL
    CROSS JOIN LATERAL (
        SELECT h.id FROM {schema}.job_history h
        WHERE h.queue_name = q.name
          AND h.finished_at <= statement_timestamp() - coalesce($1::bigint, p.retention_us)::double precision * interval '1 microsecond' -- U1, U3
          AND ($5::text[] IS NULL OR h.status_final = ANY ($5::text[]))
          AND ($6::bigint[] IS NULL OR h.id = ANY ($6::bigint[]))
        ORDER BY h.finished_at LIMIT $7::integer FOR UPDATE SKIP LOCKED) x
    WHERE ($2::text[] IS NULL OR q.name = ANY ($2::text[])) AND ($4::text IS NULL OR q.name < $4::text)
    LIMIT $7::integer -- U2
), pruned AS (
    DELETE FROM {schema}.job_history h USING old o WHERE h.id = o.id RETURNING h.queue_name, h.status_final
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT p.queue_name, NULL, NULL, -count(*) FROM pruned p WHERE p.status_final = 'dead_letter' GROUP BY 1
), passed AS MATERIALIZED (
    SELECT x.place FROM (
        SELECT k.ctid AS place FROM {schema}.job_idempotency k
        WHERE $8::boolean AND k.kept_until <= statement_timestamp() -- U4
        -- A limit that the planner knows, so that it goes by the index.
        ORDER BY k.kept_until LIMIT $7::integer FOR UPDATE SKIP LOCKED) x
    LIMIT $7::integer - (SELECT count(*) FROM old)
), forgotten AS (
    -- By their places in the table: the rows are locked, and no estimate can make it a walk over the whole table.
    DELETE FROM {schema}.job_idempotency k WHERE k.ctid = ANY (ARRAY(SELECT p.place FROM passed p)) RETURNING true
)
SELECT (SELECT count(*) FROM pruned) + (SELECT count(*) FROM forgotten)
