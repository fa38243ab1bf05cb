-- Locks the job of a good receipt (S2, S10, S13) until the user's transaction ends (T10), and counts it. Waits for another transaction
-- that has locked it. Sets back what by_index.sql has set.
WITH locked AS MATERIALIZED (
    SELECT j.id FROM {schema}.job_queue j
    WHERE j.id = $1::bigint AND j.lease_epoch = $2::bigint AND coalesce(j.locked_by, '') <> ''
    FOR UPDATE
)
SELECT CASE WHEN set_config('enable_seqscan', $3::text, true) IS NOT NULL THEN (SELECT count(*) FROM locked) END
