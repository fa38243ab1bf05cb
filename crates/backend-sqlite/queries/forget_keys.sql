-- Forgets idempotency keys whose retention has passed by ?1, at most ?2 (U4).
DELETE FROM {prefix}job_idempotency WHERE key IN (
    SELECT k.key FROM {prefix}job_idempotency k INDEXED BY {prefix}job_idempotency_kept
    WHERE k.kept_until <= ?1 ORDER BY k.kept_until LIMIT ?2)
