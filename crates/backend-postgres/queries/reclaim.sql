-- Takes back leases that have passed, queue by queue, and jobs whose attempts are spent. Locked jobs are passed over and
-- hide no others (R5).
CREATE FUNCTION {schema}.reclaim(wanted integer) RETURNS TABLE (
    id bigint, queue_name text, kind text, attempts integer, locked_by text, available_at timestamptz
) {planned_by_hash} AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH RECURSIVE leasing (name) AS (
    (SELECT j.queue_name FROM {schema}.job_queue j WHERE j.lease_until IS NOT NULL ORDER BY j.queue_name LIMIT 1)
    UNION ALL
    SELECT n.name FROM leasing l CROSS JOIN LATERAL (
        SELECT j.queue_name AS name FROM {schema}.job_queue j
        WHERE j.lease_until IS NOT NULL AND j.queue_name > l.name ORDER BY j.queue_name LIMIT 1) n
), expired AS MATERIALIZED (
    SELECT x.id, x.locked_by FROM leasing l CROSS JOIN LATERAL (
        SELECT j.id, j.locked_by FROM {schema}.job_queue j
        WHERE j.queue_name = l.name AND j.lease_until <= statement_timestamp() -- R1
        ORDER BY j.lease_until LIMIT $1::integer FOR UPDATE SKIP LOCKED) x -- R6
    LIMIT $1::integer
), exhausted AS MATERIALIZED (
    SELECT j.id, NULL::text AS locked_by FROM {schema}.job_queue j
    WHERE j.lease_until IS NULL AND j.attempts >= j.max_attempts
    ORDER BY j.queue_name, j.id LIMIT $1::integer FOR UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT * FROM expired UNION ALL SELECT * FROM exhausted LIMIT $1::integer
), requeued AS (
    UPDATE {schema}.job_queue j SET
        lease_until = NULL,
        locked_by = NULL,
        lease_epoch = j.lease_epoch + 1, -- R7, R8
        last_error = '{"error":"lease_expired"}',
        available_at = least(
            statement_timestamp() + interval '1 microsecond' * (
                SELECT CASE WHEN p.on_expiry = 'backoff' -- P12
                    THEN {schema}.backoff_us(p.backoff_base_us, p.backoff_jitter, p.backoff_min_us, p.backoff_max_us,
                                             j.attempts, 2 * random() - 1)
                    ELSE 0 END -- R2
                FROM (SELECT) one LEFT JOIN LATERAL (
                    SELECT * FROM {schema}.effective_policy(j.queue_name)
                    WHERE EXISTS (SELECT FROM {schema}.job_queue_config)) p ON true),
            timestamptz '9999-12-31 23:59:59.999999+00'),
        updated_at = statement_timestamp()
    FROM due d
    WHERE j.id = ANY (ARRAY(SELECT id FROM due)) AND j.id = d.id
      AND coalesce(j.lease_until <= statement_timestamp(), false) AND j.attempts < j.max_attempts
    RETURNING j.id, j.queue_name, j.kind, j.attempts, d.locked_by, j.available_at
), finished AS (
    DELETE FROM {schema}.job_queue j USING due d
    WHERE j.id = ANY (ARRAY(SELECT id FROM due)) AND j.id = d.id AND j.attempts >= j.max_attempts
      AND (j.lease_until IS NULL OR j.lease_until <= statement_timestamp())
    RETURNING j.*
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT r.queue_name, r.attempts, {schema}.due(r.available_at), count(*) FROM requeued r GROUP BY 1, 2, 3
    UNION ALL
    SELECT f.queue_name, NULL, NULL, count(*) FROM finished f GROUP BY 1
), archived AS (
    INSERT INTO {schema}.job_history
        (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final,
         result, last_error, redrives, processed_by, created_at, started_at, finished_at)
    SELECT f.id, f.queue_name, f.kind, f.priority, f.unique_key, f.payload, f.headers, f.attempts, f.max_attempts,
           CASE WHEN f.lease_until IS NOT NULL THEN f.lease_epoch + 1 ELSE f.lease_epoch END, 'dead_letter', NULL,
           CASE WHEN f.lease_until IS NOT NULL THEN '{"error":"lease_expired"}' -- R3
                ELSE coalesce(f.last_error, '{"error":"attempts_exhausted"}') END, -- R4
           f.redrives, f.locked_by, f.created_at, f.first_leased_at, statement_timestamp()
    FROM finished f
)
SELECT r.id, r.queue_name, r.kind, r.attempts, r.locked_by, r.available_at FROM requeued r
UNION ALL
SELECT f.id, f.queue_name, f.kind, f.attempts, f.locked_by, NULL FROM finished f;
END
$$;
