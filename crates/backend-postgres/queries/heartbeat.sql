-- Extends leases that are still live. A job that somebody has locked is passed over, and `pending` says so (H7).
CREATE FUNCTION {schema}.heartbeat(ids bigint[], epochs bigint[], lease_us bigint) RETURNS TABLE (place bigint, lease_until timestamptz, now timestamptz, pending boolean) {planned_by_hash} AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH item AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS i (id, epoch, ord)
), held AS MATERIALIZED (
    SELECT j.id, j.queue_name, i.ord FROM item i
    CROSS JOIN LATERAL (
        SELECT j.id, j.queue_name FROM {schema}.job_queue j
        WHERE j.id = i.id AND j.lease_epoch = i.epoch
          AND coalesce(j.lease_until > statement_timestamp(), false) -- H3, H4
        FOR UPDATE SKIP LOCKED
    ) j
), policy AS MATERIALIZED (
    SELECT q.queue_name, p.max_lease_us
    FROM (SELECT DISTINCT queue_name FROM held WHERE EXISTS (SELECT FROM {schema}.job_queue_config)) q
    CROSS JOIN LATERAL {schema}.effective_policy(q.queue_name) p
), extended AS (
    UPDATE {schema}.job_queue j SET
        lease_until = greatest(j.lease_until, statement_timestamp() -- H1, H2, P6
            + least($3::bigint, (SELECT p.max_lease_us FROM policy p WHERE p.queue_name = j.queue_name))
            * interval '1 microsecond'),
        updated_at = statement_timestamp()
    FROM held h WHERE j.id = ANY (ARRAY(SELECT id FROM held)) AND j.id = h.id
    RETURNING h.ord, j.lease_until
)
SELECT i.ord, e.lease_until, statement_timestamp() AS now,
       e.ord IS NULL AND EXISTS (
           SELECT FROM {schema}.job_queue j
           WHERE j.id = i.id AND j.lease_epoch = i.epoch
          AND coalesce(j.lease_until > statement_timestamp(), false)) AS pending
FROM item i LEFT JOIN extended e ON e.ord = i.ord;
END
$$;
