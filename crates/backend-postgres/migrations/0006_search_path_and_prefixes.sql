-- Three changes: functions that look up names in pg_catalog only, claims over a prefix that do not visit queues whose jobs are for
-- later, and ids that are in the history already.
-- `IF NOT EXISTS`: with many jobs the two indexes can be built beforehand with CREATE INDEX CONCURRENTLY, during which jobs can still be enqueued.

-- 1. Whoever may create objects in a schema of the caller's search_path must not be able to put an operator or a function of his own
-- in the place of the server's. Functions that are made a part of the caller's statement would lose that by a setting of their own;
-- they are written with exact types instead, or are called by functions with the setting only.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN
        SELECT p.oid FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
        WHERE p.pronamespace = '{schema}'::regnamespace AND l.lanname = 'plpgsql'
    LOOP
        EXECUTE 'ALTER FUNCTION ' || f::text || ' SET search_path = pg_catalog, pg_temp';
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION {schema}.server_id() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (extract(epoch FROM pg_catalog.pg_postmaster_start_time())::double precision * 1000000::double precision)::bigint
$$;

CREATE OR REPLACE FUNCTION {schema}.backoff_us(
    base_us bigint, jitter double precision, min_us bigint, max_us bigint, attempts integer, spread double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT least(greatest(
        least(
            coalesce(base_us, 2000000)::double precision
                * power(2::double precision, least(greatest(attempts - 1, 0), 900)::double precision)
                * (1::double precision + coalesce(jitter, 0.2) * spread),
            3155760000000000
        )::bigint,
        coalesce(min_us, 1000000)), coalesce(max_us, 3600000000))
$$;

-- 2. A leasable job is either for now or for later, as it was when it was last written: `available_at > updated_at`.
-- This index leads from one queue with jobs for now to the next. `|| ''`, lest the planner take it, or another, where it is no good.
CREATE INDEX IF NOT EXISTS job_queue_now ON {schema}.job_queue ((queue_name || ''))
    WHERE lease_until IS NULL AND attempts < max_attempts AND available_at <= updated_at;
-- Jobs for later, by when that is, whatever their queue.
CREATE INDEX IF NOT EXISTS job_queue_later ON {schema}.job_queue (available_at, queue_name)
    WHERE lease_until IS NULL AND attempts < max_attempts AND available_at > updated_at;

-- 3. An id must not come back that is in the history already. It does when the sequence starts anew: logical replication, for one, does not
-- bring it along. This moves the sequence behind all ids there are.
CREATE FUNCTION {schema}.move_ids_on() RETURNS regclass LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ids regclass := pg_get_serial_sequence('{schema}.job_queue', 'id');
    largest bigint := greatest((SELECT max(j.id) FROM {schema}.job_queue j), (SELECT max(h.id) FROM {schema}.job_history h));
    is_behind boolean;
BEGIN
    EXECUTE format('SELECT s.last_value < $1 FROM %s s', ids) INTO is_behind USING largest;
    IF is_behind THEN
        PERFORM setval(ids, largest + 1000000); -- A margin for those who take numbers in this moment.
    END IF;
    RETURN ids;
END
$$;

-- Gives each finished job whose id a live one has another id, so that nothing is lost and the live one can end. The store calls it
-- when it meets such an id.
CREATE FUNCTION {schema}.make_room() RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ids regclass := {schema}.move_ids_on();
    moved bigint;
BEGIN
    UPDATE {schema}.job_history h SET id = nextval(ids) WHERE h.id IN (SELECT j.id FROM {schema}.job_queue j);
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END
$$;

-- Counting, once in an hour and after a switch-over, looks after the sequence, too.
ALTER FUNCTION {schema}.count_again() RENAME TO count_jobs;
CREATE FUNCTION {schema}.count_again() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM {schema}.move_ids_on();
    PERFORM {schema}.count_jobs();
END
$$;
