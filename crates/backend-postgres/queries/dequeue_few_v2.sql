-- Leases jobs of one queue in which there are only a few, as in one that workers wait at: dequeue_one_v2.sql without the walk and
-- without the floors, in half the time. If there are as many ready or scheduled jobs as it looks at, or any policy, it leases
-- nothing. Then, and when it took long, there is a row with `meta`: whether it has seen all there is, and whether it was slow.
-- Whether all was seen is decided in the snapshot in which jobs are leased. It was not, if another transaction has changed a job meanwhile.
-- It is called on connections that have the store's settings, and on no others: to bring them along would take as long as the rest.
CREATE FUNCTION {schema}.dequeue_few_v2(queue text, wanted integer, lease_us bigint, worker text, few integer, slow_us bigint)
RETURNS TABLE (
    meta bigint[], id bigint, queue_name text, kind text, priority integer, unique_key text, payload json, headers json,
    attempts integer, max_attempts integer, available_at timestamptz, lease_until timestamptz, locked_by text,
    lease_epoch bigint, first_leased_at timestamptz, last_error json, redrives integer, created_at timestamptz,
    updated_at timestamptz
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH seen AS MATERIALIZED ( -- Known before anything is locked.
    SELECT NOT EXISTS (SELECT FROM {schema}.job_queue_config) AND count(*) < $5 AS is_all FROM (
        SELECT FROM {schema}.job_queue f
        WHERE f.queue_name = $1 AND f.lease_until IS NULL AND f.attempts < f.max_attempts
        ORDER BY f.priority DESC, f.available_at, f.id LIMIT $5
    ) f
), locked AS MATERIALIZED (
    SELECT k.ctid AS row FROM {schema}.job_queue k
    WHERE k.queue_name = $1 AND k.lease_until IS NULL AND k.attempts < k.max_attempts -- D1
      AND k.available_at <= statement_timestamp() AND (SELECT s.is_all FROM seen s)
    ORDER BY k.priority DESC, k.available_at, k.id LIMIT $2 FOR UPDATE SKIP LOCKED -- D2, D5, D6
), leased AS (
    UPDATE {schema}.job_queue j SET
        lease_until = statement_timestamp() + $3 * interval '1 microsecond', -- D7
        locked_by = $4,
        attempts = j.attempts + 1, -- D3
        lease_epoch = j.lease_epoch + 1, -- D4
        first_leased_at = coalesce(j.first_leased_at, statement_timestamp()), -- D8
        updated_at = statement_timestamp()
    WHERE j.ctid = ANY (ARRAY(SELECT k.row FROM locked k)) -- Locked, so that no other transaction moves it.
    RETURNING j.*
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT $1, l.attempts - 1, {schema}.due(l.available_at), -1 FROM leased l
) /* and for tests: */
SELECT NULL::bigint[], j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.available_at, j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives, j.created_at,
       j.updated_at
FROM leased j
UNION ALL
SELECT ARRAY[0, 0]::bigint[], 0, '', '', 0, NULL, 'null'::json, 'null'::json, 0, 0, 'epoch', NULL, NULL, 0, NULL, NULL, 0, 'epoch', 'epoch'
FROM seen s
WHERE NOT s.is_all OR (SELECT count(*) FROM locked) > (SELECT count(*) FROM leased);
IF clock_timestamp() - statement_timestamp() > $6 * interval '1 microsecond' THEN
    SELECT ARRAY[1, 1], 0, '', '', 0, 'null', 'null', 0, 0, 'epoch', 0, 0, 'epoch', 'epoch'
    INTO meta, id, queue_name, kind, priority, payload, headers, attempts, max_attempts, available_at, lease_epoch, redrives,
         created_at, updated_at;
    RETURN NEXT;
END IF;
END
$$;
