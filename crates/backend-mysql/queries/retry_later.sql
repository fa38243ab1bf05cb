-- Makes a job available at another time, whoever holds it (A1).
UPDATE {prefix}job_queue SET
    lease_epoch = lease_epoch + (lease_until IS NOT NULL), -- A4
    lease_until = NULL,
    locked_by = NULL,
    available_at = ?,
    updated_at = ?
WHERE id = ?
