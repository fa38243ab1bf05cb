-- Takes a key once (T5), and keeps it for $2 microseconds at least. Waits for another transaction that has taken it and is still open.
INSERT INTO {schema}.job_idempotency (key, kept_until)
VALUES ($1::text, statement_timestamp() + $2::bigint::double precision * interval '1 microsecond') ON CONFLICT (key) DO NOTHING RETURNING true
