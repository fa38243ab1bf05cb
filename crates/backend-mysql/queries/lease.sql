-- Leases jobs that were locked in the same transaction (D2). A job that has a lease by now is left out: the count tells.
-- `in_transaction` is as in `requeue.sql`.
UPDATE {prefix}job_queue FORCE INDEX (PRIMARY) SET
    lease_until = ?, -- D7, P6
    locked_by = ?,
    attempts = attempts + 1, -- D3
    lease_epoch = lease_epoch + 1, -- D4
    first_leased_at = COALESCE(first_leased_at, ?), -- D8
    updated_at = ?
WHERE id IN ({list}) AND lease_until IS NULL /*M! AND @@in_transaction = 1 */
