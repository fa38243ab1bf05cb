-- Forgets them. The second condition is as in `remove.sql`.
DELETE k FROM {prefix}job_idempotency k FORCE INDEX (PRIMARY)
WHERE k.idempotency_key IN ({list}) AND k.kept_until <= UTC_TIMESTAMP(6)
