-- Puts a leased job back: so many attempts spent, its error if there is a new one, available then, epoch raised by ?5.
UPDATE {prefix}job_queue SET
    lease_until = NULL,
    locked_by = NULL,
    attempts = ?2,
    last_error = coalesce(?3, last_error),
    available_at = ?4,
    lease_epoch = lease_epoch + ?5,
    updated_at = ?6
WHERE id = ?1
