-- One row if the transaction has a snapshot of its own, and the lease is not in it: the job is missing, or in an earlier epoch (T3).
SELECT 1::bigint
WHERE current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
  AND NOT EXISTS (SELECT FROM {schema}.job_history h WHERE h.id = $1::bigint)
  AND NOT EXISTS (SELECT FROM {schema}.job_queue j WHERE j.id = $1::bigint AND j.lease_epoch >= $2::bigint)
