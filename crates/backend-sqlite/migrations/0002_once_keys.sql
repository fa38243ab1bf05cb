-- Until when a key is kept at least: prune forgets it afterwards (U4). Programs of older versions do not name the column, so their keys, and
-- those that are there already, are kept for 30 days from now on. SQLite adds no column with such a default to a table with rows, so the
-- table is made anew.
CREATE TABLE {prefix}job_idempotency_2 (
    key TEXT PRIMARY KEY NOT NULL,
    created_at INTEGER NOT NULL,
    kept_until INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) + 2592000000000)
) STRICT, WITHOUT ROWID;
INSERT INTO {prefix}job_idempotency_2 (key, created_at) SELECT key, created_at FROM {prefix}job_idempotency;
DROP TABLE {prefix}job_idempotency;
ALTER TABLE {prefix}job_idempotency_2 RENAME TO {prefix}job_idempotency;
CREATE INDEX {prefix}job_idempotency_kept ON {prefix}job_idempotency (kept_until);
