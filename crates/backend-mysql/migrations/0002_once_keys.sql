-- Until when a key is kept at least: prune forgets it afterwards (U4). Programs of older versions do not name the column, so their keys, and
-- those that are there already, are kept for 30 days from now on.
ALTER TABLE {prefix}job_idempotency
    ADD COLUMN kept_until DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6) + INTERVAL 30 DAY),
    ADD INDEX job_idempotency_kept (kept_until);
