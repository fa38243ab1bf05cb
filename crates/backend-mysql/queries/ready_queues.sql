-- Queues with jobs for now, in hexadecimal digits, from one name on and before another, up to so many: one step in the index for each.
-- MySQL reads the first part alone: its optimizer takes these steps for a GROUP BY. MariaDB's does not for an index with generated columns, so MariaDB
-- reads the second part alone, which takes them one by one, and answers with one row, a name in each line. A subquery in SET would lock what it reads.
/*!80000 SELECT HEX(j.ready_queue) FROM {prefix}job_queue j FORCE INDEX (job_queue_reclaim)
WHERE j.ready_queue > '' AND j.ready_queue >= ? AND j.ready_queue < ? GROUP BY j.ready_queue ORDER BY j.ready_queue LIMIT ? */
/*M! BEGIN NOT ATOMIC
    DECLARE name, last, past VARBINARY(255); DECLARE found LONGTEXT DEFAULT ''; DECLARE wanted BIGINT;
    SET last = ?, past = ?, wanted = ?;
    SELECT j.ready_queue INTO name FROM {prefix}job_queue j FORCE INDEX (job_queue_reclaim)
    WHERE j.ready_queue > '' AND j.ready_queue >= last AND j.ready_queue < past ORDER BY j.ready_queue LIMIT 1;
    WHILE name IS NOT NULL AND wanted > 0 DO
        SET found = CONCAT(found, HEX(name), CHAR(10)), wanted = wanted - 1, last = name, name = NULL;
        SELECT j.ready_queue INTO name FROM {prefix}job_queue j FORCE INDEX (job_queue_reclaim)
        WHERE j.ready_queue > last AND j.ready_queue < past ORDER BY j.ready_queue LIMIT 1;
    END WHILE;
    SELECT found;
END */
