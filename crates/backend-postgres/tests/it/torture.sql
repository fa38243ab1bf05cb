-- Makes each claim write down, in its own statement and so in its own snapshot, what a plain look would have found.
--
-- The last look of a call is meant: one that has seen only a part, or has met jobs that were changed after its snapshot, is followed by
-- another (`is_all`). A job was missed if the snapshot shows it to be Ready in an open queue within its limits, and the claim has neither leased it nor
-- had a reason: a full claim may leave what comes after its last job, and any claim what another transaction had locked. `xmax`
-- tells that without a guess: it is the last transaction that has locked or changed the row. If that one had ended before
-- the snapshot was taken, or there never was one, the row was free. A row that this transaction has locked and not leased was
-- missed, too.
CREATE TABLE {schema}.torture (claim text NOT NULL, floors integer NOT NULL, leased bigint NOT NULL, missed bigint[] NOT NULL);

DO $do$
DECLARE
    claim record;
    oracle text := $oracle$, oracle AS (
    INSERT INTO {schema}.torture (claim, floors, leased, missed)
    SELECT '{claim}', {floors}, (SELECT count(*) FROM leased), ARRAY(
        SELECT j.id FROM {schema}.job_queue j
        WHERE {asked} AND j.lease_until IS NULL AND j.attempts < j.max_attempts
          AND j.available_at <= statement_timestamp()
          AND NOT EXISTS (SELECT FROM leased l WHERE l.id = j.id)
          AND NOT EXISTS (SELECT FROM {schema}.effective_policy(j.queue_name) p WHERE p.paused)
          AND {within_limits}
          AND ({is_all} AND (SELECT count(*) FROM leased) < {wanted}
               OR {in_order} AND EXISTS (SELECT FROM leased l
                          WHERE (-l.priority, l.available_at, l.id) > (-j.priority, j.available_at, j.id)))
          AND (j.xmax::text::bigint < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
               OR j.xmax::text = pg_current_xact_id()::text))
)$oracle$;
    -- These look at no limits: they are not called if an open queue has one.
    no_limits text := $limits$NOT EXISTS (
              SELECT FROM unnest({limiting}) q (name) CROSS JOIN LATERAL {schema}.effective_policy(q.name) p
              WHERE NOT coalesce(p.paused, false)
                AND (p.concurrency_limit IS NOT NULL OR p.rate_per_sec IS NOT NULL OR p.queue_order = 'fifo'))$limits$;
    -- One more could have been leased: as many places and tokens are free as the claim has used, and another.
    limits text := $limits$NOT EXISTS (
              SELECT FROM {schema}.effective_policy(j.queue_name) p
              LEFT JOIN {schema}.job_queue_limit k ON k.queue_name = j.queue_name AND k.rate_per_sec = p.rate_per_sec AND k.rate_burst = p.rate_burst
              CROSS JOIN LATERAL (SELECT count(*) AS used FROM leased l WHERE l.queue_name = j.queue_name) n
              CROSS JOIN LATERAL (
                  SELECT count(*) + n.used AS held FROM {schema}.job_queue l WHERE l.queue_name = j.queue_name AND l.lease_until IS NOT NULL) h
              WHERE p.concurrency_limit <= h.held OR p.queue_order = 'fifo' AND h.held > 0
                 OR p.queue_order = 'fifo' AND EXISTS (SELECT FROM {schema}.job_queue o WHERE o.queue_name = j.queue_name AND o.id < j.id)
                 OR n.used + 1 > least(p.rate_burst, p.rate_burst - p.rate_per_sec * extract(epoch FROM k.full_at - statement_timestamp())))$limits$;
BEGIN
    FOR claim IN
        SELECT p.oid, p.proname AS name, c.asked, c.limiting, c.floors, c.is_all, c.wanted, c.in_order FROM pg_proc p JOIN (VALUES
            ('dequeue_one_v2', 'j.queue_name = $1', 'ARRAY[$1]', 'cardinality($6)', '$2', 'true',
             '(SELECT count(*) FROM locked) = (SELECT count(*) FROM leased)'),
            ('dequeue_few_v2', 'j.queue_name = $1', 'ARRAY[$1]', '0', '$2', 'true',
             '(SELECT s.is_all FROM seen s) AND (SELECT count(*) FROM locked) = (SELECT count(*) FROM leased)'),
            ('dequeue_v2', 'j.queue_name = ANY ($1)', '$1', 'cardinality($8)', '$2', 'true',
             '(SELECT count(*) FROM candidate) < $3 AND (SELECT count(*) FROM locked) = (SELECT count(*) FROM leased)'),
            -- Over a prefix: in turns, so a full claim may leave any job. A queue that is not served is looked at again.
            ('dequeue_limited_v3', 'CASE WHEN $1 IS NULL THEN j.queue_name >= $2 AND j.queue_name < $3 ELSE j.queue_name = ANY ($1) END',
             NULL, '0', '$5',
             '$1 IS NOT NULL AND NOT EXISTS (SELECT FROM open o WHERE o.name <> ALL (ARRAY(SELECT s.name FROM served s)))',
             '(SELECT count(*) FROM locked) = (SELECT count(*) FROM leased) AND (SELECT count(*) FROM open) < $5 + $8
              AND NOT EXISTS (SELECT FROM candidate c WHERE c.cut_short AND c.round = c.most)
              AND NOT EXISTS (SELECT FROM open o WHERE o.name <> ALL (ARRAY(SELECT s.name FROM served s)))')
        ) c (name, asked, limiting, floors, wanted, in_order, is_all) ON c.name = p.proname
        WHERE p.pronamespace = '{schema}'::regnamespace
    LOOP
        EXECUTE replace(pg_get_functiondef(claim.oid), '/* and for tests: */',
            replace(replace(replace(replace(replace(replace(replace(oracle, '{claim}', claim.name), '{asked}', claim.asked),
                '{within_limits}', coalesce(replace(no_limits, '{limiting}', claim.limiting), limits)), '{floors}', claim.floors), '{is_all}', claim.is_all), '{wanted}', claim.wanted),
                '{in_order}', claim.in_order));
    END LOOP;
END
$do$;
