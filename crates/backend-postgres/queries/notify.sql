SELECT pg_notify($1::text, x.message) FROM unnest($2::text[]) x (message)
