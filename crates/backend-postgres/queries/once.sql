-- Takes a key once (T5). Waits for another transaction that has taken it and is still open.
INSERT INTO {schema}.job_idempotency (key) VALUES ($1::text) ON CONFLICT (key) DO NOTHING RETURNING true
