-- Makes the rows by which the limits of queues are kept.
INSERT INTO {schema}.job_queue_limit (queue_name) SELECT DISTINCT pg_catalog.unnest($1::text[]) ORDER BY 1 ON CONFLICT DO NOTHING
