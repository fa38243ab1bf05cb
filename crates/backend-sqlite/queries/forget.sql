-- Removes finished jobs that their queue's archive does not keep, in the transaction that has finished them (P7).
DELETE FROM {prefix}job_history WHERE id IN (SELECT value FROM json_each(?1))
