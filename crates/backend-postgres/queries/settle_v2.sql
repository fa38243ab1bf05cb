-- settle.sql for the store's own connections: a job that another transaction has locked is passed over, and told as `pending` (S14).
-- The rows are locked first, so that nothing after that waits. What is still held afterwards, and was not settled, is locked by another.
-- That a job is leased is asked of `locked_by`, and in words that no index knows: the planner would walk all leases.
CREATE FUNCTION {schema}.settle_v2(
    ids bigint[], epochs bigint[], documents text[], verdicts smallint[], delays_us bigint[],
    spreads double precision[]
) RETURNS TABLE (place bigint, fate text, available_at timestamptz, wake text) {planned_by_hash} AS $$
#variable_conflict use_column
DECLARE
    settled bigint;
BEGIN
RETURN QUERY
WITH item AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::smallint[], $5::bigint[], $6::double precision[])
    WITH ORDINALITY AS i (id, epoch, document, verdict, delay_us, spread, ord)
), held AS MATERIALIZED (
    SELECT j.id, i.ord, i.document, i.verdict, i.delay_us, i.spread,
           i.verdict IN (0, 3, 4) OR i.verdict = 1 AND j.attempts >= j.max_attempts AS ends -- S6
    FROM {schema}.job_queue j JOIN item i ON j.id = i.id AND j.lease_epoch = i.epoch
    WHERE j.id = ANY ($1::bigint[]) AND coalesce(j.locked_by, '') <> '' -- S2, S10, S13
    FOR UPDATE OF j SKIP LOCKED -- S14
), finished AS (
    DELETE FROM {schema}.job_queue j USING held h
    WHERE j.id = ANY (ARRAY(SELECT ended.id FROM held ended WHERE ended.ends)) AND j.id = h.id
    RETURNING j.*, h.ord, h.document,
        CASE h.verdict WHEN 0 THEN 'completed' WHEN 4 THEN 'discarded' ELSE 'dead_letter' END AS status_final
), requeued AS (
    UPDATE {schema}.job_queue j SET
        lease_until = NULL,
        locked_by = NULL,
        attempts = CASE h.verdict WHEN 2 THEN greatest(j.attempts - 1, 0) ELSE j.attempts END, -- S7
        last_error = CASE h.verdict WHEN 1 THEN h.document::json ELSE j.last_error END, -- S4
        available_at = least(
            statement_timestamp() + interval '1 microsecond' * CASE
                WHEN h.delay_us IS NOT NULL THEN h.delay_us
                ELSE (SELECT {schema}.backoff_us(p.backoff_base_us, p.backoff_jitter, p.backoff_min_us, -- S5
                                                 p.backoff_max_us, j.attempts, h.spread)
                      FROM (SELECT) one LEFT JOIN LATERAL (
                          SELECT * FROM {schema}.effective_policy(j.queue_name)
                          WHERE EXISTS (SELECT FROM {schema}.job_queue_config)) p ON true)
            END,
            timestamptz '9999-12-31 23:59:59.999999+00'),
        updated_at = statement_timestamp()
    FROM held h
    WHERE j.id = ANY (ARRAY(SELECT back.id FROM held back WHERE NOT back.ends)) AND j.id = h.id
    RETURNING j.queue_name, j.available_at, j.attempts, h.ord, h.verdict
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT r.queue_name, r.attempts, {schema}.due(r.available_at), count(*) FROM requeued r GROUP BY 1, 2, 3
    UNION ALL
    SELECT f.queue_name, NULL, NULL, count(*) FROM finished f WHERE f.status_final = 'dead_letter' GROUP BY 1
), policy AS MATERIALIZED (
    SELECT q.queue_name, p.archive, p.concurrency_limit IS NOT NULL OR coalesce(p.queue_order = 'fifo', false) AS limited
    FROM (SELECT queue_name FROM finished WHERE EXISTS (SELECT FROM {schema}.job_queue_config)
          UNION SELECT queue_name FROM requeued WHERE EXISTS (SELECT FROM {schema}.job_queue_config)) q
    CROSS JOIN LATERAL {schema}.effective_policy(q.queue_name) p
), archived AS (
    INSERT INTO {schema}.job_history
        (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final,
         result, last_error, redrives, processed_by, created_at, started_at, finished_at)
    SELECT f.id, f.queue_name, f.kind, f.priority, f.unique_key, f.payload, f.headers, f.attempts, f.max_attempts,
           f.lease_epoch, f.status_final,
           CASE WHEN f.status_final <> 'dead_letter' THEN f.document::json END, -- S3, S9
           CASE WHEN f.status_final = 'dead_letter' THEN f.document::json ELSE f.last_error END, -- S6, S8
           f.redrives, f.locked_by, f.created_at, f.first_leased_at, statement_timestamp() -- S12
    FROM finished f
    WHERE f.status_final = 'dead_letter'
       OR f.queue_name NOT IN (SELECT p.queue_name FROM policy p WHERE p.archive = 'dead_only') -- P7
)
SELECT f.ord, f.status_final AS fate, NULL::timestamptz AS available_at,
       CASE WHEN f.queue_name IN (SELECT p.queue_name FROM policy p WHERE p.limited) THEN f.queue_name END AS wake
FROM finished f
UNION ALL
SELECT r.ord, CASE r.verdict WHEN 1 THEN 'retrying' ELSE 'snoozed' END, r.available_at,
       CASE WHEN r.available_at <= statement_timestamp()
              OR r.queue_name IN (SELECT p.queue_name FROM policy p WHERE p.limited) THEN r.queue_name END
FROM requeued r;
GET DIAGNOSTICS settled = ROW_COUNT;
IF settled < cardinality($1) THEN
    RETURN QUERY SELECT i.ord, 'pending', NULL::timestamptz, NULL
    FROM {schema}.job_queue j JOIN unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS i (id, epoch, ord)
      ON j.id = i.id AND j.lease_epoch = i.epoch
    WHERE j.id = ANY ($1::bigint[]) AND coalesce(j.locked_by, '') <> '';
END IF;
END
$$;
