-- Locks the rows of unique keys, in the order given, and makes those that are not there. The key is the primary key: at every isolation level the
-- statement locks records and no gaps, also while it waits. An INSERT without the second line would lock an existing row in shared mode, and two
-- that then write it would deadlock.
INSERT INTO {prefix}job_unique (queue_name, unique_key, job_id) VALUES {list}
ON DUPLICATE KEY UPDATE job_id = job_id
