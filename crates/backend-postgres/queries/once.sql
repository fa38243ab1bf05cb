-- Takes a key once (T5), and keeps it for $2 microseconds at least. Waits for another transaction that has taken it and is still open. Does
-- nothing unless a transaction is open (session/asking.rs).
INSERT INTO {schema}.job_idempotency (key, kept_until)
SELECT $1::text, statement_timestamp() + $2::bigint::double precision * interval '1 microsecond'
WHERE current_setting('leasehold.is_open', true) = 'yes'
ON CONFLICT (key) DO NOTHING RETURNING true
