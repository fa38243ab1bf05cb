-- Puts leased jobs back. The argument is an array of [id, attempts, error if there is a new one, available at, epoch raised by].
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
           id BIGINT PATH '$[0]',
           attempts INT PATH '$[1]',
           error LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[2]',
           available_at DATETIME(6) PATH '$[3]',
           raise INT PATH '$[4]')) i
STRAIGHT_JOIN {prefix}job_queue j FORCE INDEX (PRIMARY) ON j.id = i.id AND j.lease_epoch >= 0
SET j.lease_until = NULL,
    j.locked_by = NULL,
    j.attempts = i.attempts,
    j.last_error = COALESCE(i.error, j.last_error),
    j.available_at = i.available_at,
    j.lease_epoch = j.lease_epoch + i.raise,
    j.updated_at = ?
