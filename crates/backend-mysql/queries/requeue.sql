-- Puts leased jobs back. The argument is an array of [id, epoch, attempts, error if there is a new one, available at, epoch raised by].
-- A job whose lease is not the one that was locked is left out: the count tells. With `sql_safe_updates` MySQL wants a key in WHERE; MariaDB
-- refuses every JSON_TABLE here, so there the statement sets the variable for itself. To MySQL that is a comment.
-- A Galera node can undo a transaction between two statements without telling the client: nothing is written outside of one.
/*M! SET STATEMENT sql_safe_updates = 0 FOR */
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
           id BIGINT PATH '$[0]',
           epoch BIGINT PATH '$[1]',
           attempts INT PATH '$[2]',
           error LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[3]',
           available_at DATETIME(6) PATH '$[4]',
           raise INT PATH '$[5]')) i
STRAIGHT_JOIN {prefix}job_queue j FORCE INDEX (PRIMARY) ON j.id = i.id AND j.lease_epoch = i.epoch AND j.lease_until IS NOT NULL
SET j.lease_until = NULL,
    j.locked_by = NULL,
    j.attempts = i.attempts,
    j.last_error = COALESCE(i.error, j.last_error),
    j.available_at = i.available_at,
    j.lease_epoch = j.lease_epoch + i.raise,
    j.updated_at = ?
WHERE j.id = i.id /*M! AND @@in_transaction = 1 */
