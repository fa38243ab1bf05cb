-- Locks idempotency keys whose retention has passed (U4). Waits for nobody: an open transaction that was answered false has the key locked.
SELECT k.idempotency_key FROM {prefix}job_idempotency k FORCE INDEX (job_idempotency_kept)
WHERE k.kept_until <= UTC_TIMESTAMP(6) ORDER BY k.kept_until LIMIT ? FOR UPDATE SKIP LOCKED
