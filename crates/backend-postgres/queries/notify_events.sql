-- Tells events as part of a transaction: each message begins with its time.
SELECT pg_notify($1::text, pg_catalog.concat('transaction ', (extract(epoch FROM statement_timestamp())::double precision * 1000000::double precision)::bigint, E'\n', x.message))
FROM pg_catalog.unnest($2::text[]) x (message)
