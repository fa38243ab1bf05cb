DELETE FROM job_queue WHERE id IN (SELECT value FROM json_each(?1))
