-- settle_done.sql for the store's own connections: a job that another transaction has locked is passed over, and its place told in
-- `pending` (S14). The rows are locked first, so that nothing after that waits.
-- That a job is leased is asked of `locked_by`, and in words that no index knows: the planner would walk all leases.
CREATE FUNCTION {schema}.settle_done_v2(ids bigint[], epochs bigint[], results text[])
RETURNS TABLE (completed bigint[], wake text[], pending bigint[]) {planned_by_hash} AS $$
#variable_conflict use_column
BEGIN
WITH item AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[]) WITH ORDINALITY AS i (id, epoch, document, ord)
), held AS MATERIALIZED (
    SELECT j.id, i.ord, i.document FROM {schema}.job_queue j JOIN item i ON j.id = i.id AND j.lease_epoch = i.epoch
    WHERE j.id = ANY ($1::bigint[]) AND coalesce(j.locked_by, '') <> '' -- S2, S10, S13
    FOR UPDATE OF j SKIP LOCKED -- S14
), finished AS (
    DELETE FROM {schema}.job_queue j USING held h
    WHERE j.id = ANY (ARRAY(SELECT ended.id FROM held ended)) AND j.id = h.id
    RETURNING j.*, h.ord, h.document
), policy AS MATERIALIZED (
    SELECT q.queue_name, p.archive, p.concurrency_limit IS NOT NULL OR coalesce(p.queue_order = 'fifo', false) AS limited
    FROM (SELECT DISTINCT queue_name FROM finished WHERE EXISTS (SELECT FROM {schema}.job_queue_config)) q
    CROSS JOIN LATERAL {schema}.effective_policy(q.queue_name) p
), archived AS (
    INSERT INTO {schema}.job_history
        (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final,
         result, last_error, redrives, processed_by, created_at, started_at, finished_at)
    SELECT f.id, f.queue_name, f.kind, f.priority, f.unique_key, f.payload, f.headers, f.attempts, f.max_attempts,
           f.lease_epoch, 'completed', f.document::json, f.last_error, f.redrives, f.locked_by, f.created_at,
           f.first_leased_at, statement_timestamp() -- S3, S12
    FROM finished f
    WHERE f.queue_name NOT IN (SELECT p.queue_name FROM policy p WHERE p.archive = 'dead_only') -- P7
)
SELECT array_agg(f.ord), ARRAY(SELECT p.queue_name::text FROM policy p WHERE p.limited) FROM finished f
INTO completed, wake;
IF coalesce(cardinality(completed), 0) < cardinality($1) THEN -- What is still held is locked by another.
    SELECT array_agg(i.ord) INTO pending
    FROM {schema}.job_queue j JOIN unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS i (id, epoch, ord)
      ON j.id = i.id AND j.lease_epoch = i.epoch
    WHERE j.id = ANY ($1::bigint[]) AND coalesce(j.locked_by, '') <> '';
END IF;
RETURN NEXT;
END
$$;
