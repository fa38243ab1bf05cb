SELECT pg_notify($1::text, x.message) FROM pg_catalog.unnest($2::text[]) x (message)
