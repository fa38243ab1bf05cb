-- A schema in which somebody has put an operator and a function in the way wherever the server itself has none with exactly these
-- types: they are preferred to the server's own if the schema is in the path. Each of them fails.
BEGIN;
SELECT pg_advisory_xact_lock(7236401);
DO $$
DECLARE
    types text[] := '{int4,int8,float8,numeric,text,timestamptz,interval,bool,json,xid8,int4[],int8[],text[],timestamptz[]}';
    names text[] := string_to_array('{names}', ',');
    l text;
    r text;
    n text;
    number integer := 0;
BEGIN
    IF to_regnamespace('hostile') IS NOT NULL THEN
        RETURN;
    END IF;
    CREATE SCHEMA hostile;
    GRANT USAGE ON SCHEMA hostile TO PUBLIC;
    FOREACH l IN ARRAY types LOOP
        FOREACH r IN ARRAY types LOOP
            number := number + 1;
            EXECUTE format('CREATE FUNCTION hostile.compare_%s(%s, %s) RETURNS boolean LANGUAGE plpgsql AS
                $f$ BEGIN RAISE EXCEPTION ''hostile: an operator of %s and %s''; END $f$', number, l, r, l, r);
            EXECUTE format('CREATE FUNCTION hostile.combine_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS
                $f$ BEGIN RAISE EXCEPTION ''hostile: an operator of %s and %s''; END $f$', number, l, r,
                CASE WHEN r = 'interval' THEN r ELSE l END, l, r);
            FOREACH n IN ARRAY '{=,<>,<,>,<=,>=,+,-,*,/,%,||}'::text[] LOOP
                CONTINUE WHEN to_regoperator(format('pg_catalog.%s(%s, %s)', n, l, r)) IS NOT NULL;
                EXECUTE format('CREATE OPERATOR hostile.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = hostile.%s_%s)', n, l, r,
                    CASE WHEN n ~ '[=<>]' THEN 'compare' ELSE 'combine' END, number);
            END LOOP;
            FOREACH n IN ARRAY names LOOP
                CONTINUE WHEN to_regprocedure(format('pg_catalog.%s(%s, %s)', n, l, r)) IS NOT NULL;
                EXECUTE format('CREATE FUNCTION hostile.%I(%s, %s) RETURNS text LANGUAGE plpgsql AS
                    $f$ BEGIN RAISE EXCEPTION ''hostile: %s(%s, %s)''; END $f$', n, l, r, n, l, r);
            END LOOP;
        END LOOP;
        FOREACH n IN ARRAY names LOOP
            CONTINUE WHEN to_regprocedure(format('pg_catalog.%s(%s)', n, l)) IS NOT NULL;
            EXECUTE format('CREATE FUNCTION hostile.%I(%s) RETURNS text LANGUAGE plpgsql AS
                $f$ BEGIN RAISE EXCEPTION ''hostile: %s(%s)''; END $f$', n, l, n, l);
        END LOOP;
    END LOOP;
END
$$;
COMMIT;
