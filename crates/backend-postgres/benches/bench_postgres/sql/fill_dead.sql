INSERT INTO {schema}.job_history
    (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final, last_error, redrives,
     created_at, finished_at)
SELECT n, 'bench', 'bench', 0, CASE WHEN n % 2 = 0 THEN 'key ' || n END, '{payload}', '{}', 5, 5, 5, 'dead_letter', '"no"', 0, now(), now()
FROM generate_series(1, {jobs}) n
