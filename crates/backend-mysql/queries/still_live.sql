-- Which of these jobs are live by what is committed now, whatever the transaction has seen before (E6, T1). They are locked in shared mode until
-- the transaction ends: claims and verdicts see that, and skip the job. For the id alone MySQL would walk all over a small table, and lock every
-- row on its way.
SELECT j.id, j.queue_name, j.unique_key FROM {prefix}job_queue j FORCE INDEX (PRIMARY)
WHERE j.id IN ({list}) AND j.unique_key IS NOT NULL ORDER BY j.id LOCK IN SHARE MODE
