-- Completes one job, as a worker with little to do does: settle_same_v2.sql without the list and, while there are no policies, without
-- looking for one.
CREATE FUNCTION {schema}.settle_one_v2(id bigint, epoch bigint, result text)
RETURNS TABLE (completed bigint[], wake text[], pending bigint[])
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
IF EXISTS (SELECT FROM {schema}.job_queue_config) THEN
    RETURN QUERY SELECT * FROM {schema}.settle_same_v2(ARRAY[$1], $2, $3);
    RETURN;
END IF;
RETURN QUERY
WITH held AS MATERIALIZED (
    SELECT j.id FROM {schema}.job_queue j
    WHERE j.id = $1::bigint AND j.lease_epoch = $2::bigint AND coalesce(j.locked_by, '') <> '' -- S2, S10, S13
    FOR UPDATE SKIP LOCKED -- S14
), finished AS (
    DELETE FROM {schema}.job_queue j WHERE j.id = (SELECT h.id FROM held h)
    RETURNING j.*
)
INSERT INTO {schema}.job_history
    (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final,
     result, last_error, redrives, processed_by, created_at, started_at, finished_at)
SELECT f.id, f.queue_name, f.kind, f.priority, f.unique_key, f.payload, f.headers, f.attempts, f.max_attempts,
       f.lease_epoch, 'completed', $3::text::json, f.last_error, f.redrives, f.locked_by, f.created_at,
       f.first_leased_at, statement_timestamp() -- S3, S12
FROM finished f
RETURNING ARRAY[id], '{}'::text[], NULL::bigint[];
IF NOT FOUND THEN -- What is still held is locked by another.
    RETURN QUERY SELECT NULL::bigint[], '{}'::text[], ARRAY[j.id] FROM {schema}.job_queue j
    WHERE j.id = $1::bigint AND j.lease_epoch = $2::bigint AND coalesce(j.locked_by, '') <> '';
END IF;
END
$$;
