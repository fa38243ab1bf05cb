-- Locks the job of a good receipt (S2, S10, S13) until the user's transaction ends (T10). Waits for another transaction that has
-- locked it.
SELECT j.id FROM {schema}.job_queue j
WHERE j.id = $1::bigint AND j.lease_epoch = $2::bigint AND coalesce(j.locked_by, '') <> ''
FOR UPDATE
