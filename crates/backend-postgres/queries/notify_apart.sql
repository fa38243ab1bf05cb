-- Sends messages in a transaction of their own, which nobody has to wait for until it is on the disk: a lost hint costs a poll.
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1::text, message) FROM pg_catalog.unnest($2::text[]) message
