-- Which of these jobs are live by what is committed now, whatever the transaction has seen before (E6, T1). They are locked in shared mode until
-- the transaction ends. The lock is on the row, not on the entry of the unique key: so claims and verdicts see it, and skip the job. For the id
-- alone MySQL would walk all over a small table, and lock every row on its way.
SELECT j.id, j.lease_epoch FROM {prefix}job_queue j FORCE INDEX (PRIMARY) WHERE j.id IN ({list}) ORDER BY j.id LOCK IN SHARE MODE
