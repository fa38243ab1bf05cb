-- Says that a pattern is not paused, if a wider one would have it so, and else nothing (P10).
INSERT INTO {prefix}job_queue_config (pattern, paused, updated_at)
SELECT ?, (
    SELECT IF(c.paused, 0, NULL) FROM {prefix}job_queue_config c
    WHERE c.pattern <> ? AND c.paused IS NOT NULL AND RIGHT(c.pattern, 1) = '*'
      AND LEFT(TRIM(TRAILING '*' FROM ?), LENGTH(c.pattern) - 1) = LEFT(c.pattern, LENGTH(c.pattern) - 1)
    ORDER BY LENGTH(c.pattern) DESC LIMIT 1), UTC_TIMESTAMP(6)
ON DUPLICATE KEY UPDATE paused = VALUES(paused), updated_at = UTC_TIMESTAMP(6)
