-- One page of live jobs. `{direction}` and `{beyond}` are `ASC` and `>`, or `DESC` and `<`. `{named}` and `{id}` are in words that
-- the index of one queue's jobs knows, if there is one queue; otherwise the jobs are read by id.
SELECT j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.available_at, j.lease_until, j.locked_by, j.lease_epoch, j.first_leased_at, j.last_error, j.redrives,
       j.created_at, j.updated_at
FROM {schema}.job_queue j
WHERE {named}
  AND ($2::text IS NULL OR j.queue_name >= $2::text AND j.queue_name < $3::text)
  AND ($4::text IS NULL OR j.kind = $4::text)
  AND ($5::text[] IS NULL OR CASE
          WHEN j.lease_until > statement_timestamp() THEN 'running'
          WHEN j.lease_until IS NOT NULL THEN 'expired'
          WHEN j.attempts >= j.max_attempts THEN 'exhausted'
          WHEN j.available_at <= statement_timestamp() THEN 'ready'
          WHEN j.attempts = 0 THEN 'scheduled'
          ELSE 'retrying' END = ANY ($5::text[]))
  AND ($6::text IS NULL OR j.unique_key = $6::text)
  AND ($7::text IS NULL OR j.locked_by = $7::text)
  AND ($8::bigint IS NULL OR {id} {beyond} $8::bigint)
ORDER BY {id} {direction} LIMIT $9::integer
