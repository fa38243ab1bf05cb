-- After a change of policies: a rate that is not what it was starts with a full bucket.
UPDATE {schema}.job_queue_limit k SET full_at = NULL, rate_per_sec = NULL, rate_burst = NULL
WHERE k.full_at IS NOT NULL
  AND (k.queue_name = $1::text OR right($1::text, 1) = '*' AND starts_with(k.queue_name, left($1::text, -1)))
  AND (SELECT (p.rate_per_sec, p.rate_burst) IS DISTINCT FROM (k.rate_per_sec, k.rate_burst)
       FROM {schema}.effective_policy(k.queue_name) p)
