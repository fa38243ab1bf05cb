-- Locks the job of a good receipt (S2, S10, S13) until the user's transaction ends (T10). Waits for another transaction that has
-- locked it.
SELECT j.id FROM {prefix}job_queue j FORCE INDEX (PRIMARY)
WHERE j.id = ? AND j.lease_epoch = ? AND j.lease_until IS NOT NULL
FOR UPDATE
