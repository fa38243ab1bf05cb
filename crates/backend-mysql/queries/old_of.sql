-- The same of a selection of ids.
SELECT STRAIGHT_JOIN h.id FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) i
JOIN {prefix}job_history h ON h.id = i.id
WHERE h.queue_name = ? AND h.finished_at <= ?
  AND (? IS NULL OR FIND_IN_SET(h.status_final, ?) > 0)
ORDER BY h.finished_at, h.id LIMIT ?
