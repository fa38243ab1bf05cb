-- One page of live jobs at a time. `{direction}` and `{beyond}` are `ASC` and `>`, or `DESC` and `<`; `{queues}` says which queues
-- are meant, and `{index}` which index finds them in the order of their ids.
SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, available_at, lease_until, locked_by,
       lease_epoch, first_leased_at, last_error, redrives, created_at, updated_at
FROM {prefix}job_queue j FORCE INDEX ({index})
WHERE {queues}
  AND (? IS NULL OR j.kind = ?)
  AND (? IS NULL OR FIND_IN_SET(CASE
          WHEN j.lease_until > UTC_TIMESTAMP(6) THEN 'running'
          WHEN j.lease_until IS NOT NULL THEN 'expired'
          WHEN j.attempts >= j.max_attempts THEN 'exhausted'
          WHEN j.available_at <= UTC_TIMESTAMP(6) THEN 'ready'
          WHEN j.attempts = 0 THEN 'scheduled'
          ELSE 'retrying' END, ?) > 0)
  AND (? IS NULL OR j.unique_key = ?)
  AND (? IS NULL OR j.locked_by = ?)
  AND j.id {beyond} ?
ORDER BY j.id {direction} LIMIT ?
