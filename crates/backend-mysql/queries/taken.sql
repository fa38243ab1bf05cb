-- The live job that has a unique key (E3).
(SELECT CAST(? AS SIGNED), j.id FROM {prefix}job_queue j FORCE INDEX (job_queue_unique)
 WHERE j.queue_name = ? AND j.unique_key = ?)
