-- One page of finished jobs. `{direction}` and `{beyond}` are `ASC` and `>`, or `DESC` and `<`; `{queues}` says which queues are meant.
SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final, result,
       last_error, redrives, processed_by, created_at, started_at, finished_at
FROM {prefix}job_history j FORCE INDEX (PRIMARY)
WHERE {queues}
  AND (? IS NULL OR j.kind = ?)
  AND (? IS NULL OR FIND_IN_SET(j.status_final, ?) > 0)
  AND (? IS NULL OR j.unique_key = ?)
  AND (? IS NULL OR j.finished_at >= ?)
  AND (? IS NULL OR j.finished_at < ?)
  AND j.id {beyond} ?
ORDER BY j.id {direction} LIMIT ?
