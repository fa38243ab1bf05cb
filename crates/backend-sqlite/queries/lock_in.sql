-- Locks the job of a good receipt (S2, S10, S13) until the user's transaction ends (T10). The row stays as it is: the write alone takes
-- the lock of the whole file, also in a transaction that had only read before.
UPDATE {prefix}job_queue SET lease_epoch = lease_epoch WHERE id = ?1 AND lease_epoch = ?2 AND lease_until IS NOT NULL
