-- Until when a key is kept at least: prune forgets it afterwards (U4). Programs of older versions do not name the column, so their keys, and
-- those that are there already, are kept for 30 days from now on. The default is no volatile function: no row is written anew.
-- `IF NOT EXISTS`: with many keys, column and index can be made beforehand, the index with CREATE INDEX CONCURRENTLY, during which keys can
-- still be taken.
ALTER TABLE {schema}.job_idempotency
    ADD COLUMN IF NOT EXISTS kept_until timestamptz NOT NULL DEFAULT (pg_catalog.statement_timestamp() + interval '30 days');
CREATE INDEX IF NOT EXISTS job_idempotency_kept ON {schema}.job_idempotency (kept_until);
