-- One page of finished jobs. `{direction}` and `{beyond}` are `ASC` and `>`, or `DESC` and `<`.
SELECT h.id, h.queue_name, h.kind, h.priority, h.unique_key, h.payload, h.headers, h.attempts, h.max_attempts,
       h.lease_epoch, h.status_final, h.result, h.last_error, h.redrives, h.processed_by, h.created_at, h.started_at,
       h.finished_at
FROM {schema}.job_history h
WHERE ($1::text[] IS NULL OR h.queue_name = ANY ($1::text[]))
  AND ($2::text IS NULL OR h.queue_name >= $2::text AND h.queue_name < $3::text)
  AND ($4::text IS NULL OR h.kind = $4::text)
  AND ($5::text[] IS NULL OR h.status_final = ANY ($5::text[]))
  AND ($6::text IS NULL OR h.unique_key = $6::text)
  AND ($7::timestamptz IS NULL OR h.finished_at >= $7::timestamptz)
  AND ($8::timestamptz IS NULL OR h.finished_at < $8::timestamptz)
  AND ($9::bigint IS NULL OR h.id {beyond} $9::bigint)
ORDER BY h.id {direction} LIMIT $10::integer
