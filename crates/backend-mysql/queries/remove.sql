-- Removes jobs from the queue, in the transaction that has written their history. The argument is an array of [id, epoch, whether it
-- has a lease]. A job that is not as it was locked is left out: the count tells. `sql_safe_updates` is as in `requeue.sql`.
-- `in_transaction` is as in `requeue.sql`.
/*M! SET STATEMENT sql_safe_updates = 0 FOR */
DELETE j FROM JSON_TABLE(?, '$[*]' COLUMNS (
           id BIGINT PATH '$[0]',
           epoch BIGINT PATH '$[1]',
           leased INT PATH '$[2]')) i
STRAIGHT_JOIN {prefix}job_queue j FORCE INDEX (PRIMARY)
    ON j.id = i.id AND j.lease_epoch = i.epoch AND (j.lease_until IS NOT NULL) = i.leased
WHERE j.id = i.id /*M! AND @@in_transaction = 1 */
