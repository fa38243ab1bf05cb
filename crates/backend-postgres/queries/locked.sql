-- The places of those receipts whose lease has passed, and whose job another transaction has locked: no reclaim can take it (T10). A job
-- that was ever locked since it was last written (xmax) and is free is locked for the length of this statement; a reclaim in that
-- moment skips it. Any other is not touched.
SELECT i.ord FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS i (id, epoch, ord)
JOIN {schema}.job_queue j ON j.id = i.id AND j.lease_epoch = i.epoch AND coalesce(j.locked_by, '') <> ''
WHERE CASE WHEN j.xmax <> '0'::xid
    THEN NOT EXISTS (SELECT FROM {schema}.job_queue k WHERE k.id = j.id FOR UPDATE SKIP LOCKED) END
