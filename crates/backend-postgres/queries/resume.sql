-- Says that a pattern is not paused, if a wider one would have it so, and else nothing (P10).
INSERT INTO {schema}.job_queue_config (pattern, paused)
SELECT $1::text, CASE WHEN (
    SELECT c.paused FROM {schema}.job_queue_config c
    WHERE c.pattern <> $1::text AND c.paused IS NOT NULL
      AND right(c.pattern, 1) = '*' AND starts_with(rtrim($1::text, '*'), left(c.pattern, -1))
    ORDER BY length(c.pattern) DESC LIMIT 1) THEN false END
ON CONFLICT (pattern) DO UPDATE SET paused = excluded.paused, updated_at = statement_timestamp()
