-- Makes the planner use indexes for the statement that follows, and tells whether it was free to choose before. At SERIALIZABLE a
-- sequential scan reads every job, and so each transaction would conflict with every other one that settles a job.
SELECT (s.before = 'on')::integer::bigint
FROM (SELECT current_setting('enable_seqscan') AS before, set_config('enable_seqscan', 'off', true) OFFSET 0) s
