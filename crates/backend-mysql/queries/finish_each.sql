-- The same for jobs that end each in its own way. The argument is an array of [id, epoch, whether it has a lease,
-- epoch raised by, status, result, error].
-- `in_transaction` is as in `requeue.sql`.
INSERT INTO {prefix}job_history
    (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final, result,
     last_error, redrives, processed_by, created_at, started_at, finished_at)
SELECT STRAIGHT_JOIN j.id, j.queue_name, j.kind, j.priority, j.unique_key, j.payload, j.headers, j.attempts, j.max_attempts,
       j.lease_epoch + i.raise, i.status, i.result, COALESCE(i.error, j.last_error), j.redrives, j.locked_by, j.created_at,
       j.first_leased_at, ? -- S12
FROM JSON_TABLE(?, '$[*]' COLUMNS (
         id BIGINT PATH '$[0]',
         epoch BIGINT PATH '$[1]',
         leased INT PATH '$[2]',
         raise INT PATH '$[3]',
         status VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[4]',
         result LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[5]',
         error LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[6]')) i
JOIN {prefix}job_queue j FORCE INDEX (PRIMARY)
    ON j.id = i.id AND j.lease_epoch = i.epoch AND (j.lease_until IS NOT NULL) = i.leased
WHERE 1 = 1 /*M! AND @@in_transaction = 1 */
