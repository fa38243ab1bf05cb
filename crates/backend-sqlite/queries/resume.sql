-- Says that a pattern is not paused, if a wider one would have it so, and else nothing (P10).
INSERT INTO {prefix}job_queue_config (pattern, paused, updated_at)
SELECT ?1, CASE WHEN (
    SELECT c.paused FROM {prefix}job_queue_config c
    WHERE c.pattern <> ?1 AND c.paused IS NOT NULL AND substr(c.pattern, -1) = '*'
      AND substr(rtrim(?1, '*'), 1, length(c.pattern) - 1) = substr(c.pattern, 1, length(c.pattern) - 1)
    ORDER BY length(c.pattern) DESC LIMIT 1) THEN 0 END, ?2
WHERE true
ON CONFLICT (pattern) DO UPDATE SET paused = excluded.paused, updated_at = excluded.updated_at
