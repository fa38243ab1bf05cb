-- Tells events as part of a transaction: each message begins with its time.
SELECT pg_notify($1::text, concat('transaction ', (extract(epoch FROM statement_timestamp()) * 1000000)::bigint, E'\n', x.message))
FROM unnest($2::text[]) x (message)
