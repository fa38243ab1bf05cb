-- Which job has taken a unique key last, how often the key was taken, and whether that job is live, so that the key is taken (E3). Locks nothing.
(SELECT CAST(? AS SIGNED), k.job_id, k.version, j.id IS NOT NULL
 FROM {prefix}job_unique k FORCE INDEX (PRIMARY)
 LEFT JOIN {prefix}job_queue j FORCE INDEX (PRIMARY)
     ON j.id = k.job_id AND j.queue_name = k.queue_name AND j.unique_key = k.unique_key
 WHERE k.queue_name = ? AND k.unique_key = ?)
