-- Dead letters after an id, by id (X1).
SELECT j.id, j.queue_name, j.unique_key FROM {prefix}job_history j
WHERE j.status_final = 'dead_letter' AND {queues}
  AND (? IS NULL OR j.kind = ?)
  AND (? IS NULL OR j.id IN (SELECT i.id FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) i))
  AND j.id > ?
ORDER BY j.id LIMIT ?
