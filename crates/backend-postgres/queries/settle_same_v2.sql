-- settle_same.sql for the store's own connections: a job that another transaction has locked is passed over, and its id told in `pending`
-- (S14). The rows are locked first, so that nothing after that waits.
CREATE FUNCTION {schema}.settle_same_v2(ids bigint[], epoch bigint, result text)
RETURNS TABLE (completed bigint[], wake text[], pending bigint[]) {planned_once} AS $$
#variable_conflict use_column
BEGIN
WITH held AS MATERIALIZED (
    SELECT j.id FROM {schema}.job_queue j
    WHERE j.id = ANY ($1::bigint[]) AND j.lease_epoch = $2::bigint AND coalesce(j.locked_by, '') <> '' -- S2, S10, S13
    FOR UPDATE SKIP LOCKED -- S14
), finished AS (
    DELETE FROM {schema}.job_queue j WHERE j.id = ANY (ARRAY(SELECT h.id FROM held h))
    RETURNING j.*
), policy AS MATERIALIZED (
    SELECT q.queue_name, p.archive, p.concurrency_limit IS NOT NULL OR coalesce(p.queue_order = 'fifo', false) AS limited
    FROM (SELECT DISTINCT queue_name FROM finished WHERE EXISTS (SELECT FROM {schema}.job_queue_config)) q
    CROSS JOIN LATERAL {schema}.effective_policy(q.queue_name) p
), archived AS (
    INSERT INTO {schema}.job_history
        (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final,
         result, last_error, redrives, processed_by, created_at, started_at, finished_at)
    SELECT f.id, f.queue_name, f.kind, f.priority, f.unique_key, f.payload, f.headers, f.attempts, f.max_attempts,
           f.lease_epoch, 'completed', $3::text::json, f.last_error, f.redrives, f.locked_by, f.created_at,
           f.first_leased_at, statement_timestamp() -- S3, S12
    FROM finished f
    WHERE f.queue_name NOT IN (SELECT p.queue_name FROM policy p WHERE p.archive = 'dead_only') -- P7
)
SELECT array_agg(f.id), ARRAY(SELECT p.queue_name::text FROM policy p WHERE p.limited) FROM finished f
INTO completed, wake;
IF coalesce(cardinality(completed), 0) < cardinality($1) THEN -- What is still held is locked by another.
    SELECT array_agg(j.id) INTO pending FROM {schema}.job_queue j
    WHERE j.id = ANY ($1::bigint[]) AND j.lease_epoch = $2::bigint AND coalesce(j.locked_by, '') <> '';
END IF;
RETURN NEXT;
END
$$;
