-- Queues with live jobs, in hexadecimal digits, from one name on and before another, up to so many: one step in the index for each. The first part is
-- MySQL's, the second MariaDB's, as in `ready_queues`: MariaDB has the statistics of when it opened the table, which may have been empty.
/*!80000 SELECT HEX(j.queue_name) FROM {prefix}job_queue j FORCE INDEX (job_queue_fifo)
WHERE j.queue_name >= ? AND j.queue_name < ? GROUP BY j.queue_name ORDER BY j.queue_name LIMIT ? */
/*M! BEGIN NOT ATOMIC
    DECLARE name, last, past VARBINARY(255); DECLARE found LONGTEXT DEFAULT ''; DECLARE wanted BIGINT;
    SET last = ?, past = ?, wanted = ?;
    SELECT j.queue_name INTO name FROM {prefix}job_queue j FORCE INDEX (job_queue_fifo)
    WHERE j.queue_name >= last AND j.queue_name < past ORDER BY j.queue_name LIMIT 1;
    WHILE name IS NOT NULL AND wanted > 0 DO
        SET found = CONCAT(found, HEX(name), CHAR(10)), wanted = wanted - 1, last = name, name = NULL;
        SELECT j.queue_name INTO name FROM {prefix}job_queue j FORCE INDEX (job_queue_fifo)
        WHERE j.queue_name > last AND j.queue_name < past ORDER BY j.queue_name LIMIT 1;
    END WHILE;
    SELECT found;
END */
