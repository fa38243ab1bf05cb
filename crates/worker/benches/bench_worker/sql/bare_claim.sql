WITH next AS MATERIALIZED (
    SELECT ctid FROM {schema}.job_queue
    WHERE queue_name = 'bench' AND lease_until IS NULL AND attempts < max_attempts AND available_at <= now()
    ORDER BY priority DESC, available_at, id LIMIT 100 FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.job_queue j SET
    lease_until = now() + interval '1 minute', locked_by = 'bench', attempts = j.attempts + 1,
    lease_epoch = j.lease_epoch + 1, first_leased_at = coalesce(j.first_leased_at, now()), updated_at = now()
WHERE j.ctid = ANY (ARRAY (SELECT ctid FROM next))
RETURNING j.id, j.payload::text
